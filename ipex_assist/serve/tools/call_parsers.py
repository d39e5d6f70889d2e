"""Tool call parsers for the syntax of each model family: Hermes and Qwen, Llama 3, Mistral."""

from __future__ import annotations

import re

from ipex_assist.serve.tools.call_parser import CallParser, Marker
from ipex_assist.serve.tools.json_scanner import ARGUMENTS, SPACE, CallScanner, JsonValue

HERMES_OPEN, HERMES_CLOSE = "<tool_call>", "</tool_call>"
HERMES_BLOCKS = {HERMES_OPEN: HERMES_CLOSE, "<tools>": "</tools>", "```json\n": "```"}
LLAMA_TAG = "<|python_tag|>"
MISTRAL_CALLS, MISTRAL_CALL_ID, MISTRAL_ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
SURPLUS = SPACE + "}"  # after a call; small models close braces too often

# What may stand between Mistral's marker and the arguments: as far as it has come, and whole.
_HEAD_BEGINS = re.compile(r"[\w.-]{1,64}\s*(\[[^{]{0,80})?", re.ASCII)
_HEAD = re.compile(r"([\w.-]{1,64})\s*(?:(?:\[CALL_ID\][^\[]*)?\[ARGS\]\s*)?", re.ASCII)


class HermesParser(CallParser):
    """`<tool_call>`, `{"name": …, "arguments": {…}}`, `</tool_call>`; several, with content around: Hermes, Qwen.

    Qwen2.5-Coder also writes calls between `<tools>` and `</tools>`, or as a fenced block of JSON; other JSON there, or
    a call of an unknown function, is content.
    """

    _opener = ""
    _open: Marker | None = None
    _close: Marker | None = None
    _scanner: CallScanner | None = None
    _raw = ""
    _skips = False  # what is between a call that broke off and its end

    def _feed(self, character: str) -> None:
        if self._close is not None:
            self._after_call(character)
        elif self._scanner is not None:
            self._in_call(self._scanner, character)
        else:
            self._open = self._open or Marker(*HERMES_BLOCKS)
            text, self._opener = self._open.feed(character)
            self._text(text)
            if self._opener:
                self._begin_object(self._opener)

    def _begin_object(self, raw: str) -> None:
        self._scanner, self._raw, self._announced = CallScanner(), raw, False

    @property
    def _certain(self) -> bool:
        return self._opener == HERMES_OPEN

    def _is_other(self, scanner: CallScanner) -> bool:
        """Whether the object is certainly no call, as others stand in such a block."""
        unknown = scanner.name is not None and scanner.name not in self.names
        return not self._certain and (unknown or scanner.key not in ("", "name", *ARGUMENTS))

    def _in_call(self, scanner: CallScanner, character: str) -> None:
        self._raw += character
        scanner.feed(character)
        if self._certain:
            self._emit_call(scanner, certain=True)
        if not (scanner.done or scanner.broken or self._is_other(scanner)):
            return
        self._scanner = None
        if not self._is_other(scanner) and self._end_call(scanner, certain=self._certain):
            self._close, self._skips = Marker(HERMES_BLOCKS[self._opener]), scanner.broken
        else:
            self._text(self._raw)

    def _after_call(self, character: str) -> None:
        assert self._close is not None
        if not self._skips and not self._close.held and character in SURPLUS:
            return
        text, found = self._close.feed(character)
        if found:
            self._close, self._skips = None, False
        elif text and not self._skips:  # it was not closed, or there is another call
            rest = text + self._close.rest()
            self._close = None
            if rest == "{":
                self._begin_object("")
            for each in rest:
                self._feed(each)

    def _end(self) -> None:
        if (scanner := self._scanner) is not None:
            if self._is_other(scanner) or not self._end_call(scanner, certain=False):
                self._text(self._raw)
        elif self._open is not None:
            self._text(self._open.rest())


class LlamaParser(CallParser):
    """`{"name": …, "parameters": {…}}` as the whole answer, several separated by ";", maybe after a tag: Llama 3.

    An object that names none of the tools is content.
    """

    _tag: Marker | None = None
    _scanner: CallScanner | None = None
    _raw = ""
    _plain = False  # whether all that is left is content

    def _feed(self, character: str) -> None:
        if self._plain:
            self._text(character)
        elif self._scanner is not None:
            self._in_call(self._scanner, character)
        elif self._tag is None and character == "{":
            self._scanner, self._raw, self._announced = CallScanner(), self._raw + character, False
            self._scanner.feed(character)
        elif self._tag is None and (character in SPACE or (self.calls and character in ";,}")):
            self._raw += character
        else:
            self._begin(character)

    def _begin(self, character: str) -> None:
        """What is neither a call nor between two: a tag, or content."""
        self._tag = self._tag or Marker(LLAMA_TAG)
        text, found = self._tag.feed(character)
        if found:
            self._tag, self._raw = None, ""
        elif text:
            text += self._tag.rest()
            self._become_plain(self._raw + text)

    def _become_plain(self, text: str) -> None:
        self._plain, self._scanner, self._raw, self._tag = True, None, "", None
        self._text(text)

    def _in_call(self, scanner: CallScanner, character: str) -> None:
        self._raw += character
        scanner.feed(character)
        unknown = scanner.name is not None and scanner.name not in self.names
        if unknown:
            self._become_plain(self._raw)
            return
        self._emit_call(scanner, certain=False)
        if scanner.done or scanner.broken:
            if not self._end_call(scanner, certain=False):
                self._become_plain(self._raw)
                return
            self._scanner, self._raw = None, ""
            self._plain = scanner.broken

    def _end(self) -> None:
        tag = self._tag.rest() if self._tag is not None else ""
        if self._scanner is None or not self._end_call(self._scanner, certain=False):
            self._text(self._raw + tag)


class MistralParser(CallParser):
    """`[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]`, or `[TOOL_CALLS]name[ARGS]{…}` for each: Mistral."""

    _marker: Marker | None = None
    _scanner: CallScanner | None = None
    _value: JsonValue | None = None
    _at = "text"
    _raw = ""
    _header = ""  # the name and the markers after it
    _name = ""

    def _feed(self, character: str) -> None:
        getattr(self, f"_in_{self._at}")(character)

    def _in_text(self, character: str) -> None:
        self._marker = self._marker or Marker(MISTRAL_CALLS)
        text, found = self._marker.feed(character)
        self._text(text)
        if found:
            self._at, self._raw = "head", MISTRAL_CALLS

    def _in_head(self, character: str) -> None:
        """Directly after the marker."""
        if character == "{":  # a single call without brackets
            self._in_list(character)
            return
        self._raw += character
        if character not in SPACE:
            self._at = "list" if character == "[" else "name"
            self._header = character

    def _in_list(self, character: str) -> None:
        """Before or after a call of a list."""
        if character == "{":
            self._scanner, self._announced, self._at = CallScanner(), False, "call"
            self._in_call(character)
        elif character == "]":
            self._at, self._raw = "text", ""
        elif character in SURPLUS or character == ",":
            self._raw += character
        else:
            self._give_back(self._raw + character)

    def _in_call(self, character: str) -> None:
        assert self._scanner is not None
        self._raw += character
        self._scanner.feed(character)
        self._emit_call(self._scanner, certain=True)
        if self._scanner.done or self._scanner.broken:
            if not self._end_call(self._scanner, certain=True):
                self._give_back(self._raw)
                return
            self._at = "list" if self._scanner.done else "text"
            self._scanner, self._raw = None, ""

    def _in_name(self, character: str) -> None:
        self._raw += character
        if character != "{":
            self._header += character
            if not _HEAD_BEGINS.fullmatch(self._header):
                self._give_back(self._raw)
            return
        head = _HEAD.fullmatch(self._header)
        if head is None:
            self._give_back(self._raw)
            return
        self._name, self._announced = head[1], False
        if self._streams:
            self._begin_call(self._name)
            self._arguments(character)
        self._value, self._at = JsonValue(character), "value"

    def _in_value(self, character: str) -> None:
        assert self._value is not None
        self._value.takes(character)
        self._raw += character
        if self._streams:
            self._arguments(character)
        if self._value.over:
            if not self._streams and not self._whole_call(self._name, self._value.text):
                self._give_back(self._raw)
            self._value, self._at, self._raw = None, "text", ""

    def _give_back(self, text: str) -> None:
        """This was no call."""
        self._at, self._raw, self._scanner = "text", "", None
        self._text(text)

    def _end(self) -> None:
        if self._scanner is not None and self._end_call(self._scanner, certain=False):
            self._raw = ""
        if self._at in ("head", "list", "name") or (self._at in ("call", "value") and not self._announced):
            self._text(self._raw)
        if self._marker is not None:
            self._text(self._marker.rest())
