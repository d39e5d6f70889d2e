"""Which dialect a checkpoint writes calls in: a call is rendered with its own chat template and read back.

A template that leaves calls of earlier turns out shows no call; then the row counts whose words the template's
explanation of the tools has, or whose words are special tokens of the vocabulary.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ipex_assist.serve.tools.call_parser import CallParser
from ipex_assist.serve.tools.dialects import DIALECTS, Dialect, LiteralArguments, TaggedArguments, chunks
from ipex_assist.serve.tools.output_reader import OutputReader
from ipex_assist.serve.tools.parsed_events import content_and_calls
from ipex_assist.tokenization.template_trial import rendered_with
from ipex_assist.tokenization.thinking import HARMONY, SpecialWords, reader_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NAME, _ASKED, _SAID = "pr0be_call", "Qu3stion", "Answ3r"
_ARGUMENTS = {"c1ty": "K\u00f6ln am Rhein", "num8er": 317}
_SCHEMA = {"type": "object", "properties": {"c1ty": {"type": "string"}, "num8er": {"type": "integer"}}}
_TOOL = {"type": "function", "function": {"name": _NAME, "description": "A probe", "parameters": _SCHEMA}}
_IDS = ("abcdefgh1", f"functions.{_NAME}:0")
_SHOWN = 400  # characters of a template's call in a message
_PLAIN_WORDS = SpecialWords(SimpleNamespace(added_tokens_decoder={}), ())


@dataclass(frozen=True)
class CallFamily:
    """How a checkpoint writes calls.

    as_text: whether its template takes the arguments of earlier calls as JSON in a text. renders: whether it writes
    earlier calls at all; where it does not they are put into the content. describes: whether it tells the model what
    tools there are; where it does not that is put into the system's message.
    """

    dialect: Dialect
    as_text: bool = False
    renders: bool = True
    describes: bool = True


@dataclass(frozen=True)
class NoFamily:
    """None that is known. rendered: what the template made of a call; None where it has no place for tools."""

    rendered: str | None = None


def family_of(tokenizer: PreTrainedTokenizerBase, tools: list[dict[str, Any]] | None) -> CallFamily | NoFamily:
    """How the model writes calls, by its chat template."""
    try:
        template = str(tokenizer.get_chat_template(None, tools=tools))
    except ValueError:  # there is none
        return NoFamily()
    named = getattr(tokenizer, "special_tokens_map", {}).items()
    names = tuple(sorted((name, str(word)) for name, word in named))
    special = frozenset(t.content for t in tokenizer.added_tokens_decoder.values() if _may_mark(t.content))
    return _family_of(template, names, special)


def _may_mark(name: str) -> bool:
    return any(name in word for dialect in DIALECTS for word in dialect.words)


@functools.lru_cache(maxsize=32)
def _family_of(template: str, names: tuple[tuple[str, str], ...], special: frozenset[str]) -> CallFamily | NoFamily:
    tools = [_TOOL]
    with_tools = _tail(rendered_with(template, names, _turns(), tools), whole=True)
    if with_tools is None:
        return NoFamily()
    describes = with_tools != _tail(rendered_with(template, names, _turns(), None), whole=True)
    answered = _tail(rendered_with(template, names, [*_turns(), {"role": "assistant", "content": _SAID}], tools))
    head = (answered or "").partition(_SAID)[0]
    unread = None
    for as_text in (False, True):
        for text in _rendered_calls(template, names, tools, as_text):
            found = [each for place, row in enumerate(DIALECTS) if (each := _read(row, place, text, head)) is not None]
            if found:
                return CallFamily(DIALECTS[min(found)[1]], as_text, describes=describes)
            unread = unread or text
    if not describes:
        return NoFamily()
    if unread is not None:
        return NoFamily(unread[:_SHOWN])
    taught = _taught(with_tools) or _taught("\n".join(special))
    return NoFamily("") if taught is None else CallFamily(taught, renders=False)


def _turns() -> list[dict[str, Any]]:
    return [{"role": "user", "content": _ASKED}]


def _tail(text: str | None, *, whole: bool = False) -> str | None:
    """What a template writes after the question."""
    return text if text is None or whole else text.rpartition(_ASKED)[2]


def _rendered_calls(
    template: str, names: tuple[tuple[str, str], ...], tools: list[dict[str, Any]], as_text: bool
) -> Iterator[str]:
    """What the template makes of a call, where it makes anything of it."""
    for number in _IDS:
        arguments = json.dumps(_ARGUMENTS, ensure_ascii=False) if as_text else _ARGUMENTS
        call = {"id": number, "type": "function", "function": {"name": _NAME, "arguments": arguments}}
        calling = {"role": "assistant", "content": "", "tool_calls": [call]}
        result = {"role": "tool", "content": "R3sult", "tool_call_id": number, "name": _NAME}
        for more in ([], [result]):
            text = _tail(rendered_with(template, names, [*_turns(), calling, *more], tools))
            if text is not None and _NAME in text and all(str(each)[:4] in text for each in _ARGUMENTS.values()):
                yield text.partition("R3sult")[0]


def _read(row: Dialect, place: int, text: str, head: str) -> tuple[int, int] | None:
    """How much of a text is no call when it is read in a dialect, and the row's place; None if it does not have the
    call."""
    if not row.models:
        return None
    if row.bare:
        text = text.removeprefix(head)
    if row.channel:
        reader = OutputReader(reader_of(_PLAIN_WORDS, HARMONY, False), None)
    else:
        alone = replace(row, also=())
        reader = OutputReader(None, CallParser(alone, {_NAME: _SCHEMA}, words=_PLAIN_WORDS))
    content, calls = content_and_calls([*reader.push(text), *reader.finish()])
    if [call.name for call in calls] != [_NAME]:
        return None
    try:
        same = json.loads(calls[0].arguments) == _ARGUMENTS
    except ValueError:
        return None
    return (len(content or ""), place) if same else None


def _taught(text: str) -> Dialect | None:
    """The dialect whose words a text has; of several the one of which it has all, or else most."""
    found = []
    for place, row in enumerate(DIALECTS):
        marks = _marks(row)
        if row.models and marks and marks[0] in text:
            missing = [mark for mark in marks if mark not in text]
            found.append((bool(missing), -sum(map(len, marks)) + sum(map(len, missing)), place))
    return DIALECTS[min(found)[2]] if found else None


def _marks(row: Dialect) -> Sequence[str]:
    """The words by which a dialect is known: first that which marks a call."""
    form, made = row.arguments, list[str]()
    more = (form.before_key, form.after_value) if isinstance(form, TaggedArguments) else ()
    first = row.tag if row.bare else row.opened + row.before_name
    for text in (first, row.closed, row.after_call, row.after_name if row.models and not row.bare else "", *more):
        made += [mark for chunk in chunks(text) if len(mark := chunk.strip("[](){}\"':>,=")) > 3]
    return made if not isinstance(form, LiteralArguments) or row.opened or row.tag else ()
