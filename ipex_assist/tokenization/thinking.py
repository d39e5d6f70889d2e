"""Thoughts in an output: the formats in which models write them, which one a checkpoint has, and who reads them.

`FORMATS` is the one table of formats, for the server, the terminal, `batch` and Python. A checkpoint's format is found
by rendering a conversation with its chat template: the words that the template writes around an earlier thought, or
with which it opens or closes one for the answer. What marks a thought are *tokens* wherever the words are special
tokens of the vocabulary: `SpecialWords` makes one private character of each, so that a text which only spells such a
name marks nothing, and the readers here and in serve/tools see text alone, cut in any way.
"""

from __future__ import annotations

import functools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ipex_assist.tokenization.template_trial import rendered_with

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# What a piece is of: a thought, the answer, or (of formats that name whom a message is for) a call's name or arguments.
PieceKind: TypeAlias = Literal["thought", "text", "call", "arguments"]
Piece: TypeAlias = tuple[PieceKind, str]

_FIRST_PRIVATE = 0x10F000  # in a private plane, of which no tokenizer makes anything
_LAST_TOKENS = 16  # of a prompt, in which an opened thought is looked for
_SWITCHES = ({"enable_thinking": True}, {"thinking": True})  # variables by which templates let models think
# What a template is tried with; words that no template has.
_ASKED, _THOUGHT, _SAID = "Qu3stion", "Th0ught", "Answ3r"


@dataclass(frozen=True)
class ThinkingFormat:
    """How thoughts are marked.

    opened, closed: the words before and after a thought. anywhere: whether it may also follow text; else it stands at
    the beginning of the answer. around: words around the answer itself, which nobody is shown. models: that write it.
    """

    name: str
    opened: str
    closed: str
    models: str
    anywhere: bool = False
    around: tuple[str, ...] = ()


# Harmony: a message has a header, which names its channel and for whom it is.
START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
HARMONY = ThinkingFormat("harmony", f"{CHANNEL}analysis{MESSAGE}", END, "gpt-oss", anywhere=True)

_COMMAND_AROUND = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
_APRIEL = ("[END FINAL RESPONSE]",)

FORMATS = (
    HARMONY,
    ThinkingFormat("gemma", "<|channel>thought\n", "<channel|>", "Gemma 4", anywhere=True),
    ThinkingFormat("mistral", "[THINK]", "[/THINK]", "Magistral, Ministral 3", anywhere=True),
    ThinkingFormat("seed", "<seed:think>", "</seed:think>", "Seed-OSS"),
    ThinkingFormat("command", "<|START_THINKING|>", "<|END_THINKING|>", "Command A and R7B", True, _COMMAND_AROUND),
    ThinkingFormat("minimax", "<mm:think>", "</mm:think>", "MiniMax M3"),
    ThinkingFormat("apertus", "<|inner_prefix|>", "<|inner_suffix|>", "Apertus", anywhere=True),
    ThinkingFormat("hunyuan", "<think:opensource>", "</think:opensource>", "Hunyuan 3"),
    ThinkingFormat("kimi-vl", "◁think▷", "◁/think▷", "Kimi-VL"),
    ThinkingFormat("apriel", "Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]", "Apriel", False, _APRIEL),
    ThinkingFormat("granite", "Here is my thought process:", "Here is my response:", "Granite 3.2"),
    ThinkingFormat("answer", "<think>", "</think>", "Hunyuan A13B", around=("<answer>", "</answer>")),
    ThinkingFormat("response", "<think>", "</think>", "Granite 3.3, ERNIE 4.5", around=("<response>", "</response>")),
    ThinkingFormat(
        "think", "<think>", "</think>",
        "Qwen3, QwQ, DeepSeek, GLM, Kimi K2, MiniMax M2, Nemotron, Step, SmolLM3, LFM2, OLMo 3 and most others",
    ),
)  # fmt: skip


class SpecialWords:
    """Special tokens that mark something, each as one character that no text has."""

    def __init__(self, tokenizer: Any, words: Iterable[str]) -> None:
        """words: of formats and dialects, in which the names of special tokens are looked for."""
        spelt = "\n".join(words)
        added = tokenizer.added_tokens_decoder.items()
        names = {number: token.content for number, token in added if token.special and token.content in spelt}
        self._of_token = {number: chr(_FIRST_PRIVATE + place) for place, number in enumerate(sorted(names))}
        self._names = {self._of_token[number]: name for number, name in names.items()}
        longest_first = sorted(((name, char) for char, name in self._names.items()), key=lambda each: -len(each[0]))
        self._characters = dict(longest_first)
        self._any = re.compile("|".join(map(re.escape, self._characters)) or r"(?!)")
        self._table = dict.fromkeys(map(ord, self._names))

    def read(self, text: str, token: int | None) -> str:
        """A piece of output with the special token that it ends with, where that marks something."""
        if self._names and not text.isascii():
            text = text.translate(self._table)  # such a character in a text is none of ours
        return text + self._of_token.get(token, "") if token is not None else text

    def spelt(self, word: str) -> str:
        """A word of the tables as it comes out of `read`."""
        return self._any.sub(lambda found: self._characters[found[0]], word)

    def shown(self, text: str) -> str:
        """A text without special tokens."""
        return text if text.isascii() else text.translate(self._table)

    def named(self, text: str) -> str:
        """A text with the names of its special tokens, as it is given back if it turns out to be no call."""
        return text if text.isascii() else "".join(self._names.get(each, each) for each in text)


def held_back(text: str, words: Sequence[str]) -> int:
    """How many characters at a text's end may be the beginning of one of the words."""
    longest = min(len(text), max(map(len, words)) - 1)
    for count in range(longest, 0, -1):
        end = text[len(text) - count :]
        if any(word.startswith(end) for word in words):
            return count
    return 0


class ThoughtReader(ABC):
    """Reads an output as it comes; what it finds does not depend on how it is cut. thinking: whether a thought is being
    read. tokens: that thoughts had, with the words around them."""

    def __init__(self, words: SpecialWords) -> None:
        self.words, self.tokens = words, 0
        self._held = ""

    @property
    @abstractmethod
    def thinking(self) -> bool: ...

    @property
    @abstractmethod
    def answers(self) -> bool:
        """Whether all that comes is of the answer."""

    def push(self, text: str, token: int | None = None) -> list[Piece]:
        """What is certain with the next piece of text, which came with a token. Text of the answer has the characters
        of special tokens in it."""
        text, thought = self.words.read(text, token), self.thinking
        if self.answers and not self._held:
            return [("text", text)] if text else []
        self._held += text
        pieces: list[Piece] = []
        while self._step(pieces):
            pass
        self.tokens += token is not None and (thought or self.thinking)
        return pieces

    @abstractmethod
    def _step(self, pieces: list[Piece]) -> bool:
        """Take from what is held; whether it was so much that there may be another step."""

    @abstractmethod
    def finish(self) -> list[Piece]:
        """What was held back at the end of the text."""


class MarkedThoughts(ThoughtReader):
    """Of formats with a word before and one after a thought. Space around a thought is dropped."""

    def __init__(self, words: SpecialWords, form: ThinkingFormat, began: bool) -> None:
        """began: whether the prompt ends inside a thought already."""
        super().__init__(words)
        self._opened, self._closed = words.spelt(form.opened.strip()), words.spelt(form.closed)
        self._around = tuple(map(words.spelt, form.around))
        self._anywhere = form.anywhere
        self._state: Literal["before", "thought", "after", "answer"] = "thought" if began else "before"
        self._fresh = True  # nothing of this thought was told of yet

    @property
    def thinking(self) -> bool:
        return self._state == "thought"

    @property
    def answers(self) -> bool:
        return self._state == "answer" and not self._anywhere and not self._around

    def _step(self, pieces: list[Piece]) -> bool:
        return getattr(self, f"_{self._state}")(pieces)  # type: ignore[no-any-return]

    def _before(self, pieces: list[Piece]) -> bool:
        text = self._held.lstrip()
        if text.startswith(self._opened):
            self._held, self._state, self._fresh = text[len(self._opened) :], "thought", True
            return True
        if self._opened.startswith(text):
            return False
        self._state = "answer"
        return True

    def _thought(self, pieces: list[Piece]) -> bool:
        if self._fresh:
            self._held = self._held.lstrip()
        found = self._held.find(self._closed)
        end = found if found >= 0 else len(self._held) - held_back(self._held, (self._closed,))
        text = self._held[:end].rstrip()
        if text:
            pieces.append(("thought", self.words.shown(text)))
            self._fresh = False
        if found < 0:
            self._held = self._held[len(text) :]
            return False
        self._held, self._state = self._held[found + len(self._closed) :], "after"
        return True

    def _after(self, pieces: list[Piece]) -> bool:
        self._held = self._held.lstrip()
        self._state = "answer" if self._held else "after"
        return bool(self._held)

    def _answer(self, pieces: list[Piece]) -> bool:
        words = (self._opened, *self._around) if self._anywhere else self._around
        if not words:
            self._tell(pieces, len(self._held))
            return False
        found = [(at, word) for word in words if (at := self._held.find(word)) >= 0]
        if not found:
            self._tell(pieces, len(self._held) - held_back(self._held, words))
            return False
        at, word = min(found)
        self._tell(pieces, at)
        self._held = self._held[len(word) :]
        if word == self._opened:
            self._state, self._fresh = "thought", True
        else:
            self._state = "after"  # space around the answer
        return True

    def _tell(self, pieces: list[Piece], count: int) -> None:
        if count:
            pieces.append(("text", self._held[:count]))
        self._held = self._held[count:]

    def finish(self) -> list[Piece]:
        held, self._held = self._held, ""
        if self._state == "thought":
            held = self.words.shown(held.strip() if self._fresh else held.rstrip())
            return [("thought", held)] if held else []
        return [("text", held)] if held and self._state != "after" else []


_TO = re.compile(r"to=([^\s<]+)")
_CHANNEL_NAME = re.compile(r"\s*(\w+)")


class Channels(ThoughtReader):
    """Of harmony: messages with a header, which says of what channel they are and who is to read them.

    What the analysis channel has, and what is for somebody unknown, are thoughts; what is for a function is its call.
    """

    def __init__(self, words: SpecialWords, began: bool) -> None:
        """began: whether the prompt ends inside the analysis already."""
        super().__init__(words)
        self._channel, self._message = words.spelt(CHANNEL), words.spelt(MESSAGE)
        self._ends = tuple(map(words.spelt, (END, CALL, RETURN, START, CHANNEL)))
        self._heads = (
            self._channel,
            *(words.spelt(START + "assistant" * said) for said in (True, False)),
            " to=",
            "to=",
        )
        self._kind: PieceKind | None = "thought" if began else None  # None: in a header
        self._told = False  # whether there was text before
        self._fresh = False

    @property
    def thinking(self) -> bool:
        return self._kind == "thought"

    @property
    def answers(self) -> bool:
        return False

    def _step(self, pieces: list[Piece]) -> bool:
        return self._header(pieces) if self._kind is None else self._body(self._kind, pieces)

    def _header(self, pieces: list[Piece]) -> bool:
        at = self._held.find(self._message)
        if at >= 0:
            header, self._held = self._held[:at], self._held[at + len(self._message) :]
            self._begin(header, pieces)
            return True
        begun = self._held.lstrip()
        if begun and not any(begun.startswith(head) or head.lstrip().startswith(begun) for head in self._heads):
            self._kind = "text"  # no header at all
            return True
        return False

    def _begin(self, header: str, pieces: list[Piece]) -> None:
        before, _, after = header.rpartition(self._channel)
        channel, to = _CHANNEL_NAME.match(after), _TO.search(before + " " + after)
        name = channel[1] if channel else "final"
        if to is not None and to[1].startswith("functions."):
            self._kind = "arguments"
            pieces.append(("call", self.words.shown(to[1].removeprefix("functions."))))
        elif name == "analysis" or (to is not None and to[1] not in ("user", "assistant")):
            self._kind = "thought"
        else:
            self._kind = "text"
            if self._told:
                pieces.append(("text", "\n\n"))
        self._fresh = True

    def _body(self, kind: PieceKind, pieces: list[Piece]) -> bool:
        found = [(at, word) for word in self._ends if (at := self._held.find(word)) >= 0]
        at, word = min(found) if found else (len(self._held) - held_back(self._held, self._ends), "")
        if text := self._held[:at]:
            pieces.append((kind, self.words.shown(text)))
            self._told = self._told or kind == "text"
        self._held = self._held[at:]
        if not found:
            return False
        if word != self._channel:
            self._held = self._held[len(word) :]
            if word == self.words.spelt(START):
                self._held = self._held.removeprefix("assistant")
        self._kind = None
        return True

    def finish(self) -> list[Piece]:
        held, self._held = self._held, ""
        if self._kind is None:  # a header that was not finished, or none
            held = "" if self._channel in held or not held.strip() else held.strip()
            return [("text", self.words.shown(held))] if held and not held.startswith(("to=", *self._ends)) else []
        return [(self._kind, self.words.shown(held))] if held else []


def reader_of(words: SpecialWords, form: ThinkingFormat, began: bool) -> ThoughtReader:
    """The reader of a format's outputs."""
    return Channels(words, began) if form is HARMONY else MarkedThoughts(words, form, began)


def thought_words(form: ThinkingFormat) -> tuple[str, ...]:
    """All words of a format."""
    more = (START, CONSTRAIN, CALL, RETURN) if form is HARMONY else ()
    return (form.opened, form.closed, *form.around, *more)


FORMAT_WORDS = tuple(dict.fromkeys(word for form in FORMATS for word in thought_words(form)))


def thinking_format(tokenizer: PreTrainedTokenizerBase) -> ThinkingFormat | None:
    """The format of a checkpoint's thoughts, by its chat template; None where that has none."""
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        return None
    if not isinstance(template, str):
        try:
            template = tokenizer.get_chat_template(None)
        except ValueError:
            return None
    names = tuple(sorted((name, str(word)) for name, word in tokenizer.special_tokens_map.items()))
    return _format_of(str(template), names)


@functools.lru_cache(maxsize=32)
def _format_of(template: str, names: tuple[tuple[str, str], ...]) -> ThinkingFormat | None:
    rendered = [text for text in (_tried(template, names, thought=True), _tried(template, names)) if text is not None]
    before, found, after = rendered[0].partition(_THOUGHT) if rendered else ("", "", "")
    if found:  # the words around an earlier thought
        before, after = before.rstrip(), after.lstrip()
        around = [f for f in FORMATS if before.endswith(f.opened.rstrip()) or after.startswith(f.closed)]
        if around:
            return _by_answer(around, template)
    tried = (*rendered[1:], *(text for each in _SWITCHES if (text := _tried(template, names, **each)) is not None))
    ends = [text.rpartition(_ASKED)[2] for text in tried]
    opened = [f for f in FORMATS if any(f.opened.strip() in end for end in ends)]
    known = opened or [f for f in FORMATS if f.closed in template or f.opened in template]
    return _by_answer(known, template, "".join(tried))


def _by_answer(formats: Sequence[ThinkingFormat], template: str, rendered: str = "") -> ThinkingFormat | None:
    """Of formats with the same words the one whose words around an answer the template has."""
    formats = [f for f in formats if f is not HARMONY or CHANNEL in template]
    wrapped = (f for f in formats if any(word in rendered or f"'{word}' in" in template for word in f.around))
    plain = (f for f in formats if not f.around or f.opened != FORMATS[-1].opened)
    return next(wrapped, next(plain, None))


def _tried(template: str, names: Iterable[tuple[str, str]], *, thought: bool = False, **variables: bool) -> str | None:
    """A template's text for a question, after which there may be an answer that was thought about; None if it fails."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": _ASKED}]
    if thought:
        messages.append({"role": "assistant", "content": _SAID, "reasoning_content": _THOUGHT})
    return rendered_with(template, names, messages, variables=variables)


def conversation_reader(tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int]) -> ThoughtReader | None:
    """What tells thoughts and answer apart after the prompt of a conversation; None where the model has no thoughts."""
    form = thinking_format(tokenizer)
    if form is None:
        return None
    return reader_of(SpecialWords(tokenizer, thought_words(form)), form, thought_begun(tokenizer, form, prompt))


class ThoughtAndAnswer:
    """The thought and the answer of one output, as they come."""

    def __init__(self, reader: ThoughtReader) -> None:
        self.thought = self.answer = ""
        self._reader = reader

    def push(self, text: str, token: int | None = None) -> str:
        """Take the next piece of text, which came with a token; returns what it adds to the answer."""
        return self._take(self._reader.push(text, token))

    def finish(self) -> str:
        """Take what was held back at the end."""
        return self._take(self._reader.finish())

    def _take(self, pieces: list[Piece]) -> str:
        self.thought += "".join(text for kind, text in pieces if kind == "thought")
        answer = "".join(self._reader.words.shown(text) for kind, text in pieces if kind != "thought")
        self.answer += answer
        return answer


def thought_begun(tokenizer: PreTrainedTokenizerBase, form: ThinkingFormat, prompt: Sequence[int]) -> bool:
    """Whether a prompt ends inside a thought, so that the answer goes on with it."""
    end = str(tokenizer.decode(list(prompt[-_LAST_TOKENS:])))
    return end.rstrip().endswith(form.opened.strip())
