"""Incremental scanners for the JSON of a call, `{"name": …, "arguments": {…}}`, character by character."""

from __future__ import annotations

import json
from enum import Enum, auto

ARGUMENTS = ("arguments", "parameters")
SPACE = " \t\n\r"


class JsonValue:
    """Finds the end of a JSON value by brackets and quotes alone, without validating it."""

    def __init__(self, first: str) -> None:
        """first: its first character."""
        self.text = first
        self.over = False
        self.kind = "string" if first == '"' else "nested" if first in "{[" else "literal"
        self._depth = int(self.kind == "nested")
        self._quoted = self.kind == "string"
        self._escaped = False

    def takes(self, character: str) -> bool:
        """Whether the next character belongs to the value. Only a literal ends by one that does not."""
        if self.kind == "literal" and (character in SPACE or character in ",}]"):
            self.over = True
            return False
        self.text += character
        if self._quoted:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._quoted = False
        elif character == '"' and self.kind == "nested":
            self._quoted = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
        self.over = self.kind != "literal" and not self._quoted and self._depth == 0
        return True


class _At(Enum):
    BEGINNING = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    INSIDE = auto()
    AFTER = auto()


class CallScanner:
    """Reads the object of one call.

    name: once it is known. key: of the value that is being read, or was last. pieces: of the arguments, as they come,
    for whoever takes them out. broken: this is no call.
    """

    def __init__(self, names: tuple[str, ...] = ("name",)) -> None:
        """names: of the field that has the function's name."""
        self._names = names
        self.keys = frozenset(("", *names, *ARGUMENTS))  # of a call
        self.name: str | None = None
        self.key = ""
        self.pieces: list[str] = []
        self.has_arguments = False
        self.done = self.broken = False
        self._at = _At.BEGINNING
        self._key: JsonValue | None = None
        self._value: JsonValue | None = None

    def feed(self, character: str) -> None:
        """Take the next character; not to be called when done or broken."""
        if self._at is _At.INSIDE and self._inside(character):
            return
        if self._at is _At.KEY and self._key is not None:
            self._key.takes(character)
            if self._key.over:
                self._at, self.key = _At.COLON, _decoded(self._key.text) or ""
            return
        if character in SPACE:
            return
        self._between(character)

    def _between(self, character: str) -> None:
        """A character that is neither space nor in a value."""
        if self._at is _At.BEGINNING and character == "{":
            self._at = _At.KEY
        elif self._at is _At.KEY and character == "{" and not self.key:
            pass  # doubled, as an escaped template shows it (Qwen2.5-Coder)
        elif self._at is _At.KEY and character == '"':
            self._key = JsonValue(character)
        elif self._at is _At.COLON and character == ":":
            self._at = _At.VALUE
        elif self._at is _At.VALUE and character not in ",:}]":
            self._at, self._value = _At.INSIDE, JsonValue(character)
            if self.in_arguments and not self.has_arguments and self._value.kind == "nested":
                self.pieces.append(character)
        elif self._at is _At.AFTER and character == ",":
            self._at, self._key = _At.KEY, None
        elif self._at in (_At.AFTER, _At.KEY) and character == "}":
            self.done = True
            self.broken = self.name is None
        else:
            self.broken = True

    def _inside(self, character: str) -> bool:
        """Take a character of a value; returns False if it is the first one after it."""
        assert self._value is not None
        taken = self._value.takes(character)
        if taken and self._value.kind == "nested" and self.in_arguments and not self.has_arguments:
            self.pieces.append(character)
        if self._value.over:
            self._at = _At.AFTER
            self._end_value(self._value)
        return taken

    @property
    def in_arguments(self) -> bool:
        """Whether the value that is being read, or was last, is the arguments."""
        return self.key in ARGUMENTS

    def _end_value(self, value: JsonValue) -> None:
        if self.key in self._names and self.name is None:
            self.name = _decoded(value.text) if value.kind == "string" else None
            self.broken = not self.name
        elif self.in_arguments and not self.has_arguments:
            self.has_arguments = True
            if value.kind == "string":  # JSON within JSON, as some models write it
                self.pieces.append(_decoded(value.text) or "{}")
            elif value.kind == "literal":
                self.pieces.append("{}" if value.text in ("null", "None") else value.text)


def _decoded(text: str) -> str | None:
    """A JSON string's text, or None where it is none."""
    try:
        value = json.loads(text, strict=False)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
