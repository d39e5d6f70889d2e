"""Reads literals of Python's, JSON's and Gemma's notation, as models write arguments; nothing is evaluated."""

from __future__ import annotations

import json
import re
from typing import Any

from ipex_assist.serve.tools.dialects import LiteralArguments

_DEEPEST = 64
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None, "nil": None}
_BARE = re.compile(r"[^\s,:\[\](){}=]+")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", "'": "'", '"': '"'}
_HEX = re.compile(r"u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|U([0-9a-fA-F]{8})")
_SPACES = re.compile(r"\s*")
_AFTER_TEXT = ",)]}:"  # one of these follows the quote at a text's end


class NotALiteral(ValueError):
    """What is there is no literal."""


def end_of_arguments(form: LiteralArguments, text: str, at: int) -> int | None:
    """Where arguments that begin at `at` end: behind the closing bracket; None where that has not come yet."""
    depth, closers = 0, {"(": ")", "[": "]", "{": "}"}
    while at < len(text):
        quote = next((each for each in form.quotes if text.startswith(each, at)), None)
        if quote is not None:
            end = end_of_text(form, text, at + len(quote), quote)
            if end is None:
                return None
            at = end + len(quote)
            continue
        if text[at] == form.closed and not depth:
            return at + 1
        depth += (text[at] in closers) - (text[at] in closers.values())
        at += 1
    return None


def end_of_text(form: LiteralArguments, text: str, at: int, quote: str) -> int | None:
    """Where the quote is that ends a text; None where it has not come yet. A quote that nothing fitting follows is of
    the text, as some templates escape none."""
    while True:
        found = text.find(quote, at)
        if found < 0:
            return None
        if form.raw:
            return found
        slashes = found
        while slashes > at and text[slashes - 1] == "\\":
            slashes -= 1
        after = _SPACES.match(text, found + 1)
        assert after is not None
        if (found - slashes) % 2 == 0 and after.end() == len(text):
            return None  # whether it ends here, what follows says
        if (found - slashes) % 2 == 0 and text[after.end()] in _AFTER_TEXT:
            return found
        at = found + 1


def arguments_of(form: LiteralArguments, text: str) -> dict[str, Any]:
    """The arguments of a call, without the closing bracket. Raises NotALiteral."""
    reader, found = _Reader(form, text + "\0"), {}
    while not reader.over:
        key = reader.key(form.assigned)
        found[key] = reader.value()
        if not reader.over:
            reader.expect(",")
    return found


class _Reader:
    """A text, and how far it was read."""

    def __init__(self, form: LiteralArguments, text: str) -> None:
        self._form, self._text, self._at = form, text, 0

    def _space(self) -> None:
        while self._text[self._at].isspace():
            self._at += 1

    @property
    def over(self) -> bool:
        self._space()
        return self._text[self._at] == "\0"

    def _takes(self, word: str) -> bool:
        self._space()
        found = self._text.startswith(word, self._at)
        self._at += len(word) * found
        return found

    def expect(self, word: str) -> None:
        if not self._takes(word):
            raise NotALiteral(f"{word!r} was expected")

    def key(self, assigned: str) -> str:
        text = self._quoted()
        if text is None:
            self._space()
            end = self._text.find(assigned, self._at)
            if end < 0:
                raise NotALiteral("there is no name")
            text, self._at = self._text[self._at : end].strip(), end
        self.expect(assigned)
        return text

    def _quoted(self) -> str | None:
        self._space()
        for quote in self._form.quotes:
            if self._text.startswith(quote, self._at):
                start = self._at + len(quote)
                end = end_of_text(self._form, self._text[:-1] + ",", start, quote)
                if end is None:
                    raise NotALiteral("a text has no end")
                self._at = end + len(quote)
                return self._text[start:end] if self._form.raw else unescaped(self._text[start:end])
        return None

    def value(self, depth: int = 0) -> Any:
        if depth > _DEEPEST:
            raise NotALiteral("nested too deeply")
        text = self._quoted()
        if text is not None:
            return text
        if self._takes("{"):
            return self._object(depth)
        for opened, closed in (("[", "]"), ("(", ")")):
            if self._takes(opened):
                return self._list(closed, depth)
        word = _BARE.match(self._text.rstrip("\0"), self._at)
        if word is None:
            raise NotALiteral("there is no value")
        self._at = word.end()
        return bare_value(word[0])

    def _object(self, depth: int) -> dict[str, Any]:
        found = {}
        while not self._takes("}"):
            key = self.key(":")
            found[key] = self.value(depth + 1)
            if not self._takes(","):
                self.expect("}")
                break
        return found

    def _list(self, closed: str, depth: int) -> list[Any]:
        found = []
        while not self._takes(closed):
            found.append(self.value(depth + 1))
            if not self._takes(","):
                self.expect(closed)
                break
        return found


def bare_value(word: str) -> Any:
    """A number, or a word that stands for a value. Raises NotALiteral."""
    if word in _WORDS:
        return _WORDS[word]
    try:
        value = json.loads(word)
    except ValueError:
        raise NotALiteral(f"{word[:40]!r} is no value") from None
    if isinstance(value, float) and value - value != 0:
        raise NotALiteral("not a number")
    return value


def unescaped(text: str) -> str:
    """A text with the escapes of Python and JSON replaced; others stay as they are."""
    if "\\" not in text:
        return text
    made, at = [], 0
    while at < len(text):
        if text[at] != "\\" or at + 1 == len(text):
            made.append(text[at])
            at += 1
        elif text[at + 1] in _ESCAPES:
            made.append(_ESCAPES[text[at + 1]])
            at += 2
        elif (code := _HEX.match(text, at + 1)) is not None:
            made.append(chr(min(int(next(filter(None, code.groups())), 16), 0x10FFFF)))
            at = code.end()
        else:
            made.append("\\")
            at += 1
    return "".join(made).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
