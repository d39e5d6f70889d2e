"""Calls that a text must consist of, as a grammar: in the family's own form, arguments by the functions' schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ipex_assist.env.errors import UsageError
from ipex_assist.speculative.grammar import GrammarSpec
from ipex_assist.speculative.llguidance_grammar import JSON_STYLE, literal


@dataclass(frozen=True)
class CallForm:
    """Texts around and between calls, and of a call around its name and its arguments.

    several: whether an answer may hold more than one.
    """

    beginning: str
    between: str
    end: str
    before_name: str
    before_arguments: str
    behind_arguments: str
    several: bool = True


HERMES = CallForm("", "\n", "", '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>")
LLAMA = CallForm("", "", "", '{"name": "', '", "parameters": ', "}", several=False)
MISTRAL = CallForm("[TOOL_CALLS] [", ", ", "]", '{"name": "', '", "arguments": ', "}")
MISTRAL_NAMED = CallForm("", "", "", "[TOOL_CALLS]", "[ARGS]", "")


def forced(form: CallForm, schemas: Mapping[str, Any], markers: Mapping[int, str], *, several: bool) -> GrammarSpec:
    """The grammar of one call, or of one and more, of the functions in `schemas`, by their names.

    markers: special tokens by their ids: what they stand for is written by them, and by nothing else.
    """
    more = f"({_texts(form.between, markers)} call)*" if several and form.several else ""
    lines = [
        "start: calls",
        f"calls: {_texts(form.beginning, markers)} call {more} {_texts(form.end, markers)}",
        "call: " + " | ".join(f"call_{number}" for number in range(len(schemas))),
    ]
    for number, (name, schema) in enumerate(schemas.items()):
        before = _texts(f"{form.before_name}{json.dumps(name)[1:-1]}{form.before_arguments}", markers)
        behind = _texts(form.behind_arguments, markers)
        lines.append(f"call_{number}: {before} arguments_{number} {behind}")
        lines.append(f"arguments_{number}: %json {_json(schema)}")
    return GrammarSpec("lark", "\n".join(lines) + "\n")


def or_answer(calls: GrammarSpec, response: GrammarSpec) -> GrammarSpec:
    """Calls, or an answer in JSON. UsageError for an answer of another kind."""
    if response.kind == "json_object":
        schema: Any = {"type": "object"}
    elif response.kind == "json_schema":
        schema = json.loads(response.value)
    else:
        raise UsageError("guided texts other than JSON cannot be had with tools: leave either out")
    rules = calls.value.replace("start: calls\n", "start: calls | answer\n", 1)
    return GrammarSpec("lark", f"{rules}answer: %json {_json(schema)}\n")


def _json(schema: Any) -> str:
    return json.dumps({**schema, "x-guidance": JSON_STYLE})


def _texts(text: str, markers: Mapping[int, str]) -> str:
    """A fixed text as Lark has it, special tokens by their numbers."""
    for number, word in markers.items():
        before, found, behind = text.partition(word)
        if found:
            return f"{_texts(before, markers)} <[{number}]> {_texts(behind, markers)}".strip()
    return literal(text) if text else ""
