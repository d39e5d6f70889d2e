"""Values of arguments that are written between words, without quotes: what a schema says of their types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ipex_assist.serve.tools.dialects import LiteralArguments
from ipex_assist.serve.tools.literals import NotALiteral, arguments_of

_DEEPEST = 8  # of references
_PYTHON = LiteralArguments()
_KINDS = ((bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"), (list, "array"), (dict, "object"))


def kind_of(value: Any) -> str:
    """JSON Schema's type of a value."""
    return next((name for kind, name in _KINDS if isinstance(value, kind)), "null")


def kinds(schema: Any, root: Any, depth: int = 0) -> frozenset[str]:
    """The types that a schema allows; none where it does not say."""
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return frozenset()
    if isinstance(reference := schema.get("$ref"), str):
        return kinds(referred(root, reference), root, depth + 1)
    if "type" in schema:
        listed = schema["type"]
        return frozenset(listed if isinstance(listed, list) else [listed])
    if "const" in schema or isinstance(schema.get("enum"), list):
        return frozenset(map(kind_of, schema["enum"] if "enum" in schema else [schema["const"]]))
    for name in ("anyOf", "oneOf"):
        if isinstance(schema.get(name), list):
            found = [kinds(each, root, depth + 1) for each in schema[name]]
            return frozenset().union(*found) if all(found) else frozenset()
    if isinstance(schema.get("allOf"), list):
        return next(filter(None, (kinds(each, root, depth + 1) for each in schema["allOf"])), frozenset())
    return frozenset()


def referred(root: Any, reference: str) -> Any:
    """What a reference within a schema leads to; None where that is nothing."""
    place = root
    if not reference.startswith("#"):
        return None
    for part in filter(None, reference[1:].split("/")):
        name = part.replace("~1", "/").replace("~0", "~")
        place = place.get(name) if isinstance(place, Mapping) else None
    return place


def value_of(schema: Any, key: str, text: str, is_json: bool = False) -> Any:
    """What an argument is that was written as `text`. is_json: the form says that it is no text."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    wanted = kinds(properties.get(key), schema) if isinstance(properties, Mapping) else frozenset()
    if wanted == {"string"} and not is_json:
        return text
    found, value = _literal(text)
    kind = kind_of(value)
    fits = not wanted or kind in wanted or (kind == "integer" and "number" in wanted)
    if found and kind != "string" and (fits or "string" not in wanted or is_json):
        return value
    return value if found and is_json else text


def _literal(text: str) -> tuple[bool, Any]:
    """Whether a text is a value in JSON or in Python's notation, and which."""
    try:
        return True, json.loads(text, strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError):
        pass
    try:
        return True, arguments_of(_PYTHON, f"value={text.strip()}")["value"]
    except (NotALiteral, KeyError, IndexError):
        return False, None


def _refuse(constant: str) -> None:
    raise ValueError(constant)
