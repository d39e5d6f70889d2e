"""Grammars of tool calls in a model family's syntax, with arguments by JSON schemas: forced, or within free text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ipex_assist.serve.backend import InvalidField
from ipex_assist.serve.tools.call_parsers import HERMES_CLOSE, HERMES_OPEN, LLAMA_TAG, MISTRAL_ARGS, MISTRAL_CALLS
from ipex_assist.speculative.choosing.grammar import GrammarSpec
from ipex_assist.speculative.choosing.llguidance_grammar import JSON_STYLE, literal

# An answer that starts like this is parsed as a call if calls are the whole answer (Llama 3).
_LIKE_A_CALL = r'\{[ \t\r\n]*"(name|parameters|arguments|type)"'
_SPACE = r"[ \t\r\n]*"


@dataclass(frozen=True)
class CallSyntax:
    """The fixed text around and between calls, and around a call's name and arguments.

    several: whether an answer may hold more than one call. opener: marks a call within text; without an opener calls
    are the whole answer, optionally after `tag`.
    """

    beginning: str
    between: str
    end: str
    before_name: str
    before_arguments: str
    after_arguments: str
    several: bool = True
    opener: str = ""
    tag: str = ""


HERMES = CallSyntax(
    "", "\n", "", f'{HERMES_OPEN}\n{{"name": "', '", "arguments": ', f"}}\n{HERMES_CLOSE}", opener=HERMES_OPEN
)
LLAMA = CallSyntax("", "", "", '{"name": "', '", "parameters": ', "}", several=False, tag=LLAMA_TAG)
MISTRAL = CallSyntax(f"{MISTRAL_CALLS} [", ", ", "]", '{"name": "', '", "arguments": ', "}", opener=MISTRAL_CALLS)
MISTRAL_NAMED = CallSyntax("", "", "", MISTRAL_CALLS, MISTRAL_ARGS, "", opener=MISTRAL_CALLS)


def forced_calls(
    form: CallSyntax, schemas: Mapping[str, Any], markers: Mapping[int, str], *, several: bool
) -> GrammarSpec:
    """Grammar of one call, or of one or more, of the functions in `schemas` (by name).

    markers: special tokens by id; their text must be written as these tokens.
    """
    return GrammarSpec("lark", "start: calls\n" + _calls(form, schemas, markers, several=several))


def optional_calls(
    form: CallSyntax, schemas: Mapping[str, Any], markers: Mapping[int, str], others: Iterable[int], *, several: bool
) -> GrammarSpec:
    """Grammar of free text with optional calls, each held to its schema. See `forced_calls`.

    others: special tokens allowed in the text around calls.
    """
    if not form.opener:
        return GrammarSpec("lark", _call_or_text(form, schemas, markers))
    number = next((number for number, word in markers.items() if word == form.opener), None)
    numbers = _ranges(others)
    # A syntax with a beginning has all calls after one opener; otherwise each call has its own.
    after = replace(
        form,
        beginning=form.beginning.removeprefix(form.opener),
        before_name=form.before_name.removeprefix(form.opener),
        several=form.several and bool(form.beginning),
    )
    special = f"<[{numbers}]>" if numbers else ""
    by_token = "" if number is None else f"free <[{number}]> | "
    rules = [
        "start: (opened calls)* free" if several else "start: opened calls | free",
        f"free: TEXT ({special} TEXT)*" if special else "free: TEXT",
        f"opened: {by_token}(TEXT {special})* spelt" if special else f"opened: {by_token}spelt",
        # Lazy: it ends where the opener does, and is no other text from there on.
        f"spelt[lazy]: TEXT {literal(form.opener)}",
        "TEXT: /(?s:.*)/",
    ]
    return GrammarSpec("lark", "\n".join(rules) + "\n" + _calls(after, schemas, markers, several=several))


def calls_or_json(calls: GrammarSpec, response: GrammarSpec) -> GrammarSpec:
    """Grammar of calls, or an answer in JSON; its field is the answer's. InvalidField for another response grammar."""
    if response.kind == "json_object":
        schema: Any = {"type": "object"}
    elif response.kind == "json_schema":
        schema = json.loads(response.value)
    else:
        raise InvalidField("guided texts other than JSON cannot be had with tools: leave either out", response.field)
    rules = calls.value.replace("start: calls\n", "start: calls | answer\n", 1)
    return GrammarSpec("lark", f"{rules}answer: %json {_json(schema)}\n", response.field)


def _calls(form: CallSyntax, schemas: Mapping[str, Any], markers: Mapping[int, str], *, several: bool) -> str:
    """Rules of `calls`."""
    more = f"({_lark_literals(form.between, markers)} call)*" if several and form.several else ""
    lines = [
        f"calls: {_lark_literals(form.beginning, markers)} call {more} {_lark_literals(form.end, markers)}",
        "call: " + " | ".join(f"call_{number}" for number in range(len(schemas))),
    ]
    for number, (name, schema) in enumerate(schemas.items()):
        before = _lark_literals(f"{form.before_name}{json.dumps(name)[1:-1]}{form.before_arguments}", markers)
        after = _lark_literals(form.after_arguments, markers)
        lines.append(f"call_{number}: {before} arguments_{number} {after}")
        lines.append(f"arguments_{number}: %json {_json(schema)}")
    return "\n".join(lines) + "\n"


def _call_or_text(form: CallSyntax, schemas: Mapping[str, Any], markers: Mapping[int, str]) -> str:
    """Rules for an answer that is a call, or text that does not start like one; white space is free.

    All text before the arguments is one lexeme in each alternative, so that the lexer can keep both until they differ.
    """
    number = next((number for number, word in markers.items() if word == form.tag), None)
    tag = f"({re.escape(form.tag)}{_SPACE})?"
    lines = [
        f"start: {'' if number is None else f'<[{number}]>? '}call | TEXT",
        f"TEXT: /(?s:.*)/ & ~/{_SPACE}{tag}{_LIKE_A_CALL}(?s:.*)/",
        "call: " + " | ".join(f"HEAD_{number} arguments_{number} END" for number in range(len(schemas))),
        f"END: /{_SPACE}{re.escape(form.after_arguments)}/",
    ]
    for number, (name, schema) in enumerate(schemas.items()):
        words = re.findall(r'"[^"]*"|\S', f"{form.before_name}{name}{form.before_arguments}")
        lines.append(f"HEAD_{number}: /{_SPACE}{tag}{_SPACE.join(map(re.escape, words))}{_SPACE}/")
        lines.append(f"arguments_{number}: %json {_json(schema)}")
    return "\n".join(lines) + "\n"


def _ranges(numbers: Iterable[int]) -> str:
    """Token ids as Lark ranges: 1,4-7."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _json(schema: Any) -> str:
    return json.dumps({**schema, "x-guidance": JSON_STYLE})


def _lark_literals(text: str, markers: Mapping[int, str]) -> str:
    """Fixed text as Lark literals, with special tokens by id."""
    for number, word in markers.items():
        before, found, after = text.partition(word)
        if found:
            return f"{_lark_literals(before, markers)} <[{number}]> {_lark_literals(after, markers)}".strip()
    return literal(text) if text else ""
