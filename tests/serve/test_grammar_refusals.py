"""Grammars of strangers, at random: each is compiled, or refused as the request's fault, and none breaks anything."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_tokenizers import tiny_tokenizer

from ipex_assist.env.errors import UsageError
from ipex_assist.serve.structured_output import grammar_of
from ipex_assist.speculative.choosing.grammar import GrammarSpec

pytest.importorskip("llguidance")

from ipex_assist.serve.grammar_checker import GrammarChecker
from ipex_assist.serve.grammar_trial import byte_tokenizer, reason_against
from ipex_assist.speculative.choosing.llguidance_grammar import GrammarCompiler

pytestmark = pytest.mark.one_stack

# Of each kind; CASES=300 finds what has become rare.
CASES = int(os.environ.get("CASES", "25"))
FUZZ = settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))


@lru_cache
def model() -> GrammarCompiler:
    """As an engine has them."""
    tokenizer = tiny_tokenizer()
    return GrammarCompiler.of(tokenizer, len(tokenizer) + 20, [2])


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    """As the front has it: a process, which may be ended by what it is given."""
    made = GrammarChecker()
    yield made
    made.close()


def try_out(checker: GrammarChecker, fields: dict[str, Any]) -> None:
    """As a request's: UsageError, for status 400, is all that may be raised, by whatever sees the grammar."""
    with contextlib.suppress(UsageError):
        spec = grammar_of(fields)
        assert spec is not None
        checker.check(spec)
        model().grammar(spec).mask()


VALUES = st.recursive(
    st.sampled_from([None, True, False, 0, -1, 2, 1.5, 1e300, "", "a", "é", "^a+$", "(", "date", "#", "#/$defs/a"]),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.sampled_from(["a", "type", "$ref"]), each, max_size=3),
    max_leaves=5,
)
KEYWORDS = (
    *("type", "enum", "const", "properties", "required", "additionalProperties", "patternProperties", "items", "if"),
    *("prefixItems", "allOf", "anyOf", "oneOf", "not", "$ref", "$defs", "$id", "$schema", "format", "pattern"),
    *("minLength", "maxLength", "minimum", "maximum", "multipleOf", "minItems", "maxItems", "contentEncoding"),
    *("minProperties", "x-guidance", "description"),
)
KINDS = ("object", "array", "string", "number", "integer", "boolean", "null")
PAIRS = st.tuples(st.just("type"), st.sampled_from(KINDS)) | st.tuples(st.sampled_from(KEYWORDS), VALUES)


def around(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas within schemas."""
    named = st.tuples(st.sampled_from(["properties", "$defs", "patternProperties"]), st.just("a"), schemas)
    listed = st.tuples(st.sampled_from(["allOf", "anyOf", "prefixItems"]), st.just(""), schemas)
    return st.tuples(st.lists(PAIRS, max_size=2), named | listed).map(
        lambda made: {**dict(made[0]), made[1][0]: {made[1][1]: made[1][2]} if made[1][1] else [made[1][2]]}
    )


SCHEMAS = st.recursive(st.lists(PAIRS, max_size=5).map(dict), around, max_leaves=3)


@FUZZ
@given(SCHEMAS)
def test_schemas(checker: GrammarChecker, schema: Any) -> None:
    """Keywords with values of any kind."""
    try_out(checker, {"guided_json": schema})


REGEX = (*"ab()[]|*+?.^$-\\{}é/<>\"'\n\0", "{2,3}", "{,2}", "\\d", "\\p{L}", "(?i)", "(?=a)", "[^a]")


@FUZZ
@given(st.lists(st.sampled_from(REGEX), min_size=1))
def test_regular_expressions(checker: GrammarChecker, pieces: list[str]) -> None:
    """Most are none."""
    try_out(checker, {"guided_regex": "".join(pieces)})


LARK = (
    *(
        "start: ",
        "\nx: ",
        "\nX: ",
        "x",
        "X",
        " ",
        '"a"',
        '"',
        "/b+/",
        "/",
        "|",
        "*",
        "(",
        ")",
        "~",
        "&",
        "{2}",
        "[lazy]",
    ),
    *("<[5]>", "<[2]>", "<[99999]>", "<[1-3,7]>", "<[^4]>", "<[*]>", "<|im_end|>", "<nothing>", "<[", "%json ", "\n"),
    *('{"type": "integer"}', "%regex ", '{"substring_chars": "abc"}', "%ignore ", "//", "#", "é", "\\", "@x"),
)


@FUZZ
@given(st.lists(st.sampled_from(LARK), max_size=12))
def test_lark(checker: GrammarChecker, pieces: list[str]) -> None:
    """Pieces of grammars, in any order."""
    try_out(checker, {"guided_grammar": "start: " + "".join(pieces)})


@FUZZ
@given(st.lists(st.text(max_size=5), min_size=1, max_size=4))
def test_choices(checker: GrammarChecker, texts: list[str]) -> None:
    """Any texts, empty ones and control characters among them; one that can be compiled can be written."""
    try_out(checker, {"guided_choice": texts})


@pytest.mark.parametrize(
    "value", ["start: <[99999]>", 'start: <|nothing|> "a"', "start: <[3-99999]>", 'start: "a" <[321]>']
)
def test_special_tokens_that_are_missing(value: str) -> None:
    """Only an engine knows, and says so as of any other grammar that is none."""
    spec = GrammarSpec("lark", value)
    assert reason_against(spec, byte_tokenizer()) is None
    with pytest.raises(UsageError, match="cannot be compiled"):
        model().grammar(spec)


@pytest.mark.parametrize(
    "schema",
    [
        {"format": "date", "pattern": "a", "allOf": 3},
        {"format": "date", "pattern": 3, "allOf": {"a": 1}},
    ],
)
def test_schemas_that_were_no_400(schema: Any) -> None:
    """Wrong values of keywords that are read here."""
    with pytest.raises(UsageError, match="allOf must be a list"):
        grammar_of({"guided_json": schema})
