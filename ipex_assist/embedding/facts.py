"""What whoever prepares texts has to know of an embedding model, and how texts become token ids. No torch here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ipex_assist.env.errors import UsageError
from ipex_assist.tokenization.message_content import control_tokens
from ipex_assist.tokenization.tokenizer import check_text, encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PAIR, YES_NO_PROMPT = "pair", "yes_no"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
# The prompt that Qwen3-Reranker was trained with (its model card).
_BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
_AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


@dataclass(frozen=True)
class EmbeddingFacts:
    """Of a loaded model. size: numbers in a vector. max_tokens: of a text; None where nothing limits it.

    prompts: by name, what precedes a text; default_prompt: which does where none is named. skips_prompt: its tokens
    are read and not pooled. shortened, lengths, lower_case: see Recipe. pair_form: of a reranker: PAIR, as the
    tokenizer puts two texts together, or YES_NO_PROMPT.
    """

    task: str
    size: int
    max_tokens: int | None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    skips_prompt: bool = False
    shortened: bool = False
    lengths: tuple[int, ...] = ()
    lower_case: bool = False
    pair_form: str = PAIR

    def prompt(self, name: str | None) -> str:
        """The prompt of this name, or the default one. Raises UsageError where there is none of that name."""
        if name is None:
            return self.prompts.get(self.default_prompt or "", "")
        if name not in self.prompts:
            known = ", ".join(sorted(self.prompts)) or "none"
            raise UsageError(f"the model has no prompt named {name[:100]!r}; there is {known}")
        return self.prompts[name]

    def check_length(self, length: int | None) -> None:
        """Raise UsageError for vectors that cannot be cut to so many numbers."""
        if length is None or length == self.size:
            return
        if length > self.size:
            raise UsageError(f"dimensions: {length:,} are asked for, and a vector has {self.size:,}")
        if not self.shortened:
            raise UsageError(
                f"dimensions: neither the model's files nor its card say that fewer than all {self.size:,} numbers of "
                "a vector can stand for it: leave dimensions out, or start with --matryoshka if you know they can"
            )
        if self.lengths and length not in self.lengths:
            raise UsageError(f"dimensions: {length:,}; the model has {', '.join(map(str, self.lengths))}")


@dataclass(frozen=True)
class EncodedText:
    """Token ids of one text or pair. skip: of a prompt, which are not pooled. types: of each token, for pairs of BERT's
    relatives; empty where all are 0. cut: how many tokens were left out."""

    tokens: list[int]
    skip: int = 0
    types: list[int] = field(default_factory=list)
    cut: int = 0


class TextEncoder:
    """Texts and pairs as token ids, as sentence-transformers encodes them. Used by several threads at a time."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, facts: EmbeddingFacts) -> None:
        self._tokenizer, self._facts = tokenizer, facts

    def text(self, text: str, prompt: str = "", most: int | None = None) -> EncodedText:
        """prompt: what precedes the text. most: cut the text so that there are no more tokens; None: never."""
        whole = prompt + text
        check_text(whole)
        if self._facts.lower_case:
            whole = whole.lower()
        tokens, types = encode(self._tokenizer, whole), list[int]()
        skip = self._skip(prompt) if prompt and self._facts.skips_prompt else 0
        if (over := _over(tokens, most)) > 0:
            tokens, types = self._cut(tokens, types, whole, over)
        return EncodedText(tokens, skip, types, over)

    def _skip(self, prompt: str) -> int:
        """Tokens of a prompt alone, without what the tokenizer puts at an end (as sentence-transformers counts)."""
        tokens = encode(self._tokenizer, prompt)
        ends = {self._tokenizer.sep_token_id, self._tokenizer.eos_token_id} - {None}
        return len(tokens) - (1 if tokens and tokens[-1] in ends else 0)

    def pair(self, query: str, document: str, instruction: str | None = None, most: int | None = None) -> EncodedText:
        """A query and a document, whose end is cut where there are more than `most` tokens. Raises UsageError for an
        instruction that the model has no place for."""
        check_text(query + document + (instruction or ""))
        if self._facts.pair_form == YES_NO_PROMPT:
            return self._prompted(query, document, instruction or INSTRUCTION, most)
        if instruction is not None:
            raise UsageError("instruction: this model reads a query and a document, and no instruction")
        encoded: Any = self._tokenizer(query, text_pair=document)
        tokens = list(encoded["input_ids"])
        types = list(encoded.get("token_type_ids", ()))
        if (over := _over(tokens, most)) > 0:
            tokens, types = self._cut(tokens, types, document, over)
        return EncodedText(tokens, 0, types if any(types) else [], over)

    def _prompted(self, query: str, document: str, instruction: str, most: int | None) -> EncodedText:
        """The parts are encoded apart, as the model card does: what users write cannot become special tokens' parts."""
        before, after = (encode(self._tokenizer, part, add_special_tokens=False) for part in (_BEFORE, _AFTER))
        said = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        middle = self._plain(said)
        room = None if most is None else max(1, most - len(before) - len(after))
        over = max(0, _over(middle, room))
        return EncodedText([*before, *middle[: len(middle) - over], *after], cut=over)

    def _plain(self, text: str) -> list[int]:
        """Tokens of what somebody wrote: names of special tokens in it are text, and are encoded in two parts."""
        names = [re.escape(name) for name in control_tokens(self._tokenizer)]
        if not names or re.search("|".join(names), text) is None:
            return encode(self._tokenizer, text, add_special_tokens=False)
        tokens, done = [], 0
        for found in re.finditer("|".join(sorted(names, key=len, reverse=True)), text):
            tokens += encode(self._tokenizer, text[done : found.start() + 1], add_special_tokens=False)
            done = found.start() + 1
        return tokens + encode(self._tokenizer, text[done:], add_special_tokens=False)

    def _cut(self, tokens: list[int], types: list[int], text: str, over: int) -> tuple[list[int], list[int]]:
        """Leave out the last `over` tokens of a text that stands among special tokens."""
        own = encode(self._tokenizer, text, add_special_tokens=False)
        places = range(len(tokens) - len(own), -1, -1)
        start = next((at for at in places if tokens[at : at + len(own)] == own), None)
        if start is None or over >= len(own):
            raise UsageError(f"the text cannot be cut by {over} of its {len(own)} tokens")
        first, last = start + len(own) - over, start + len(own)
        return tokens[:first] + tokens[last:], types[:first] + types[last:]


def _over(tokens: Sequence[int], most: int | None) -> int:
    return 0 if most is None else len(tokens) - most
