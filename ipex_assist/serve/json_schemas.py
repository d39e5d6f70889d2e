"""Adapts JSON schemas of requests: what llguidance enforces too loosely is rewritten, or rejected."""

from __future__ import annotations

from typing import Any

from ipex_assist.env.errors import UsageError

DEEPEST = 200  # nesting of objects and lists; named ones count twice; llguidance has its own limit

# By $schema; without one it is 2020-12.
_DIALECTS = {
    "json-schema.org/draft-04/schema": (4, "http://json-schema.org/draft-04/schema#"),
    "json-schema.org/draft-06/schema": (6, "http://json-schema.org/draft-06/schema#"),
    "json-schema.org/draft-07/schema": (7, "http://json-schema.org/draft-07/schema#"),
    "json-schema.org/draft/2019-09/schema": (2019, "https://json-schema.org/draft/2019-09/schema"),
    "json-schema.org/draft/2020-12/schema": (2020, "https://json-schema.org/draft/2020-12/schema"),
}
_DATA = {"const", "enum"}  # keywords whose values are data, not schemas
_NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
_COUNTS = {"minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"}

_DAY = (
    r"[0-9]{4}-(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|[0-9]{4}-(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    r"|[0-9]{4}-02-(0[1-9]|1[0-9]|2[0-8])"
    r"|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29"
)
# Leap seconds are left out: whether there may be one depends on the offset.
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
# llguidance knows these formats, but allows 29 February in every year and second 60 in every minute.
FORMATS = {"date": f"^({_DAY})$", "time": f"^{_TIME}$", "date-time": f"^({_DAY})[Tt]{_TIME}$"}

# JSON Schema uses ECMA 262 regular expressions, whose `\s` and `.` differ from other dialects.
_SPACE = "\\t\\n\\x0b\\x0c\\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_LINE_ENDS = "\\n\\r\u2028\u2029"


def adapt_schema(schema: Any) -> Any:
    """Return a schema that llguidance enforces at least as strictly as meant; some valid texts may be excluded.

    Raises UsageError if that is not possible.
    """
    if isinstance(schema, bool):
        if not schema:
            raise UsageError("the JSON schema `false` allows nothing")
        return {}
    if not isinstance(schema, dict):
        raise UsageError(f"a JSON schema is an object, and this is a {type(schema).__name__}")
    schema = {key: value for key, value in schema.items() if key != "x-guidance"}  # llguidance's own settings
    dialect, name = _dialect(schema.get("$schema"))
    if "$schema" in schema:
        schema["$schema"] = name
    return _adapted(schema, dialect, 0)


def _dialect(name: Any) -> tuple[int, str]:
    if name is None:
        return 2020, ""
    plain = str(name).removeprefix("http://").removeprefix("https://").rstrip("#")
    if plain not in _DIALECTS:
        raise UsageError(f"$schema is {str(name)[:100]!r}; known are {', '.join(_DIALECTS)}")
    return _DIALECTS[plain]


def _adapted(value: Any, dialect: int, depth: int) -> Any:
    if depth > DEEPEST:
        raise UsageError("the JSON schema is nested too deeply")
    if isinstance(value, list):
        return [_adapted(each, dialect, depth + 1) for each in value]
    if not isinstance(value, dict):
        return value
    _refuse(value, dialect)
    made = {key: _entry(key, each, dialect, depth + 1) for key, each in value.items()}
    pattern = FORMATS.get(str(made.get("format")))
    if pattern is not None:
        del made["format"]
        if "pattern" in made:
            others = made.get("allOf", [])
            if not isinstance(others, list):
                raise UsageError("allOf must be a list of schemas")
            made["allOf"] = [*others, {"pattern": pattern}]
        else:
            made["pattern"] = pattern
    return made


def _entry(key: str, value: Any, dialect: int, depth: int) -> Any:
    if key in _DATA:
        return value
    if key in _NAMED and isinstance(value, dict):
        known = {name: _adapted(each, dialect, depth + 1) for name, each in value.items()}
        return {_ecma(name): each for name, each in known.items()} if key == "patternProperties" else known
    if key == "pattern" and isinstance(value, str):
        return _ecma(value)
    if key in _COUNTS and isinstance(value, float) and value.is_integer():
        return int(value)
    return _adapted(value, dialect, depth)


def _refuse(schema: dict[str, Any], dialect: int) -> None:
    if dialect <= 7 and isinstance(schema.get("$ref"), str) and ("$id" in schema or "id" in schema):
        raise UsageError("a schema with both $ref and $id is not supported before draft 2019-09")
    content = [key for key in ("contentEncoding", "contentMediaType") if isinstance(schema.get(key), str)]
    if dialect == 7 and content:
        raise UsageError(f"{content[0]} is not supported in draft 7, where it is more than a remark")


def _ecma(pattern: str) -> str:
    """Convert an ECMA 262 regular expression for llguidance."""
    made, inside, place = [], False, 0
    while place < len(pattern):
        character = pattern[place]
        both = pattern[place : place + 2]
        if character == "\\":
            place += 2
            if both == "\\S" and inside:
                raise UsageError(f"the pattern {pattern[:100]!r} has \\S in brackets, which is not supported")
            space = {"\\s": _SPACE if inside else f"[{_SPACE}]", "\\S": f"[^{_SPACE}]"}
            made.append(space.get(both, both))
            continue
        place += 1
        if character == "." and not inside:
            made.append(f"[^{_LINE_ENDS}]")
            continue
        inside = character == "[" or (inside and character != "]")
        made.append(character)
    return "".join(made)
