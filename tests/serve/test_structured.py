"""Structured output: from fields of requests to grammars, and grammars that nobody should have to wait for."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.speculative.choosing.grammar import GrammarSpec

pytest.importorskip("llguidance")

from ipex_assist.serve.grammar_checker import GrammarChecker
from ipex_assist.serve.grammar_trial import _walk, byte_tokenizer, reason_against
from ipex_assist.serve.structured_output import grammar_of
from ipex_assist.speculative.choosing.llguidance_grammar import LlguidanceGrammar, initial_matcher

pytestmark = pytest.mark.one_stack

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        ({}, None),
        ({"response_format": None, "guided_regex": None, "temperature": 1}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, GrammarSpec("json_object")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": OBJECT}}},
            GrammarSpec("json_schema", json.dumps(OBJECT)),
        ),
        (
            {"response_format": {"type": "json_object", "schema": OBJECT}},
            GrammarSpec("json_schema", json.dumps(OBJECT)),
        ),
        ({"json_schema": OBJECT}, GrammarSpec("json_schema", json.dumps(OBJECT))),
        ({"guided_json": OBJECT}, GrammarSpec("json_schema", json.dumps(OBJECT))),
        ({"guided_json": json.dumps(OBJECT)}, GrammarSpec("json_schema", json.dumps(OBJECT))),
        ({"guided_json": True}, GrammarSpec("json_schema", "{}")),
        ({"guided_regex": "a+"}, GrammarSpec("regex", "a+")),
        ({"guided_choice": ["é", "b"]}, GrammarSpec("choice", '["é", "b"]')),
        ({"guided_grammar": 'start: "a"'}, GrammarSpec("lark", 'start: "a"')),
        ({"structured_outputs": {"regex": "a+"}}, GrammarSpec("regex", "a+")),
        ({"structured_outputs": {"json_object": True}}, GrammarSpec("json_object")),
    ],
)
def test_fields_become_grammars(fields: dict[str, Any], spec: GrammarSpec | None) -> None:
    """OpenAI's form, vLLM's fields, and vLLM's newer object."""
    assert grammar_of(fields) == spec


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type is 'yaml'"),
        ({"response_format": "json"}, "response_format.type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}},
            "json_schema.schema: a JSON schema",
        ),
        ({"guided_json": "{"}, "guided_json: this is no JSON"),
        ({"guided_json": "[" * 100_000}, "guided_json"),
        ({"guided_json": {"const": float("nan")}}, "guided_json"),
        ({"guided_choice": []}, "guided_choice must be a list"),
        ({"guided_choice": [1]}, "guided_choice must be a list"),
        ({"guided_regex": ""}, "guided_regex must be a text"),
        ({"guided_regex": "\ud800"}, "surrogate"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_regex and guided_choice are both given"),
        ({"structured_outputs": [1]}, "must be an object"),
    ],
)
def test_wrong_fields_are_refused(fields: dict[str, Any], reason: str) -> None:
    """With the field's name."""
    with pytest.raises(UsageError, match=reason.replace(".", r"\.")):
        grammar_of(fields)


@pytest.fixture(scope="module")
def checker() -> Iterator[GrammarChecker]:
    """One process for all."""
    made = GrammarChecker()
    yield made
    made.close()


COSTLY = [
    GrammarSpec("regex", "x(a{1000}){1000}"),
    GrammarSpec("json_schema", '{"type": "integer", "multipleOf": 1000003}'),
    GrammarSpec("json_schema", json.dumps({"enum": [f"x{i}" for i in range(100_000)]})),
]


@pytest.mark.parametrize("spec", COSTLY, ids=lambda each: each.value[:30])
def test_what_blows_up_is_refused(checker: GrammarChecker, spec: GrammarSpec) -> None:
    """Within a second of work, at once the second time, and the checker lives on."""
    with pytest.raises(UsageError, match="cannot be used"):
        checker.check(spec)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        with pytest.raises(UsageError, match="cannot be used"):
            checker.check(spec)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.5
    checker.check(GrammarSpec("choice", '["a", "b"]'))


def test_reasons_reach_the_user(checker: GrammarChecker) -> None:
    """What llguidance says of a grammar that is none; many choices are no trouble."""
    with pytest.raises(UsageError, match="unclosed group"):
        checker.check(GrammarSpec("regex", "(a"))
    with pytest.raises(UsageError, match="uniqueItems"):
        checker.check(GrammarSpec("json_schema", '{"uniqueItems": true}'))
    checker.check(GrammarSpec("choice", json.dumps([f"choice {i}" for i in range(3000)])))
    # Special tokens are the model's: here nobody knows which there are, and texts that look like them are texts.
    lark = 'start: <[151657]> "<a>" /<b>/ <|im_end|> </think> <[3-5,99999]> // <c>\nX: "\\"<"'
    checker.check(GrammarSpec("lark", lark))


def test_a_process_that_dies_or_hangs() -> None:
    """A grammar that ends the process is refused; one that never starts is said to be our own trouble."""
    dies = [sys.executable, "-c", "print('ready', flush=True); input(); exit(1)"]
    checker = GrammarChecker(lambda: dies)
    with pytest.raises(UsageError, match="too much memory"):
        checker.check(GrammarSpec("json_object"))
    spins = "print('ready', flush=True); input()\nwhile True: pass"
    checker = GrammarChecker(lambda: [sys.executable, "-c", spins])
    with pytest.raises(UsageError, match="longer than 1 s"):
        checker.check(GrammarSpec("json_object"))
    checker = GrammarChecker(lambda: [sys.executable, "-c", ""])
    with pytest.raises(IpexAssistError, match=r"pip install '.*\[serve\]'"):
        checker.check(GrammarSpec("json_object"))
    checker.close()


def test_a_process_that_is_killed_between_two_grammars(checker: GrammarChecker) -> None:
    """By whoever wants memory: that says nothing of the next grammar."""
    checker.check(GrammarSpec("regex", "a"))
    running = [each._process for each in checker._processes if each._process is not None]
    assert running
    for process in running:
        process.kill()
        process.wait()
    checker.check(GrammarSpec("regex", "b"))


def test_what_is_forced_is_no_step_of_a_walk() -> None:
    """A call begins with dozens of characters that must come, and may be costly behind them."""
    state = LlguidanceGrammar(
        initial_matcher(GrammarSpec("lark", f'start: "{"a" * 100}" /[a-z]{{40}}/'), byte_tokenizer()),
        257,
        frozenset([256]),
    )
    _walk(state, random.Random(0))
    assert len(state.tokens) == 141
    assert state.ended


def test_costs_on_the_way_are_found() -> None:
    """Not at the beginning of a text, but soon after."""
    tokenizer = byte_tokenizer()
    assert reason_against(GrammarSpec("regex", "[a-z]*"), tokenizer) is None
    reason = reason_against(GrammarSpec("lark", 'start: "ab" x\nx: x x | "c" | "cc" | x "c" x | ""'), tokenizer)
    assert reason is None or "items" in reason
