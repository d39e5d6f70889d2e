"""The parser of calls, for every row of the table of dialects: output becomes content and calls as it comes.

It is one coroutine that reads a growing text and waits where it ends too early, so that the result does not depend on
how the text is cut. What turns out to be no call is given back as content.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ipex_assist.serve.tools.dialects import (
    BY_NAME,
    CallObject,
    Dialect,
    LiteralArguments,
    TaggedArguments,
    chunks,
)
from ipex_assist.serve.tools.growing_text import GrowingText, Reading
from ipex_assist.serve.tools.json_repair import repaired
from ipex_assist.serve.tools.json_scanner import SPACE, CallScanner, JsonValue
from ipex_assist.serve.tools.literals import NotALiteral, arguments_of, end_of_arguments
from ipex_assist.serve.tools.parsed_events import CallDelta, ParsedEvent, call_id, merged
from ipex_assist.serve.tools.tagged_values import value_of
from ipex_assist.tokenization.thinking import SpecialWords, held_back

_NAME = re.compile(r"[\w.-]{1,128}")
_LONGEST_KEY = 256
_BETWEEN = SPACE + ",;}"  # small models close braces too often


class CallParser(GrowingText):
    """Parses one output. calls: how many were started. Without `parallel` only the first is reported.

    Where a grammar holds calls to their form, they are told of while they are written (`streams`). Otherwise a call is
    told of as a whole, once its arguments are known to be JSON, and is text if they are not.
    """

    def __init__(
        self,
        dialect: Dialect,
        schemas: Mapping[str, Any],
        *,
        words: SpecialWords,
        parallel: bool = True,
        streams: bool = False,
        new_id: Callable[[], str] = call_id,
    ) -> None:
        """schemas: of the tools' arguments, by their names."""
        super().__init__()
        self._dialect = spelt(dialect, words)
        self._rows = (self._dialect, *(spelt(BY_NAME[name], words) for name in dialect.also))
        self._openers = tuple(dict.fromkeys(row.opener for row in self._rows if row.opener))
        self._find_opener = re.compile(
            "|".join(map(re.escape, sorted(self._openers, key=len, reverse=True))) or r"(?!)"
        )
        self._schemas, self._words = schemas, words
        self._parallel, self._streams, self._new_id = parallel, streams, new_id
        self.calls = 0
        self._events: list[ParsedEvent] = []
        self._white = ""  # space that is content only if content follows, or if there is no call at all
        self._has_content = False
        self._announced = False  # whether the call that is being read has been told of
        self._reading = self._bare() if dialect.bare else self._text()
        next(self._reading)

    def push(self, text: str, token: int | None = None) -> list[ParsedEvent]:
        """What is certain with the next piece of text; token: with which it came, as backend.TokenDelta has it."""
        return self.feed(self._words.read(text, token))

    def feed(self, text: str) -> list[ParsedEvent]:
        """The same for a text that has its special tokens in it, as `SpecialWords.read` makes it."""
        if text:
            self._buffer += text
            next(self._reading, None)
        return self._taken()

    def finish(self) -> list[ParsedEvent]:
        """What is left at the end of the text."""
        self._over = True
        next(self._reading, None)
        if not self.calls:
            self._content(self._white)
        return self._taken()

    def _taken(self) -> list[ParsedEvent]:
        """The events since the last time."""
        events, self._events = self._events, []
        return merged(events)

    # What is told of

    def _content(self, text: str) -> None:
        if text:
            self._events.append(text)

    def _give(self, text: str) -> None:
        """Content. Space around calls stays between words of it."""
        text = self._words.shown(text)
        body = text.strip(SPACE)
        if not body:
            self._white += text
            return
        start = text.index(body)
        if self._has_content or not self.calls:
            self._content(self._white + text[:start])
        self._white, self._has_content = text[start + len(body) :], True
        self._content(body)

    def _begin_call(self, name: str) -> None:
        self.calls += 1
        self._white, self._announced = self._white if self._has_content else "", True
        if self.calls == 1 or self._parallel:
            self._events.append(CallDelta(self.calls - 1, self._new_id(), name))

    def _arguments(self, text: str) -> None:
        if text and (self.calls == 1 or self._parallel):
            self._events.append(CallDelta(self.calls - 1, arguments=text))

    def _whole_call(self, name: str, written: str) -> bool:
        """Tell of a call with these arguments, if they are an object."""
        if (arguments := repaired(written)) is None:
            return False
        self._begin_call(name)
        self._arguments(arguments)
        return True

    # Calls within text, and calls that are the whole answer

    def _text(self) -> Reading[None]:
        while True:
            found = self._find_opener.search(self._buffer, self._at)
            if found is None:
                end = len(self._buffer)
                if not self._over and self._buffer:
                    end -= held_back(self._buffer[self._at :], self._openers)
                self._give(self._buffer[self._at : end])
                self._buffer, self._at = self._buffer[end:], 0
                if self._over:
                    return
                yield
                continue
            self._give(self._buffer[self._at : found.start()])
            self._buffer, self._at = self._buffer[found.start() :], 0
            for row in self._rows:
                self._at = 0
                if row.opener == found[0] and (yield from self._section(row)):
                    break
            else:
                self._give_back(len(found[0]))

    def _give_back(self, count: int) -> None:
        """This was no call: so many characters are content, and what follows is looked at again."""
        self._give_named(self._buffer[:count])
        self._buffer, self._at = self._buffer[count:], 0

    def _give_named(self, text: str) -> None:
        self._give(self._words.named(text))

    def _bare(self) -> Reading[None]:
        row = self._dialect
        while True:
            yield from self._space(SPACE + ";,}" if self.calls else SPACE)
            if row.tag:
                yield from self._word(row.tag)
            if self._at == len(self._buffer) and self._over and self.calls:
                break
            start = self._at
            if not (yield from self._section(row)):
                self._at = start if self.calls else 0
                break
            self._buffer, self._at = self._buffer[self._at :], 0
        while True:  # all the rest is content
            self._give_named(self._buffer[self._at :])
            self._buffer, self._at = "", 0
            if self._over:
                return
            yield

    def _section(self, row: Dialect) -> Reading[bool]:
        """Calls from the first word on; whether there was one."""
        opened, before = chunks(row.opened), chunks(row.before_name)
        if not (yield from self._words_next(opened)):
            return False
        before_calls = self.calls
        while True:
            start = self._at
            if self.calls > before_calls:
                yield from self._space(_BETWEEN)
            self._announced = False
            if not (yield from self._words_next(before)) or not (yield from self._call(row)):
                self._at = start
                break
            yield from self._space(SPACE + "}")
            yield from self._words_next(chunks(row.after_call))
            self._buffer, self._at = self._buffer[self._at :], 0
            if not opened:
                return True
        if self.calls > before_calls:
            yield from self._space(_BETWEEN)
            if not (yield from self._words_next(chunks(row.closed))):
                self._at = start
        return self.calls > before_calls

    def _call(self, row: Dialect) -> Reading[bool]:
        """A call after the words before its name; whether it is one."""
        form = row.arguments
        if isinstance(form, CallObject):
            return (yield from self._object(row, form))
        yield from self._space()
        name = yield from self._match(_NAME)
        if not name or (row.known_only and name not in self._schemas):
            return False
        if row.skipped and (yield from self._words_next([row.skipped])):
            yield from self._match(re.compile(r"[\w-]*"))
        yield from self._space()
        if isinstance(form, LiteralArguments):
            return (yield from self._words_next(chunks(row.after_name))) and (yield from self._literals(form, name))
        if isinstance(form, TaggedArguments):
            yield from self._words_next(chunks(row.after_name))
            return (yield from self._tagged(row, form, name))
        if (yield from self._peek()) != "{" and not (yield from self._words_next(chunks(row.after_name))):
            return False
        return (yield from self._json(name))

    def _object(self, row: Dialect, form: CallObject) -> Reading[bool]:
        """A JSON object with the name and the arguments."""
        yield from self._space()
        only_known = row.bare or row.known_only
        scanner, certain = CallScanner((form.name, "name")), not only_known
        while not (scanner.done or scanner.broken):
            character = yield from self._peek()
            if not character:
                break
            scanner.feed(character)
            self._at += 1
            unknown = scanner.name is not None and scanner.name not in self._schemas
            if only_known and (unknown or (row.known_only and scanner.key not in scanner.keys)):
                return False
            self._tell_object(scanner, certain)
        if self._announced:
            if scanner.broken:
                yield from self._skip(row)
            return True
        if scanner.name is None or not (scanner.has_arguments or (certain and scanner.done)):
            return False
        if not self._whole_call(scanner.name, "".join(scanner.pieces) or "{}"):
            return False
        if scanner.broken and not row.bare:
            yield from self._skip(row)
        return True

    def _tell_object(self, scanner: CallScanner, certain: bool) -> None:
        """Tell of a call as far as it has been read. certain: that it is one, and no object that looks alike."""
        if not self._streams:
            return
        certain = certain or scanner.in_arguments or scanner.has_arguments
        if scanner.name is not None and certain and not self._announced:
            self._begin_call(scanner.name)
        if self._announced:
            self._arguments("".join(scanner.pieces))
            scanner.pieces.clear()
            if scanner.done and not scanner.has_arguments:
                self._arguments("{}")

    def _skip(self, row: Dialect) -> Reading[None]:
        """What is between a call that broke off and its end."""
        ends = chunks(row.after_call) or chunks(row.closed)
        if not ends:
            return
        while True:
            found = self._buffer.find(ends[0], self._at)
            if found >= 0 or self._over:
                self._at = found if found >= 0 else len(self._buffer)
                return
            yield

    def _json(self, name: str) -> Reading[bool]:
        """Arguments as a JSON object."""
        yield from self._space()
        first = yield from self._peek()
        if first != "{":
            return False
        value = JsonValue(first)
        self._at += 1
        if self._streams:
            self._begin_call(name)
            self._arguments(first)
        while not value.over:
            character = yield from self._peek()
            if not character:
                return self._announced
            value.takes(character)
            self._at += 1
            if self._announced:
                self._arguments(character)
        return self._announced or self._whole_call(name, self._words.named(value.text))

    def _literals(self, form: LiteralArguments, name: str) -> Reading[bool]:
        """Arguments as literals, up to the closing bracket."""
        while (end := end_of_arguments(form, self._buffer, self._at)) is None:
            looked = len(self._buffer)
            while form.closed not in self._buffer[looked:]:  # nothing that came since can be the end
                if self._over:
                    return False
                yield
        try:
            arguments = arguments_of(form, self._buffer[self._at : end - 1])
        except NotALiteral:
            return False
        self._at = end
        self._begin_call(name)
        self._arguments(_compact(arguments))
        return True

    def _tagged(self, row: Dialect, form: TaggedArguments, name: str) -> Reading[bool]:
        """Arguments between words, up to the word after the call."""
        after_call = chunks(row.after_call)
        found: dict[str, Any] = {}
        schema = self._schemas.get(name, {})
        ends = (*after_call, *chunks(row.closed), *chunks(row.before_name)[:1], *chunks(form.before_key)[:1])
        if self._streams:
            self._begin_call(name)
            self._arguments("{")
        while not (yield from self._words_next(after_call[:1])):
            if not (yield from self._words_next(chunks(form.before_key))):
                if self._streams:
                    self._arguments("}")
                return self._streams
            key, is_plain = yield from self._key(form)
            if key is None:
                return self._streams
            raw = yield from self._raw_value(form, ends)
            if raw is None and not self._streams:
                return False  # it ended within a value
            text = raw if raw is not None else self._buffer[self._at :]
            value = text if is_plain is True else value_of(schema, key, text, is_plain is False)
            if self._streams:
                self._arguments(f"{', ' if found else ''}{_compact(key)}: {_compact(value)}")
            found[key] = value
        self._at -= len(after_call[0])
        if self._streams:
            self._arguments("}")
            return True
        self._begin_call(name)
        self._arguments(_compact(found))
        return True

    def _key(self, form: TaggedArguments) -> Reading[tuple[str | None, bool | None]]:
        """An argument's name, and whether its value says that it is text (None: it does not say)."""
        ends = [_pattern(each) for each in (form.after_key, form.other) if each]
        while True:
            found = min(
                (
                    (match.start(), place, match.end())
                    for place, end in enumerate(ends)
                    if (match := end.search(self._buffer, self._at)) is not None
                ),
                default=None,
            )
            if found is not None:
                break
            if self._over or len(self._buffer) - self._at > _LONGEST_KEY:
                return None, None
            yield
        key, (_, place, self._at) = self._buffer[self._at : found[0]], found
        if form.after_key.endswith("\n") and (yield from self._peek()) == "\n":
            self._at += 1
        return self._words.named(key), (not place if form.other else None)

    def _raw_value(self, form: TaggedArguments, ends: tuple[str, ...]) -> Reading[str | None]:
        """A value up to the word after it, which counts only where something fitting follows; None without one."""
        start = looked = self._at
        closed = chunks(form.after_value)[0]
        while True:
            found = self._buffer.find(closed, looked)
            if found < 0:
                if self._over:
                    return None
                looked = max(start, len(self._buffer) - len(closed))
                yield
                continue
            self._at = found + len(closed)
            yield from self._space()
            while not self._over and any(
                end.startswith(rest := self._buffer[self._at :]) and end != rest for end in ends
            ):
                yield
            if self._at == len(self._buffer) or self._buffer.startswith(ends, self._at):
                break
            looked, self._at = found + len(closed), start
        self._at = found + len(closed)
        value = self._buffer[start:found]
        if form.after_value.startswith("\n"):
            value = value.removesuffix("\n")
        if form.cdata and value.startswith("<![CDATA[") and value.endswith("]]>"):
            value = value[9:-3]
        return self._words.named(value)


def spelt(dialect: Dialect, words: SpecialWords) -> Dialect:
    """A dialect with its words as they come out of `SpecialWords.read`."""

    def each(item: Any) -> Any:
        texts = {
            field.name: words.spelt(value) if isinstance(value, str) else tuple(map(words.spelt, value))
            for field in dataclasses.fields(item)
            if field.name not in _NO_WORDS and isinstance(value := getattr(item, field.name), (str, tuple))
        }
        return replace(item, **texts)

    return replace(each(dialect), arguments=each(dialect.arguments))


_NO_WORDS = ("name", "models", "also", "call_ids")


@functools.lru_cache(maxsize=256)
def _pattern(text: str) -> re.Pattern[str]:
    """A text with any space where it has some."""
    return re.compile(r"\s*".join(map(re.escape, chunks(text))))


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
