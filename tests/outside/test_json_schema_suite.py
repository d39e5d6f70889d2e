"""JSON schemas by the official test suite: what a schema refuses is never written, and what it allows mostly can be.

The whole suite is taken from the folder that JSON_SCHEMA_SUITE names, `json` of the source distribution of jsonschema:
pip download --no-binary jsonschema --no-deps jsonschema. Without it, a selection below.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.speculative.choosing.grammar import GrammarSpec

pytest.importorskip("llguidance")

from ipex_assist.serve.grammar_trial import byte_tokenizer
from ipex_assist.serve.structured_output import grammar_of
from ipex_assist.speculative.choosing.llguidance_grammar import LlguidanceGrammar, initial_matcher

pytestmark = pytest.mark.one_stack

SUITE = os.environ.get("JSON_SCHEMA_SUITE")
TOKENIZER = byte_tokenizer()
# Of each draft of the suite: its $schema, and the least share of allowed documents that can be written, as measured.
DRAFTS = {
    "draft4": ("http://json-schema.org/draft-04/schema#", 0.9),
    "draft6": ("http://json-schema.org/draft-06/schema#", 0.9),
    "draft7": ("http://json-schema.org/draft-07/schema#", 0.9),
    "draft2019-09": ("https://json-schema.org/draft/2019-09/schema", 0.9),
    "draft2020-12": ("https://json-schema.org/draft/2020-12/schema", 0.9),
}


def grammar(schema: Any) -> LlguidanceGrammar:
    """Of a schema, as a request's would be made. IpexAssistError where it is refused."""
    spec = grammar_of({"guided_json": schema})
    assert isinstance(spec, GrammarSpec)
    made = LlguidanceGrammar(initial_matcher(spec, TOKENIZER), 257, frozenset([256]))
    made.mask()
    return made


def writes(start: LlguidanceGrammar, document: Any) -> bool:
    """Whether the document can be written."""
    tokens = [*json.dumps(document, ensure_ascii=False).encode()]
    state = start.copy()
    if state.allows(tokens) < len(tokens):
        return False
    for token in tokens:
        state.advance(token)
    return bool(state.mask()[256])


# (schema, documents that it allows, documents that it does not); of the suite, and some for what only we do.
SELECTION: list[tuple[Any, list[Any], list[Any]]] = [
    (True, [1, "a", {"a": [None]}], []),
    ({"type": "integer"}, [1, -7], [1.5, "1", None, [1]]),
    ({"type": "number"}, [1, 1.5, -2e10], ["1", True]),
    ({"type": ["string", "null"]}, ["", "é", None], [0, []]),
    ({"type": "boolean"}, [True, False], [0, "true"]),
    ({"enum": [6, "foo", [], True, {"foo": 12}]}, [6, "foo", [], True, {"foo": 12}], [7, "fo", None, {"foo": 13}]),
    ({"const": {"a": False}}, [{"a": False}], [{"a": 0}, [False]]),
    ({"minimum": -2, "exclusiveMaximum": 3, "type": "number"}, [-2, 2.99], [-2.0001, 3, 300]),
    ({"multipleOf": 1.5, "type": "number"}, [0, 4.5], [35]),
    ({"minLength": 2, "maxLength": 3, "type": "string"}, ["fo", "foo", "é\U0001f4a9"], ["f", "fooo", "\U0001f4a9"]),
    ({"pattern": "^a*$", "type": "string"}, ["", "aaa"], ["abc"]),
    ({"pattern": "a+"}, ["xxaayy", 12], ["xyz"]),
    ({"pattern": r"^\S$"}, ["a"], [" ", "\ufeff", "\u00a0"]),
    ({"pattern": "^.$"}, ["a", "é"], ["\n", "\r", "\u2028"]),
    ({"properties": {"foo": {"type": "integer"}}}, [{}, {"foo": 1}, {"bar": []}, 3], [{"foo": "a"}]),
    ({"type": "object", "required": ["a"]}, [{"a": 1}], [{}, {"b": 1}]),
    (
        {"properties": {"a": {}}, "additionalProperties": False, "type": "object"},
        [{}, {"a": 1}],
        [{"b": 1}, {"a": 1, "b": 2}],
    ),
    ({"patternProperties": {"^f.*o$": {"type": "integer"}}}, [{"foo": 1}], [{"foo": "bar"}]),
    ({"items": {"type": "integer"}, "type": "array"}, [[], [1, 2]], [[1, "x"]]),
    ({"prefixItems": [{"type": "integer"}, {"type": "string"}]}, [[1, "foo"], [1]], [["foo", 1]]),
    ({"minItems": 1, "maxItems": 2, "type": "array"}, [[1], [1, 2]], [[], [1, 2, 3]]),
    ({"minProperties": 1, "type": "object"}, [{"a": 1}], [{}]),
    ({"allOf": [{"minimum": 3}, {"maximum": 5}], "type": "integer"}, [3, 5], [2, 6]),
    ({"anyOf": [{"type": "integer"}, {"type": "string", "minLength": 2}]}, [1, "ab"], [1.5, "a"]),
    ({"$defs": {"a": {"type": "integer"}}, "properties": {"b": {"$ref": "#/$defs/a"}}}, [{"b": 1}], [{"b": "a"}]),
    (
        {"properties": {"foo": {"$ref": "#"}}, "additionalProperties": False},
        [{"foo": {"foo": {}}}],
        [{"bar": 1}, {"foo": {"bar": False}}],
    ),
    ({"format": "date"}, ["2020-02-29", "2000-02-29", "1999-12-31", 5], ["2021-02-29", "1900-02-29", "2020-04-31"]),
    ({"format": "time"}, ["12:00:59Z", "01:02:03.5+02:00"], ["23:59:61Z", "22:59:60Z", "24:00:00Z", "12:00:00"]),
    ({"format": "date-time", "pattern": "^2020"}, ["2020-01-02T03:04:05Z"], ["2021-01-02T03:04:05Z", "2020"]),
    ({"properties": {"format": {"const": {"format": "date"}}}}, [{"format": {"format": "date"}}], [{"format": "date"}]),
    ({"format": "uuid"}, ["2eb8aa08-aa98-11ea-b4aa-73b441d16380"], ["2eb8aa08"]),
    ({"type": "array", "maxItems": 2.0}, [[1, 2]], [[1, 2, 3]]),
]
REFUSED: list[Any] = [
    False,
    {"not": {"type": "integer"}},
    {"type": "array", "uniqueItems": True},
    {"if": {"type": "integer"}, "then": {"minimum": 3}},
    {"unevaluatedProperties": False},
    {"propertyNames": {"maxLength": 3}},
    {"contains": {"minimum": 5}},
    {"$ref": "http://localhost:1234/integer.json"},
    {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
    {"$schema": "http://json-schema.org/draft-03/schema#", "disallow": "integer"},
    {"$schema": "http://json-schema.org/draft-07/schema#", "contentEncoding": "base64"},
    {"pattern": r"^[\S]$"},
    {"pattern": "(?=a)"},
    {"not": {}, "x-guidance": {"lenient": True}},
    {"type": "integer", "minimum": 3, "maximum": 2},
    {"$ref": "#"},
    "{",
    3,
]


@pytest.mark.parametrize(("schema", "allowed", "forbidden"), SELECTION, ids=lambda each: json.dumps(each)[:60])
def test_selection(schema: Any, allowed: list[Any], forbidden: list[Any]) -> None:
    """Each keyword that we enforce, from both sides."""
    start = grammar(schema)
    assert [each for each in allowed if not writes(start, each)] == []
    assert [each for each in forbidden if writes(start, each)] == []


@pytest.mark.parametrize("schema", REFUSED, ids=lambda each: json.dumps(each)[:60])
def test_what_cannot_be_enforced_is_refused(schema: Any) -> None:
    """With a reason, instead of being left out."""
    with pytest.raises(IpexAssistError) as error:
        grammar(schema)
    assert len(str(error.value)) > 15


def cases(folder: Path, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Groups of tests of one draft. Formats are left to their own files, which ask for them to be enforced."""
    for path in sorted((folder / "tests" / name).rglob("*.json")):
        if path.name != "format.json":
            for case in json.loads(path.read_text(encoding="utf-8")):
                yield path.name, case


def of_draft(schema: Any, name: str) -> Any:
    """A schema that says of which draft it is."""
    return {"$schema": DRAFTS[name][0], **schema} if isinstance(schema, dict) else schema


@pytest.mark.skipif(SUITE is None, reason="JSON_SCHEMA_SUITE names no folder")
@pytest.mark.parametrize("name", DRAFTS)
def test_official_suite(name: str) -> None:
    """Right, or refused with a reason, never wrong."""
    counts: Counter[Any] = Counter()
    wrong, reasons = [], []
    for file, case in cases(Path(str(SUITE)), name):
        try:
            start = grammar(of_draft(case["schema"], name))
        except (UsageError, IpexAssistError) as error:
            counts["refused"] += 1
            reasons.append(str(error))
            continue
        counts["taken"] += 1
        for test in case["tests"]:
            written = writes(start, test["data"])
            counts[written, test["valid"]] += 1
            if written and not test["valid"]:
                wrong.append((file, case["description"], test["description"]))
    print(name, dict(counts))
    assert wrong == []
    assert all(reasons)
    assert counts["taken"] > counts["refused"] / 2
    assert counts[True, True] >= DRAFTS[name][1] * (counts[True, True] + counts[False, True])
