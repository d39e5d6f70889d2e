"""Encodes conversations so that special tokens mark what the chat template marks, and nothing that messages contain.

A template puts messages and special tokens into one text, in which a message with "<|im_end|>" in it would end its turn
and begin another. Where messages contain such a name, its punctuation is replaced by private characters before the
template is rendered, so that the names in the result are the template's own. For encoding, these get names that nobody
can guess, and the private characters become what they were. A text without such a name has the same ids either way.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ipex_assist.env.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerBase

Render = Callable[[Any, Any], str]  # of messages and tools, by the chat template

ALLOW = "Leave it out, or allow them with --allow-special-tokens (allow_special_tokens=True in Python)"
_PRIVATE = (*range(0x100000, 0x10FFFE), *range(0xF0000, 0xFFFFE))  # code points without a meaning
# Some tokenizers have these among ordinary added tokens: <|START_OF_TURN_TOKEN|>, <｜User｜>.
_CONTROL_NAME = re.compile(r"<[|｜].+|.+[|｜]>", re.DOTALL)


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The ids of the tokens that only a template may write, by their names.

    Special tokens, and those that are named like <|…|>; other added tokens (<think>, <tool_call>) are text, which a
    conversation may repeat.
    """
    backend = _backend(tokenizer)
    if backend is None:
        return dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
    named = {name for name in tokenizer.special_tokens_map.values() if isinstance(name, str)}
    return {
        token.content: number
        for number, token in backend.get_added_tokens_decoder().items()
        if token.content and (token.special or token.content in named or _CONTROL_NAME.fullmatch(token.content))
    }


class ContentEncoder:
    """Encodes conversations for one tokenizer. Thread-safe."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, control: Mapping[str, int]) -> None:
        """control: `control_tokens(tokenizer)`, not empty."""
        self._bare = [name for name in control if not any(map(_is_mark, name))]
        self._name = re.compile(_any_of(control))
        self._marks = {char for name in control for char in name if _is_mark(char)}
        self._name_or_mark = re.compile("|".join((self._name.pattern, *map(re.escape, sorted(self._marks)))))
        unknown = tokenizer.special_tokens_map.get("unk_token")  # which any text may come to
        self._numbers = {number: name for name, number in control.items() if name != unknown}
        nonce = secrets.token_hex(16)
        self._secrets = {name: f"ipexassist{nonce}n{place}e" for place, name in enumerate(control)}
        backend = _backend(tokenizer)
        self._copy: Tokenizer | None = None
        self._ids: dict[int, int] = {}  # our ids of the copy's added tokens
        if backend is not None:
            self._copy, self._ids = self._renamed(backend)
        # A normalizer may make a name out of other characters, such as capitals; then nothing else finds it.
        self._folds = backend is not None and backend.normalizer is not None and _normalized(backend, control)

    def encode(self, messages: Any, tools: Any, text: str, render: Render) -> list[int] | None:
        """The ids of a conversation of plain data, of which `render` has made `text`; None where those of `text` do.

        Raises UsageError where the tokenizer has no other way to write a name than the token itself.
        """
        try:
            strings = list(_strings((messages, tools)))
            ids = None
            if any(map(self._name_or_mark.search, strings)):
                ids = self._apart((messages, tools), strings, text, render)
        except RecursionError:
            raise UsageError("the messages or tools are nested too deeply") from None
        return self.encode_rendered(text) if ids is None and self._folds else ids

    def encode_rendered(self, text: str, disguise: Disguise | None = None) -> list[int]:
        """The ids of a rendered text in which all names are the template's own."""
        assert self._copy is not None
        plain = (lambda part: part) if disguise is None else disguise.take_off
        pieces, end = [], 0
        for found in self._name.finditer(text):
            pieces += [plain(text[end : found.start()]), self._secrets[found[0]]]
            end = found.end()
        pieces.append(plain(text[end:]))
        return self._checked(self._copy.encode("".join(pieces), add_special_tokens=False).ids)

    def _apart(self, conversation: tuple[Any, Any], strings: list[str], text: str, render: Render) -> list[int] | None:
        """`encode` for messages that contain names, or punctuation of which the template might make one."""
        named = next(filter(None, map(self._name.search, strings)), None)
        disguise = Disguise(self._name, self._marks, self._bare, set().union(text, *strings))
        try:
            hidden: str | None = render(*disguise.put_on(conversation))
        except UsageError:  # the template looks for this punctuation
            hidden = None
        unchanged = named is None if hidden is None else self._found(hidden) == self._found(text)
        if unchanged:
            return None
        # Templates look for punctuation in messages, such as the end of a thought: no more is hidden than must be.
        shown = render(*disguise.put_on(conversation, names_alone=True))
        if hidden is not None and self._found(shown) != self._found(hidden):
            shown = hidden  # a name that the template has put together from parts
        if self._copy is None:
            what = repr(named[0]) if named else "a part of a token's name"
            raise UsageError(f"a message has {what} in it, a special token of this model. {ALLOW}")
        return self.encode_rendered(shown, disguise)

    def _found(self, text: str) -> list[str]:
        return self._name.findall(text)

    def _checked(self, ids: Iterable[int]) -> list[int]:
        """The tokenizer's own ids for those of the copy."""
        made = []
        for each in ids:
            if each not in self._ids and each in self._numbers:
                name = self._numbers[each]
                raise UsageError(f"a message has {name!r} in it, which this model reads as a token. {ALLOW}")
            made.append(self._ids.get(each, each))
        return made

    def _renamed(self, backend: Tokenizer) -> tuple[Tokenizer, dict[int, int]]:
        """A tokenizer with the same model, whose control tokens have secret names; and our ids of its added tokens."""
        from tokenizers import AddedToken, Tokenizer

        copy = Tokenizer(backend.model)  # shared, not copied
        if backend.normalizer is not None:
            copy.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            copy.pre_tokenizer = backend.pre_tokenizer
        added = {
            self._secrets.get(token.content, token.content): (number, token)
            for number, token in sorted(backend.get_added_tokens_decoder().items())
        }
        copy.add_tokens([_like(AddedToken, token, name) for name, (_, token) in added.items()])
        ids = {copy.token_to_id(name): number for name, (number, _) in added.items()}
        return copy, {each: number for each, number in ids.items() if each is not None}


def encoder_of(tokenizer: PreTrainedTokenizerBase) -> ContentEncoder | None:
    """The tokenizer's encoder, made at the first call; None where it has no control tokens."""
    backend, size = _backend(tokenizer), len(tokenizer)
    with _lock:
        kept = _encoders.get(tokenizer)
        if kept is None or kept[0] is not backend or kept[1] != size:  # tokens were added meanwhile
            control = control_tokens(tokenizer)
            kept = backend, size, ContentEncoder(tokenizer, control) if control else None
            _encoders[tokenizer] = kept
        return kept[2]


_lock = threading.Lock()
_encoders: weakref.WeakKeyDictionary[Any, tuple[Any, int, ContentEncoder | None]] = weakref.WeakKeyDictionary()


class Disguise:
    """Replaces punctuation of names by private characters that occur nowhere else, and puts it back."""

    def __init__(self, name: re.Pattern[str], marks: set[str], bare: Sequence[str], used: set[str]) -> None:
        """name: finds names. marks: their punctuation. bare: names that have none. used: characters that are taken.

        Raises UsageError where no characters are left.
        """
        self._name = name
        self._bare = re.compile(_any_of(bare)) if bare else None
        chars = sorted(marks.union(*bare))
        free = (chr(code) for code in _PRIVATE if chr(code) not in used)
        private = dict(zip(chars, free, strict=False))
        if len(private) < len(chars):
            raise UsageError(f"the messages use all private characters of Unicode. {ALLOW}")
        self._all = str.maketrans(private)
        self._marks = str.maketrans({char: private[char] for char in marks})
        self._back = str.maketrans({each: char for char, each in private.items()})
        self._escaped = {_escaped(each): char for char, each in private.items()}

    def put_on(self, value: Any, *, names_alone: bool = False) -> Any:
        """A copy of plain data in which all punctuation of names is hidden, or that in names_alone."""
        return _changed(value, self._hide_names if names_alone else self._hide)

    def take_off(self, text: str) -> str:
        """The text with its characters put back, also where `tojson` has written them as escapes."""
        text = text.translate(self._back)
        for escaped, char in self._escaped.items():
            text = text.replace(escaped, char)
        return text

    def _hide(self, text: str) -> str:
        return (text if self._bare is None else self._bare.sub(self._hidden, text)).translate(self._marks)

    def _hide_names(self, text: str) -> str:
        return self._name.sub(self._hidden, text)

    def _hidden(self, found: re.Match[str]) -> str:
        return found[0].translate(self._marks if any(map(_is_mark, found[0])) else self._all)


def _any_of(names: Iterable[str]) -> str:
    """A pattern of the longest of these names at a place; as a tree, since some tokenizers have thousands."""
    names = list(names)
    prefix = os.path.commonprefix(names)  # noqa: RUF071 - of characters, not of folders
    following: dict[str, list[str]] = {}
    for name in names:
        if len(name) > len(prefix):
            following.setdefault(name[len(prefix)], []).append(name[len(prefix) :])
    if not following:
        return re.escape(prefix)
    branches = "|".join(_any_of(rest) for _, rest in sorted(following.items()))
    return f"{re.escape(prefix)}(?:{branches}){'?' if prefix in names else ''}"


def _is_mark(char: str) -> bool:
    """Whether this may be hidden without a template noticing: no letter or digit, no space, nothing of field names."""
    return not (char.isalnum() or char.isspace() or char in "_-.")


def _escaped(char: str) -> str:
    """A character above U+FFFF as JSON writes it in ASCII."""
    high, low = divmod(ord(char) - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def _strings(value: Any) -> Iterator[str]:
    """All texts of plain data, keys among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _strings(key)
            yield from _strings(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _strings(each)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_changed(key, change): _changed(each, change) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_changed(each, change) for each in value)
    return value


def _backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer | None:
    """The tokenizer of the tokenizers library; None for one that is written in Python."""
    return getattr(tokenizer, "backend_tokenizer", None)


def _like(kind: type[AddedToken], token: AddedToken, name: str) -> AddedToken:
    return kind(
        name,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=token.special,
    )


def _normalized(backend: Tokenizer, control: Mapping[str, int]) -> bool:
    """Whether a control token is looked for in the normalized text."""
    added = backend.get_added_tokens_decoder().values()
    return any(token.normalized for token in added if token.content in control)
