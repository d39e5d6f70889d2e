"""Grammar rules of literals in a dialect's notation, by JSON schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ipex_assist.serve.tools.dialects import LiteralArguments, literal_of
from ipex_assist.serve.tools.tagged_values import kinds, referred
from ipex_assist.speculative.choosing.llguidance_grammar import JSON_STYLE, literal

_DEEPEST = 6  # of objects and lists; deeper ones are not held to the schema
_ALL = ("string", "integer", "number", "boolean", "null", "array", "object")


def literal_rule(
    form: LiteralArguments, rule: str, schema: Any, root: Any, markers: Mapping[int, str], depth: int = 0
) -> Iterator[str]:
    """The rules of a value, the first of them named `rule`."""
    schema = schema if isinstance(schema, Mapping) else {}
    for _ in range(_DEEPEST):
        if isinstance(reference := schema.get("$ref"), str):
            schema = referred(root, reference) or {}
    if isinstance(texts := schema.get("enum", [schema["const"]] if "const" in schema else None), list):
        yield f"{rule}: {' | '.join(_written(form, each, markers) for each in texts)}"
        return
    listed = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(listed, list) and listed:
        yield f"{rule}: {' | '.join(f'{rule}_{place}' for place in range(len(listed)))}"
        for place, each in enumerate(listed):
            yield from literal_rule(form, f"{rule}_{place}", each, root, markers, depth + 1)
        return
    if not form.raw:
        yield from _python_rule(rule, schema, root)
        return
    named = [kind for kind in _ALL if kind in kinds(schema, root)] or [
        kind for kind in _ALL if depth < _DEEPEST - 3 or kind not in ("array", "object")
    ]
    yield f"{rule}: {' | '.join(f'{rule}_{kind}' for kind in named)}"
    for kind in named:
        yield from _kind_rule(form, f"{rule}_{kind}", kind, schema, root, markers, depth)


def _python_rule(rule: str, schema: Mapping[str, Any], root: Any) -> Iterator[str]:
    """JSON is read as well, but True, False and None are what models write."""
    wanted = kinds(schema, root)
    words = [
        f'"{word}"' for word, kind in (("True", "boolean"), ("False", "boolean"), ("None", "null")) if kind in wanted
    ]
    others = wanted - {"boolean", "null"}
    if words and not others:
        yield f"{rule}: {' | '.join(words)}"
        return
    yield f"{rule}: {' | '.join([f'{rule}_json', *words])}"
    shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
    narrowed = {**schema, "type": sorted(others)} if words else dict(schema)
    yield f"{rule}_json: %json {json.dumps({**shared, **narrowed, 'x-guidance': JSON_STYLE})}"


def _kind_rule(
    form: LiteralArguments, rule: str, kind: str, schema: Any, root: Any, markers: Mapping[int, str], depth: int
) -> Iterator[str]:
    """Of a value of one type, in a notation without escapes."""
    separator = literal(form.separator)
    if kind == "string":
        yield from _text_rule(form, rule, schema, markers)
    elif kind in ("integer", "number"):
        limits = {name: schema[name] for name in ("minimum", "maximum") if name in schema}
        yield f"{rule}: %json {json.dumps({'type': kind, **limits})}"
    elif kind == "boolean":
        yield f'{rule}: "true" | "false"'
    elif kind == "null":
        yield f'{rule}: "null"'
    elif kind == "array":
        yield from literal_rule(form, f"{rule}_item", schema.get("items"), root, markers, depth + 1)
        least = f"{rule}_item ({separator} {rule}_item)*"
        yield f'{rule}: "[" {least if schema.get("minItems") else f"({least})?"} "]"'
    else:
        properties = schema.get("properties") or {}
        if not properties:
            yield from literal_rule(form, f"{rule}_value", {}, root, markers, depth + 1)
            pair = f"{rule}_key {rule}_value"
            yield f"{rule}_key: /[a-zA-Z0-9_.-]{{1,64}}:/"
            yield f'{rule}: "{{" ({pair} ({separator} {pair})*)? "}}"'
            return
        needed = [key for key in properties if key in (schema.get("required") or ())] or list(properties)
        pairs = []
        for place, key in enumerate(needed):
            yield from literal_rule(form, f"{rule}_{place}", properties[key], root, markers, depth + 1)
            pairs.append(f"{literal(key + ':')} {rule}_{place}")
        optional = [key for key in properties if key not in needed]
        more = ""
        for place, key in enumerate(optional, len(needed)):
            yield from literal_rule(form, f"{rule}_{place}", properties[key], root, markers, depth + 1)
            more += f" ({separator} {literal(key + ':')} {rule}_{place})?"
        yield f'{rule}: "{{" {f" {separator} ".join(pairs)}{more} "}}"'


def _text_rule(form: LiteralArguments, rule: str, schema: Any, markers: Mapping[int, str]) -> Iterator[str]:
    quote = form.quotes[0]
    number = next((number for number, word in markers.items() if word == quote), None)
    if number is not None:
        yield f"{rule}: <[{number}]> /(?s:.*)/ <[{number}]>"
        return
    yield f"{rule}: {literal(quote)} {rule}_lazy"
    yield f"{rule}_lazy[lazy]: /(?s:.*)/ {literal(quote)}"


def _written(form: LiteralArguments, value: Any, markers: Mapping[int, str]) -> str:
    text = literal_of(form, value)
    number = next((number for number, word in markers.items() if word == form.quotes[0]), None)
    if form.raw and number is not None and isinstance(value, str):
        return f"<[{number}]> {literal(value)} <[{number}]>"
    return literal(text)
