"""Tools that are `strict`, where the model is free to call them: any text, but calls by their schemas."""

from __future__ import annotations

import json

import pytest
from tool_calls import (
    HERMES_TEMPLATE,
    LLAMA_TEMPLATE,
    MISTRAL_TEMPLATE,
    TOOLS,
    USER,
    XY,
    hermes,
    tokenizer,
    tool,
    writes,
)

from ipex_assist.env.errors import UsageError
from ipex_assist.serve.grammar_trial import byte_tokenizer
from ipex_assist.serve.tools import PreparedConversation, content_and_calls, prepare
from ipex_assist.speculative.choosing.grammar import GrammarSpec
from ipex_assist.speculative.choosing.llguidance_grammar import LlguidanceGrammar, initial_matcher

pytest.importorskip("llguidance")

pytestmark = pytest.mark.one_stack

STRICT = [tool("add", XY, strict=True), tool("get_weather")]
ONE, OTHER = ("add", '{"x": 1, "y": "é"}'), ("get_weather", '{"anything": [1]}')


def prepared(template: str, *, special: dict[int, str] | None = None, parallel: bool = True) -> PreparedConversation:
    return prepare(tokenizer(template, special), USER, STRICT, parallel=parallel)


def test_only_where_a_tool_says_so() -> None:
    """As with OpenAI; and templates never see the word."""
    assert prepare(tokenizer(HERMES_TEMPLATE), USER, TOOLS).grammar is None
    assert prepare(tokenizer(HERMES_TEMPLATE), USER, [tool("add", XY, strict=False)], "auto").grammar is None
    made = prepared(HERMES_TEMPLATE)
    assert made.grammar is not None
    assert made.tools is not None
    assert all("strict" not in each["function"] for each in made.tools)
    assert prepare(tokenizer(HERMES_TEMPLATE), USER, STRICT, "none").grammar is None


@pytest.mark.parametrize("text", ["", "Text, é, { and <b>.\n", "a <tool_cal", "ends with <tool_"])
def test_texts_without_calls(text: str) -> None:
    """Are free."""
    assert writes(prepared(HERMES_TEMPLATE).grammar, text)
    assert writes(prepared(MISTRAL_TEMPLATE).grammar, text)
    assert writes(prepared(LLAMA_TEMPLATE).grammar, text)


def test_hermes() -> None:
    """Any number of calls, with text around; of those that are not strict any arguments."""
    spec = prepared(HERMES_TEMPLATE).grammar
    assert writes(spec, hermes(ONE))
    assert writes(spec, "Let me see.\n" + hermes(ONE, OTHER, ONE) + "\nThere.")
    for wrong in (("add", '{"y": "a"}'), ("add", '{"x": 1, "z": 2}'), ("sub", "{}"), ("get_weather", "[]")):
        assert not writes(spec, hermes(wrong))
        assert not writes(spec, "And " + hermes(ONE, wrong))
    assert not writes(spec, "text <tool_call> text")
    assert not writes(spec, "<tool_call>")
    single = prepared(HERMES_TEMPLATE, parallel=False).grammar
    assert writes(single, "Hm " + hermes(ONE))
    assert writes(single, "Hm")
    assert not writes(single, hermes(ONE, ONE))


def test_mistral() -> None:
    """A list of calls, or each by its marker."""
    spec = prepared(MISTRAL_TEMPLATE).grammar
    calls = '[TOOL_CALLS] [{"name": "add", "arguments": {"x": 1}}, {"name": "get_weather", "arguments": {}}]'
    assert writes(spec, "Well. " + calls)
    assert not writes(spec, calls.replace('"x": 1', '"x": "1"'))
    named = prepared(MISTRAL_TEMPLATE + "[ARGS]").grammar
    assert writes(named, '[TOOL_CALLS]add[ARGS]{"x": 1}[TOOL_CALLS]get_weather[ARGS]{"a": 1}')
    assert not writes(named, "[TOOL_CALLS]add[ARGS]{}")


def test_llama() -> None:
    """A call is all of the answer; JSON that is none stays possible, spaces are the model's own."""
    spec = prepared(LLAMA_TEMPLATE).grammar
    assert writes(spec, '{"name": "add", "parameters": {"x": 1}}')
    assert writes(spec, '\n{ "name":"get_weather",\n "parameters": {"a": 2}\n}')
    assert writes(spec, '<|python_tag|>{"name": "add", "parameters": {"x": 1}}')
    assert writes(spec, '{"answer": 42}')
    assert writes(spec, 'So: {"name": 1}')
    for wrong in (
        '{"name": "add", "parameters": {}}',
        '{"name": "sub"',
        '<|python_tag|>{"name": "Anna"}',
        '{ "name": 1}',
    ):
        assert not writes(spec, wrong)


def test_special_tokens() -> None:
    """Those that mark calls begin them, also spelt; others may stand in the text."""
    spec = prepared(MISTRAL_TEMPLATE, special={5: "[TOOL_CALLS]", 6: "<unk>", 7: "[THINK]", 9: "<x>"}).grammar
    assert spec is not None
    assert "free: TEXT (<[6-7,9]> TEXT)*" in spec.value
    assert "opened: free <[5]> | (TEXT <[6-7,9]>)* spelt" in spec.value
    llama = prepared(LLAMA_TEMPLATE, special={8: "<|python_tag|>"}).grammar
    assert llama is not None
    assert "start: <[8]>? call | TEXT" in llama.value


def test_a_model_that_would_break_the_schema() -> None:
    """One that wants to write a wrong call, and takes what is allowed where that is forbidden: the text up to the call
    is its own, and the call is right."""
    wanted = 'I look.\n<tool_call>\n{"name": "add", "arguments": {"y": "no x", "x": "1"}}\n</tool_call>'
    spec = prepared(HERMES_TEMPLATE, parallel=False).grammar
    assert spec is not None
    state = LlguidanceGrammar(initial_matcher(spec, byte_tokenizer()), 257, frozenset([256]))
    preferred = [*wanted.encode(), 256]
    while not state.ended:
        allowed = state.mask()
        best = preferred[min(len(state.tokens), len(preferred) - 1)]
        state.advance(best if allowed[best] else int(allowed.argmax()))
        assert len(state.tokens) < 500
    text = bytes(token for token in state.tokens if token < 256).decode()
    assert text.startswith(wanted[: wanted.index('"y"') + 1])
    parse = prepared(HERMES_TEMPLATE).parser
    assert parse is not None
    one = parse()
    content, (call,) = content_and_calls([*one.push(text), *one.finish()])
    assert (content, call.name) == ("I look.", "add")
    assert type(json.loads(call.arguments)["x"]) is int


def test_calls_are_checked_alone() -> None:
    """Texts at random do not come to a call, nor to what its schema may cost."""
    open_ = [STRICT[0], tool("get_weather", {"type": "object"})]
    assert prepared(HERMES_TEMPLATE).calls == prepare(tokenizer(HERMES_TEMPLATE), USER, open_, "required").grammar
    assert prepare(tokenizer(HERMES_TEMPLATE), USER, TOOLS).calls is None


def test_schemas_that_cannot_be_enforced() -> None:
    """Are refused: strict is a promise."""
    with pytest.raises(UsageError, match="the tool add cannot be forced"):
        prepare(tokenizer(HERMES_TEMPLATE), USER, [tool("add", {"$schema": "y"}, strict=True)])
    assert prepare(tokenizer(HERMES_TEMPLATE), USER, [tool("add", {"$schema": "y"})]).grammar is None


def test_a_response_format_beside_them() -> None:
    """Calls by their schemas, or JSON: nothing else, strict or not."""
    spec = prepare(tokenizer(HERMES_TEMPLATE), USER, STRICT, response=GrammarSpec("json_object")).grammar
    assert writes(spec, '{"a": 1}')
    assert writes(spec, hermes(("add", '{"x": 1}')))
    assert not writes(spec, "text")


def test_other_forms_are_no_calls() -> None:
    """What a grammar holds to its schema is the model's own form; a call as fenced JSON would not be held to it."""
    fenced = 'So:\n```json\n{"name": "add", "arguments": {"x": "no number"}}\n```'
    for tools, count in ((STRICT, 0), ([tool("add", XY), tool("get_weather")], 1)):
        made = prepare(tokenizer(HERMES_TEMPLATE), USER, tools)
        assert made.parser is not None
        one = made.parser()
        content, calls = content_and_calls([*one.push(fenced), *one.finish()])
        assert len(calls) == count
        assert count or content == fenced
