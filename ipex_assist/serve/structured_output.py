"""Structured output: from the fields of a request to a grammar."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ipex_assist.env.errors import UsageError
from ipex_assist.serve.backend import InvalidField
from ipex_assist.serve.json_schemas import adapt_schema
from ipex_assist.speculative.choosing.grammar import GrammarSpec

# vLLM's fields, and their names in its newer `structured_outputs`.
_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}


def grammar_of(fields: Mapping[str, Any]) -> GrammarSpec | None:
    """Return the grammar that a request's fields ask for; None without one.

    fields: the JSON body or its part with `response_format` (OpenAI's), `guided_json`, `guided_regex`, `guided_choice`,
    `guided_grammar` (llguidance's dialect of Lark), or `structured_outputs` with json, regex, choice, grammar or
    json_object (vLLM's), or `json_schema` (llama-server's); others are ignored. Raises InvalidField (status 400) with
    the reason. The cost of the grammar itself is checked by `grammar_checker.GrammarChecker`.
    """
    found = {name: spec for name, spec in _asked(fields) if spec is not None}
    if len(found) > 1:
        raise InvalidField(f"{' and '.join(found)} are both given: a text can be held to one of them", list(found)[1])
    return next((replace(spec, field=name) for name, spec in found.items()), None)


def json_schema(schema: Any, field: str, param: str | None = None) -> GrammarSpec:
    """A grammar for JSON by a schema: an object, true, or a JSON string. Raises InvalidField.

    field: in messages. param: in errors, if they name a shorter path.
    """
    param = param or field
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise InvalidField(f"{field}: this is no JSON ({error})", param) from None
    try:
        return GrammarSpec("json_schema", _written(adapt_schema(schema)), param)
    except (UsageError, ValueError, RecursionError) as error:
        raise InvalidField(f"{field}: {error}", param) from None


def _asked(fields: Mapping[str, Any]) -> list[tuple[str, GrammarSpec | None]]:
    asked = [("response_format", _response_format(fields.get("response_format")))]
    asked.append(("json_schema", _guided("json_schema", "json", fields.get("json_schema"))))
    asked += [(name, _guided(name, kind, fields.get(name))) for name, kind in _GUIDED.items()]
    structured = fields.get("structured_outputs")
    if structured is not None:
        if not isinstance(structured, Mapping):
            raise InvalidField("structured_outputs must be an object", "structured_outputs")
        for kind in _GUIDED.values():
            name = f"structured_outputs.{kind}"
            asked.append((name, _guided(name, kind, structured.get(kind))))
        if structured.get("json_object"):
            asked.append(("structured_outputs.json_object", GrammarSpec("json_object")))
    return asked


def _response_format(value: Any) -> GrammarSpec | None:
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        schema = value.get("schema")
        if schema is None:
            return GrammarSpec("json_object")
        return json_schema(schema, "response_format.schema", "response_format")
    if kind == "json_schema":
        named = value.get("json_schema")
        schema = named.get("schema") if isinstance(named, Mapping) else None
        if schema is None:
            raise InvalidField("response_format.json_schema has no schema", "response_format")
        return json_schema(schema, "response_format.json_schema.schema", "response_format")
    raise InvalidField(
        f"response_format.type is {str(kind)[:100]!r}; there are text, json_object and json_schema", "response_format"
    )


def _guided(name: str, kind: str, value: Any) -> GrammarSpec | None:
    if value is None:
        return None
    if kind == "json":
        return json_schema(value, name)
    if kind == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
            raise InvalidField(f"{name} must be a list of one text or more", name)
    elif not isinstance(value, str) or not value:
        raise InvalidField(f"{name} must be a text, and not an empty one", name)
    try:
        written = _written(value)
    except UsageError as error:
        raise InvalidField(f"{name}: {error}", name) from None
    if kind == "choice":
        return GrammarSpec("choice", written)
    return GrammarSpec("regex" if kind == "regex" else "lark", value)


def _written(value: Any) -> str:
    """Serialise as JSON. Raises UsageError for lone surrogates, ValueError for NaN."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:
        raise UsageError("a grammar holds half a surrogate pair, which is no character") from None
    return text
