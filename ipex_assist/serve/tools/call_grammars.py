"""Grammars of tool calls in a model's dialect, with arguments by JSON schemas: forced, or within free text.

They are made of the same rows as the parser reads (dialects.py), so that what is forced is what is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from ipex_assist.serve.backend import InvalidField
from ipex_assist.serve.tools.dialects import (
    ID,
    INDEX,
    CallObject,
    Dialect,
    JsonArguments,
    LiteralArguments,
    TaggedArguments,
)
from ipex_assist.serve.tools.literal_grammars import literal_rule
from ipex_assist.serve.tools.tagged_values import kinds, referred
from ipex_assist.speculative.choosing.grammar import GrammarSpec
from ipex_assist.speculative.choosing.llguidance_grammar import JSON_STYLE, literal

# An answer that starts like this is parsed as a call if calls are the whole answer (Llama 3).
_LIKE_A_CALL = r'\{[ \t\r\n]*"(name|parameters|arguments|type)"'
_LIKE_A_LITERAL_CALL = r"\[[ \t\r\n]*[\w.-]+\("
_SPACE = r"[ \t\r\n]*"
_PLACES = {INDEX: "/[0-9]+/", ID: "/[a-zA-Z0-9_-]{1,40}/"}
_ANY_TEXT = "/(?s:.*)/"


def forced_calls(
    dialect: Dialect, schemas: Mapping[str, Any], markers: Mapping[int, str], *, several: bool
) -> GrammarSpec:
    """Grammar of one call, or of one or more, of the functions in `schemas` (by name).

    markers: special tokens by id; their text must be written as these tokens.
    """
    start = f"start: {_messages_before(markers)} calls\n" if dialect.channel else "start: calls\n"
    return GrammarSpec("lark", start + _calls(dialect, schemas, markers, several=several))


def optional_calls(
    dialect: Dialect, schemas: Mapping[str, Any], markers: Mapping[int, str], others: Iterable[int], *, several: bool
) -> GrammarSpec:
    """Grammar of free text with optional calls, each held to its schema. See `forced_calls`.

    others: special tokens allowed in the text around calls.
    """
    if dialect.channel:
        rules = f"start: {_messages_before(markers)} (calls | final)\nfinal: {_in_channel('final', markers)} TEXT\n"
        return GrammarSpec("lark", f"{rules}TEXT: {_ANY_TEXT}\n" + _calls(dialect, schemas, markers, several=several))
    if not dialect.opener:
        return GrammarSpec("lark", _call_or_text(dialect, schemas, markers))
    opener = next((word for word in markers.values() if dialect.opener.startswith(word)), dialect.opener)
    number = next((number for number, word in markers.items() if word == opener), None)
    numbers = _ranges(others)
    # A dialect with an opening word has all calls after one opener; otherwise each call has its own.
    after = replace(
        dialect,
        opened=dialect.opened.removeprefix(opener),
        before_name=dialect.before_name if dialect.opened else dialect.before_name.removeprefix(opener),
        several=dialect.several and bool(dialect.opened),
    )
    special = f"<[{numbers}]>" if numbers else ""
    by_token = "" if number is None else f"free <[{number}]> | "
    lines = [
        "start: (opened calls)* free" if several else "start: opened calls | free",
        f"free: TEXT ({special} TEXT)*" if special else "free: TEXT",
        f"opened: {by_token}(TEXT {special})* spelt" if special else f"opened: {by_token}spelt",
        # Lazy: it ends where the opener does, and is no other text from there on.
        f"spelt[lazy]: TEXT {literal(opener)}",
        f"TEXT: {_ANY_TEXT}",
    ]
    return GrammarSpec("lark", "\n".join(lines) + "\n" + _calls(after, schemas, markers, several=several))


def calls_or_json(calls: GrammarSpec, response: GrammarSpec, before: str = "") -> GrammarSpec:
    """Grammar of calls, or an answer in JSON; its field is the answer's. InvalidField for another response grammar.
    before: rules of what comes before the answer."""
    schema = _json_schema(response)
    if schema is None:
        raise InvalidField("guided texts other than JSON cannot be had with tools: leave either out", response.field)
    rules = re.sub(r"^start: (.*)calls$", r"start: \1(calls | answer)", calls.value, count=1, flags=re.MULTILINE)
    return GrammarSpec(
        "lark", f"{rules}answer: {before} json_answer\njson_answer: %json {_json(schema)}\n", response.field
    )


def final_message(response: GrammarSpec, markers: Mapping[int, str]) -> GrammarSpec:
    """Grammar of harmony's messages, the last of which is an answer in JSON. Other grammars stay as they are."""
    schema = _json_schema(response)
    if schema is None:
        return response
    rules = f"start: {_messages_before(markers)} {final_head(markers)} answer\nanswer: %json {_json(schema)}\n"
    return GrammarSpec("lark", rules, response.field)


def final_head(markers: Mapping[int, str]) -> str:
    """What comes before an answer in harmony."""
    return _in_channel("final", markers)


def _json_schema(response: GrammarSpec) -> Any:
    """The schema that an answer in JSON has; None where it is something else."""
    if response.kind == "json_object":
        return {"type": "object"}
    return json.loads(response.value) if response.kind == "json_schema" else None


def _in_channel(name: str, markers: Mapping[int, str]) -> str:
    return _lark_literals(f"<|channel|>{name}<|message|>", markers)


def _messages_before(markers: Mapping[int, str]) -> str:
    """Harmony's messages before the one that matters: thoughts, and what is told the user meanwhile."""
    end = _lark_literals("<|end|><|start|>assistant", markers)
    return f"(({_in_channel('analysis', markers)} | {_in_channel('commentary', markers)}) {_ANY_TEXT} {end})*"


def _calls(dialect: Dialect, schemas: Mapping[str, Any], markers: Mapping[int, str], *, several: bool) -> str:
    """Rules of `calls`."""
    more = f"({_lark_literals(dialect.between, markers)} call)*" if several and dialect.several else ""
    lines = [
        f"calls: {_lark_literals(dialect.opened, markers)} call {more} {_lark_literals(dialect.closed, markers)}",
        "call: " + " | ".join(f"call_{number}" for number in range(len(schemas))),
    ]
    form = dialect.arguments
    for number, (name, schema) in enumerate(schemas.items()):
        before, after, end = dialect.before_name, dialect.after_name, dialect.after_call
        if isinstance(form, CallObject):
            before, after, end = before + form.opened, form.after_name, "}" + end
        head = _lark_literals(f"{before}{json.dumps(name)[1:-1]}{after}", markers)
        lines.append(f"call_{number}: {head} arguments_{number} {_lark_literals(end, markers)}")
        lines += _argument_rules(dialect, f"arguments_{number}", schema, markers)
    return "\n".join(lines) + "\n"


def _argument_rules(dialect: Dialect, rule: str, schema: Any, markers: Mapping[int, str]) -> Iterator[str]:
    """Rules of the arguments of one function."""
    form = dialect.arguments
    if isinstance(form, (JsonArguments, CallObject)):
        yield f"{rule}: %json {_json(schema)}"
        return
    properties = schema.get("properties") or {}
    required = schema.get("required") or ()
    parts = []
    for place, (key, each) in enumerate(properties.items()):
        needed = key in required
        if isinstance(form, TaggedArguments):
            value = f"{rule}_{place}"
            yield from _tagged_value(form, value, key, each, schema, markers)
            parts.append(value if needed else f"{value}?")
    if isinstance(form, TaggedArguments):
        if not properties and schema.get("additionalProperties") is not False:
            yield f"{rule}: {rule}_any*"
            key = _lark_literals(form.before_key, markers)
            after = _lark_literals(form.after_key, markers)
            yield f"{rule}_any: {key} /[a-zA-Z0-9_.-]{{1,64}}/ {after} {rule}_text"
            yield from _text_value(form, f"{rule}_text", _ANY_TEXT, markers)
        else:
            yield f"{rule}: {' '.join(parts)}" if parts else f'{rule}: ""'
        return
    yield from _literal_arguments(form, rule, schema, markers)


def _literal_arguments(form: LiteralArguments, rule: str, schema: Any, markers: Mapping[int, str]) -> Iterator[str]:
    """Named literals, with a comma between two: the first that is there has none before it."""
    properties = schema.get("properties") or {}
    closed, separator = literal(form.closed), literal(form.separator)
    names = []
    for place, (key, each) in enumerate(properties.items()):
        names.append((f"{rule}_{place}", key in (schema.get("required") or ())))
        yield from literal_rule(form, f"{rule}_{place}_value", each, schema, markers)
        yield f"{rule}_{place}: {literal(key + form.assigned)} {rule}_{place}_value"
    if not properties and schema.get("additionalProperties") is not False:
        yield from literal_rule(form, f"{rule}_any_value", {}, schema, markers)
        yield f"{rule}_any: /[a-zA-Z_][a-zA-Z0-9_]{{0,63}}/ {literal(form.assigned)} {rule}_any_value"
        yield f"{rule}: ({rule}_any ({separator} {rule}_any)*)? {closed}"
        return
    # `rest_i`: the arguments from the i-th on after another one.
    for place in range(len(names), -1, -1):
        if place == len(names):
            yield f'{rule}_rest_{place}: ""'
        else:
            name, needed = names[place]
            this = f"{separator} {name} {rule}_rest_{place + 1}"
            yield f"{rule}_rest_{place}: {this}" if needed else f"{rule}_rest_{place}: {this} | {rule}_rest_{place + 1}"
    firsts = []
    for place, (name, needed) in enumerate(names):
        firsts.append(f"{name} {rule}_rest_{place + 1}")
        if needed:
            break
    else:
        firsts.append('""')
    yield f"{rule}: ({' | '.join(firsts)}) {closed}"


def _tagged_value(
    form: TaggedArguments, rule: str, key: str, schema: Any, root: Any, markers: Mapping[int, str]
) -> Iterator[str]:
    """An argument with the words around it."""
    resolved = referred(root, schema["$ref"]) if isinstance(schema, Mapping) and "$ref" in schema else schema
    is_text = kinds(resolved, root) == {"string"}
    after = form.after_key if is_text or not form.other else form.other
    head = _lark_literals(f"{form.before_key}{key}{after}", markers)
    yield f"{rule}: {head} {rule}_value"
    if is_text:
        yield from _text_value(form, f"{rule}_value", _text_pattern(resolved), markers)
        return
    shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
    schema = {**shared, **schema} if isinstance(schema, Mapping) else {}
    yield f"{rule}_value: {rule}_json {_lark_literals(form.after_value, markers)}"
    yield f"{rule}_json: %json {_json(schema)}"


def _text_pattern(schema: Any) -> str | list[str]:
    """What a text must be: a regular expression, or one of some texts."""
    for name in ("enum", "const"):
        if name in schema:
            return list(schema["enum"]) if name == "enum" else [schema["const"]]
    if isinstance(pattern := schema.get("pattern"), str):
        begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
        body = pattern[begins : len(pattern) - ends].replace("/", "\\/")
        return f"/{'' if begins else '(?s:.*)'}({body}){'' if ends else '(?s:.*)'}/"
    least, most = schema.get("minLength") or 0, schema.get("maxLength")
    return _ANY_TEXT if not least and most is None else f"/(?s:.{{{least},{'' if most is None else most}}})/"


def _text_value(
    form: TaggedArguments, rule: str, pattern: str | list[str], markers: Mapping[int, str]
) -> Iterator[str]:
    """A text and the word after it."""
    after = form.after_value
    if isinstance(pattern, list):
        texts = " | ".join(map(literal, pattern))
        yield f"{rule}: ({texts}) {_lark_literals(after, markers)}"
        return
    closed = after.strip()
    if any(closed.startswith(word) for word in markers.values()):
        yield f"{rule}: {pattern} {_lark_literals(after.lstrip(), markers)}"
        return
    text = after[: after.index(closed) + len(closed)]
    rest = _lark_literals(after[len(text) :], markers)
    yield f"{rule}: {rule}_lazy {rest}"
    # Lazy: it ends where the word does, and is no other text from there on.
    yield f"{rule}_lazy[lazy]: {pattern} {literal(text)}"


def _call_or_text(dialect: Dialect, schemas: Mapping[str, Any], markers: Mapping[int, str]) -> str:
    """Rules for an answer that is a call, or text that does not start like one; white space is free.

    All text before the arguments is one lexeme in each alternative, so that the lexer can keep both until they differ.
    """
    form = dialect.arguments
    number = next((number for number, word in markers.items() if word == dialect.tag), None)
    tag = f"({re.escape(dialect.tag)}{_SPACE})?" if dialect.tag else ""
    like, end = _LIKE_A_CALL, r"\}"
    if isinstance(form, LiteralArguments):
        like, end = _LIKE_A_LITERAL_CALL, re.escape(dialect.closed)
    lines = [
        f"start: {'' if number is None else f'<[{number}]>? '}call | TEXT",
        f"TEXT: {_ANY_TEXT} & ~/{_SPACE}{tag}{like}(?s:.*)/",
        "call: " + " | ".join(f"HEAD_{number} arguments_{number} END" for number in range(len(schemas))),
        f"END: /{_SPACE}{end}/",
    ]
    for number, (name, schema) in enumerate(schemas.items()):
        if isinstance(form, CallObject):
            head = f"{form.opened}{name}{form.after_name}"
        else:
            head = f"{dialect.opened}{name}{dialect.after_name}"
        words = re.findall(r'"[^"]*"|[\w.-]+|\S', head)
        lines.append(f"HEAD_{number}: /{_SPACE}{tag}{_SPACE.join(map(re.escape, words))}{_SPACE}/")
        lines += _argument_rules(dialect, f"arguments_{number}", schema, markers)
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
    """Fixed text as Lark literals, with special tokens by id and places by what may stand there."""
    for word, inner in [*((word, f"<[{number}]>") for number, word in markers.items()), *_PLACES.items()]:
        before, found, after = text.partition(word)
        if found:
            return f"{_lark_literals(before, markers)} {inner} {_lark_literals(after, markers)}".strip()
    return literal(text) if text else ""
