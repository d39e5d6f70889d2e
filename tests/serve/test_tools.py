"""Tools: calls out of texts however these are cut, calls forced by grammars, what templates are given."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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
from ipex_assist.serve.tools import CallDelta, CallParser, content_and_calls, prepare
from ipex_assist.serve.tools.dialect_choice import CallFamily, family_of
from ipex_assist.serve.tools.dialects import BY_NAME, Dialect
from ipex_assist.serve.tools.parsed_events import Call
from ipex_assist.speculative.choosing.grammar import GrammarSpec
from ipex_assist.speculative.choosing.llguidance_grammar import GrammarCompiler
from ipex_assist.tokenization.thinking import SpecialWords

pytestmark = pytest.mark.one_stack

UNKNOWN_CALLS = (
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}CALL {{ c.function.name }} "
    "{{ c.function.arguments }}{% endfor %}{% endfor %}"
)
NAMES = ("get_weather", "add", "f.g-h")
HERMES, LLAMA, MISTRAL = (BY_NAME[name] for name in ("hermes", "llama", "mistral"))
DIALECTS = [HERMES, LLAMA, MISTRAL]


def parser(kind: Dialect, special: dict[int, str] | None = None, **more: Any) -> CallParser:
    """With ids that count. special: tokens."""
    numbers = itertools.count()
    words = SpecialWords(tokenizer(None, special), (special or {}).values())
    return CallParser(kind, {name: {} for name in NAMES}, words=words, new_id=lambda: f"id{next(numbers)}", **more)


def parsed(kind: Dialect, pieces: list[str], **more: Any) -> tuple[str | None, list[Call]]:
    one = parser(kind, **more)
    events = [event for piece in pieces for event in one.push(piece)]
    return content_and_calls([*events, *one.finish()])


def dialect_of(template: str) -> Dialect:
    found = family_of(tokenizer(template), TOOLS)
    assert isinstance(found, CallFamily)
    return found.dialect


def calls(*pairs: tuple[str, str]) -> list[Call]:
    return [Call(f"id{index}", name, arguments) for index, (name, arguments) in enumerate(pairs)]


W = '{"city": "Köln }] \\" <x>", "n": [1, {"a": "[TOOL_CALLS]"}]}'
HERMES_CASES: list[tuple[str, str | None, list[Call]]] = [
    ("Just text, no calls.\n", "Just text, no calls.\n", []),
    (f'<tool_call>\n{{"name": "get_weather", "arguments": {W}}}\n</tool_call>', None, calls(("get_weather", W))),
    (
        'Let me see.\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>\n'
        '<tool_call>{"arguments": {"x":1}, "name": "add"}</tool_call>',
        "Let me see.",
        calls(("add", "{}"), ("add", '{"x":1}')),
    ),
    ('<tool_call>{"name": "other"}</tool_call>', None, calls(("other", "{}"))),
    ('<tool_call>{"name": "add", "arguments": null}</tool_call> Done.', "Done.", calls(("add", "{}"))),
    ('<tool_call>{"name": "add", "arguments": "{\\"x\\": 2}"}</tool_call>', None, calls(("add", '{"x": 2}'))),
    ("<tool_call>\nnothing</tool_call> x < y", "<tool_call>\nnothing</tool_call> x < y", []),
    ('<tool_call>{"name": 5, "arguments": {}}', '<tool_call>{"name": 5, "arguments": {}}', []),
    ('<tool_call>{"name": "add", "arguments": {"x": 1', '<tool_call>{"name": "add", "arguments": {"x": 1', []),
    ('<tool_call>{"name": "add", "arguments": {"x": 1}', None, calls(("add", '{"x": 1}'))),
    ('Well <tool_call>{"name": "add"}</tool_call>\n\nmore', "Well \n\nmore", calls(("add", "{}"))),
    (
        '<tool_call>\n{{"name": "add", "arguments": {"x": 1}}}\n</tool_call>\n<tool_call>{{"name": "add"}}</tool_call>',
        None,
        calls(("add", '{"x": 1}'), ("add", "{}")),
    ),
    ('<tool_call>{"name": "add", "arguments": {"x": 1}}}\n</tool_call>', None, calls(("add", '{"x": 1}'))),
    (
        'So:\n```json\n{"name": "add", "arguments": {"x": 1}}\n{"name": "add", "arguments": {}}\n```\nDone',
        "So:\n\nDone",
        calls(("add", '{"x": 1}'), ("add", "{}")),
    ),
    ("<tools>\n{{'x'}}</tools>", "<tools>\n{{'x'}}</tools>", []),
    ('<tools>{"name": "add", "arguments": {"x": 1}}</tools>', None, calls(("add", '{"x": 1}'))),
    ('```json\n{"name": "left-pad", "version": "1"}\n```', '```json\n{"name": "left-pad", "version": "1"}\n```', []),
    ('```json\n{"name": "add", "version": "1"}\n```', '```json\n{"name": "add", "version": "1"}\n```', []),
    ('<tool_call>{"name": "add", "arguments": {"x": 1}} and on', "and on", calls(("add", '{"x": 1}'))),
    ('<tool_call>{"name": "add", "arguments": {"x": 1}], so</tool_call>ok', "ok", calls(("add", '{"x": 1}'))),
    ("a <tool_cal", "a <tool_cal", []),
    ('<tool_call>{"name": "ad', '<tool_call>{"name": "ad', []),
]
LLAMA_CASES: list[tuple[str, str | None, list[Call]]] = [
    ("The answer is {x}.", "The answer is {x}.", []),
    (f'{{"name": "get_weather", "parameters": {W}}}', None, calls(("get_weather", W))),
    (f' <|python_tag|>{{"name": "get_weather", "parameters": {W}}}\n', None, calls(("get_weather", W))),
    (
        '{"name": "add", "parameters": {"x": 1}}; {"name": "f.g-h", "parameters": {}}',
        None,
        calls(("add", '{"x": 1}'), ("f.g-h", "{}")),
    ),
    ('{"name": "Anna", "parameters": {"x": 1}}', '{"name": "Anna", "parameters": {"x": 1}}', []),
    ('{"name": "add", "age": 3} ', '{"name": "add", "age": 3} ', []),
    ('{"parameters": {"x": 1}, "name": "add"}', None, calls(("add", '{"x": 1}'))),
    ('{"age": 3, "b": [1, 2]} text', '{"age": 3, "b": [1, 2]} text', []),
    ('{"name": "add", "parameters": {"x": 1}} so', "so", calls(("add", '{"x": 1}'))),
    ("<|python but not", "<|python but not", []),
    ('{"name": "add", "parameters": {"x"', '{"name": "add", "parameters": {"x"', []),
]
MISTRAL_CASES: list[tuple[str, str | None, list[Call]]] = [
    ("Text [TOOL_ and more", "Text [TOOL_ and more", []),
    (
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {W}}}, {{"name": "add", "arguments": {{}}, "id": "1"}}]',
        None,
        calls(("get_weather", W), ("add", "{}")),
    ),
    (f'Well.[TOOL_CALLS][{{"name": "get_weather", "arguments": {W}}}]', "Well.", calls(("get_weather", W))),
    (f"[TOOL_CALLS]get_weather[ARGS]{W}", None, calls(("get_weather", W))),
    (
        f"[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{W}[TOOL_CALLS]add{{}}",
        None,
        calls(("get_weather", W), ("add", "{}")),
    ),
    ('[TOOL_CALLS]{"name": "add", "arguments": {}}', None, calls(("add", "{}"))),
    ("[TOOL_CALLS] are odd", "[TOOL_CALLS] are odd", []),
    ("[TOOL_CALLS]add[OTHER]{}", "[TOOL_CALLS]add[OTHER]{}", []),
    ('[TOOL_CALLS] [{"nam": 1}] x', '[TOOL_CALLS] [{"nam": 1}] x', []),
    (
        '[TOOL_CALLS] [{"name": "add", "arguments": {"x": 1',
        '[TOOL_CALLS] [{"name": "add", "arguments": {"x": 1',
        [],
    ),
    ('[TOOL_CALLS]add[ARGS]{"x": "C:\\d"}', None, calls(("add", '{"x": "C:\\\\d"}'))),
    ('[TOOL_CALLS]add[ARGS]{"x": say "hi"}.', '[TOOL_CALLS]add[ARGS]{"x": say "hi"}.', []),
]
CASES = [
    (kind, *case)
    for kind, cases in zip(DIALECTS, (HERMES_CASES, LLAMA_CASES, MISTRAL_CASES), strict=True)
    for case in cases
]


@pytest.mark.parametrize(("kind", "text", "content", "wanted"), CASES, ids=lambda each: str(each)[:40])
def test_forms(kind: Dialect, text: str, content: str | None, wanted: list[Call]) -> None:
    """Each form as a whole, character by character, and in every two pieces."""
    assert parsed(kind, [text]) == (content, wanted)
    assert parsed(kind, list(text)) == (content, wanted)
    for cut in range(len(text)):
        assert parsed(kind, [text[:cut], text[cut:]]) == (content, wanted)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('{"a": "two\nlines\tand\x01"}', {"a": "two\nlines\tand\x01"}),
        (r'{"a": "\d+\.py \u12 \u00e9 \\ \" \n"}', {"a": '\\d+\\.py \\u12 é \\ " \n'}),
        ('{"a": None, "b": [True, False, "None, ]",], }', {"a": None, "b": [True, False, "None, ]"]}),
        ('{{"a": {"b": 1}}}', {"a": {"b": 1}}),
        ('"{\\"a\\": \\"x\\"}"', {"a": "x"}),
        ('{"a": "say "hi""}', None),
        ("{'a': 1}", None),
        ('{"a": NaN}', None),
        ("[1]", None),
        ('{"a": 1, "b"}', None),
    ],
)
@pytest.mark.parametrize("kind", DIALECTS)
def test_broken_arguments(kind: Dialect, written: str, meant: Any) -> None:
    """What can only be meant one way is made JSON, as clients' own parsers fail at it; the rest stays text."""
    key = "parameters" if kind is LLAMA else "arguments"
    call = f'{{"name": "add", "{key}": {written}}}'
    text = {HERMES: f"<tool_call>\n{call}\n</tool_call>", MISTRAL: f"[TOOL_CALLS] [{call}]"}.get(kind, call)
    for size in (1, 3, len(text)):
        content, found = parsed(kind, [text[at : at + size] for at in range(0, len(text), size)])
        assert [json.loads(each.arguments) for each in found] == ([] if meant is None else [meant])
        assert content == (text if meant is None else None)


PIECES = (
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[{", "}]", "{", "}"),
    *('"name"', '"arguments"', '"parameters"', ": ", ", ", '"add"', '"get_weather"', "add", '"', "\\", "\n", " ", "1"),
    *("<tools>", "</tools>", "```json\n", "```", "{{", "}}"),
    *("x", "é", ";", "]", "[", "null", '{"name": "add", "arguments": {"x": "y"}}', '{"name": "add", "parameters": {}}'),
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(DIALECTS), st.lists(st.sampled_from(PIECES), max_size=24), st.data())
def test_cuts_change_nothing(kind: Dialect, pieces: list[str], data: st.DataObject) -> None:
    """Any text, calls or not, comes out the same however it is cut; nothing is told twice or taken back."""
    text = "".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parsed(kind, [text])
    assert parsed(kind, parts) == whole
    if not whole[1]:
        assert (whole[0] or "") == text or (kind is LLAMA and "<|python_tag|>" in text)
    assert all(call.name for call in whole[1])


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(DIALECTS),
    st.lists(
        st.tuples(
            st.sampled_from(NAMES),
            st.dictionaries(
                st.text(max_size=5),
                st.recursive(
                    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
                    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=4), each, max_size=3),
                    max_leaves=6,
                ),
                max_size=4,
            ),
        ),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
    st.data(),
)
def test_what_was_written_is_read(
    kind: Dialect, wanted: list[tuple[str, Any]], ascii_: bool, data: st.DataObject
) -> None:
    """Any arguments, in pieces."""

    def written(name: str, arguments: Any, key: str) -> str:
        return f'{{"name": {json.dumps(name)}, "{key}": {json.dumps(arguments, ensure_ascii=ascii_)}}}'

    if kind is HERMES:
        text = "\n".join(f"<tool_call>\n{written(*each, 'arguments')}\n</tool_call>" for each in wanted)
    elif kind is LLAMA:
        text = "; ".join(written(*each, "parameters") for each in wanted)
    else:
        text = "[TOOL_CALLS] [" + ", ".join(written(*each, "arguments") for each in wanted) + "]"
    size = data.draw(st.integers(1, 12))
    content, found = parsed(kind, [text[i : i + size] for i in range(0, len(text), size)])
    assert content is None
    assert [(call.name, json.loads(call.arguments)) for call in found] == wanted


def test_deltas_come_as_soon_as_they_are_certain() -> None:
    """The name before the arguments, the arguments before their end, content at once: where a grammar holds calls to
    their form. Otherwise a call is not told of before its arguments are known to be JSON."""
    one = parser(HERMES, streams=True)
    assert one.push("Well, ") == ["Well,"]
    assert one.push('now\n<tool_call>\n{"name": "add"') == [" now", CallDelta(0, "id0", "add")]
    assert one.push(', "arguments": {"x": ') == [CallDelta(0, arguments='{"x": ')]
    assert one.push("1}}\n</tool_call>") == [CallDelta(0, arguments="1}")]
    assert one.finish() == []
    bare = parser(LLAMA, streams=True)
    assert bare.push('{"name": "add", ') == []  # it may be an answer in JSON yet
    assert bare.push('"parameters": {') == [CallDelta(0, "id0", "add", "{")]
    free = parser(HERMES)
    assert free.push('<tool_call>\n{"name": "add", "arguments": {"x": 1}') == []
    assert free.push("}") == [CallDelta(0, "id0", "add", '{"x": 1}')]


def test_special_tokens_mark_calls() -> None:
    """They have no text of their own; a second call is left out where calls are not parallel."""
    one = parser(MISTRAL, special={7: "[TOOL_CALLS]", 8: "[ARGS]"}, parallel=False)
    events = [*one.push("Hm", 3), *one.push("", 7), *one.push("add", 4), *one.push("", 8), *one.push("{}", 5)]
    events += [*one.push("", 7), *one.push("add", 4), *one.push("", 8), *one.push("{}", 5), *one.finish()]
    assert content_and_calls(events) == ("Hm", calls(("add", "{}")))
    assert one.calls == 2


@pytest.mark.parametrize(
    ("template", "kind"),
    [(HERMES_TEMPLATE, HERMES), (LLAMA_TEMPLATE, LLAMA), (MISTRAL_TEMPLATE, MISTRAL)],
)
def test_families(template: str, kind: Dialect) -> None:
    """By what the template tells of tools. These go to it without empty fields."""
    prepared = prepare(tokenizer(template), USER, TOOLS)
    assert prepared.parser is not None
    assert dialect_of(template) is kind
    assert prepared.grammar is None
    assert prepared.tools == [
        {"type": "function", "function": {"name": "add", "parameters": XY, "description": ""}},
        {
            "type": "function",
            "function": {"name": "get_weather", "description": "", "parameters": {"type": "object", "properties": {}}},
        },
    ]
    without = prepare(tokenizer(template), USER, TOOLS, "none", response=GrammarSpec("json_object"))
    assert (without.tools, without.parser, without.grammar) == (None, None, GrammarSpec("json_object"))


@pytest.mark.parametrize(
    ("template", "tools", "choice", "reason"),
    [
        (None, TOOLS, None, "no place for tools"),
        ("{{ messages }}", TOOLS, None, "no place for tools"),
        ("{{ tools }}" + UNKNOWN_CALLS, TOOLS, None, "not known here: .CALL pr0be_call"),
        (HERMES_TEMPLATE, TOOLS, "all", "there are auto, none, required"),
        (HERMES_TEMPLATE, TOOLS, {"type": "function", "function": {"name": "sub"}}, "not among the tools"),
        (HERMES_TEMPLATE, [], "required", "there are no tools"),
        (HERMES_TEMPLATE, [TOOLS[0], TOOLS[0]], None, "the same name"),
        (HERMES_TEMPLATE, [{"type": "function"}], None, r"tools\[0\] must be"),
        (
            HERMES_TEMPLATE,
            [tool("a", {"properties": {"a": {"$ref": "#", "x": 1}}, "$schema": "y"})],
            "required",
            "schema",
        ),
    ],
)
def test_wrong_tools_are_refused(template: Any, tools: Any, choice: Any, reason: str) -> None:
    """With what is wrong."""
    with pytest.raises(UsageError, match=reason):
        prepare(tokenizer(template), USER, tools, choice)


def test_messages_as_templates_read_them() -> None:
    """Arguments become objects, where they are; ids are what Mistral's template takes, the same on both sides."""
    messages = [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}},
                {"id": "abcdefghi", "type": "function", "function": {"name": "add", "arguments": "oops"}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "2"},
    ]
    found = prepare(tokenizer(HERMES_TEMPLATE), messages).messages
    assert [call["function"]["arguments"] for call in found[0]["tool_calls"]] == [{"x": 1}, "oops"]
    assert found[1]["tool_call_id"] == found[0]["tool_calls"][0]["id"] == "call_1"
    found = prepare(tokenizer(MISTRAL_TEMPLATE), messages).messages
    first, second = (call["id"] for call in found[0]["tool_calls"])
    assert (len(first), first.isalnum(), second) == (9, True, "abcdefghi")
    assert found[1]["tool_call_id"] == first
    assert messages[1]["tool_call_id"] == "call_1"


def test_forced_calls_by_added_tokens_that_are_not_special() -> None:
    """Qwen2.5's files have such a <tool_call>. llguidance takes any added token named <…> as special, whose text then
    matches nothing: a forced call was refused after 0 tokens."""
    pytest.importorskip("llguidance")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    backend.add_tokens(["<tool_call>", "</tool_call>"])
    known = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", chat_template=HERMES_TEMPLATE)
    spec = prepare(known, USER, TOOLS, "required").grammar
    assert spec is not None
    assert known.eos_token_id is not None
    grammar = GrammarCompiler.of(known, len(known), [known.eos_token_id]).grammar(spec)
    ids = known.encode(hermes(("add", '{"x": 1}')), add_special_tokens=False)
    assert ids[0] == known.convert_tokens_to_ids("<tool_call>")
    assert not known.added_tokens_decoder[ids[0]].special
    assert grammar.allows(ids) == len(ids)


def test_forced_calls() -> None:
    """Required and named: the family's form, the function's schema, no further arguments, and as many as may be."""
    pytest.importorskip("llguidance")
    one, two = ("add", '{"x": 1, "y": "é"}'), ("get_weather", "{}")
    known = tokenizer(HERMES_TEMPLATE)
    required = prepare(known, USER, TOOLS, "required").grammar
    assert writes(required, hermes(one))
    assert writes(required, hermes(one, two, one))
    for wrong in ("", "text", hermes(("add", "{}")), hermes(("add", '{"x": 1, "z": 2}')), hermes(("sub", "{}"))):
        assert not writes(required, wrong)
    assert not writes(required, hermes(one) + " and text")
    single = prepare(known, USER, TOOLS, "required", parallel=False).grammar
    assert writes(single, hermes(two))
    assert not writes(single, hermes(two, two))
    named = prepare(known, USER, TOOLS, {"type": "function", "function": {"name": "add"}}).grammar
    assert writes(named, hermes(one))
    assert not writes(named, hermes(two))
    assert not writes(named, hermes(one, one))
    llama = prepare(tokenizer(LLAMA_TEMPLATE), USER, TOOLS, "required").grammar
    assert writes(llama, '{"name": "add", "parameters": {"x": 1}}')
    assert not writes(llama, '{"name": "add", "parameters": {"x": 1}}{"name": "add", "parameters": {"x": 1}}')
    mistral = prepare(tokenizer(MISTRAL_TEMPLATE), USER, TOOLS, "required").grammar
    assert writes(
        mistral, '[TOOL_CALLS] [{"name": "add", "arguments": {"x": 1}}, {"name": "get_weather", "arguments": {}}]'
    )
    newer = prepare(tokenizer(MISTRAL_TEMPLATE + "[ARGS]"), USER, TOOLS, "required").grammar
    assert writes(newer, '[TOOL_CALLS]add[ARGS]{"x": 1}[TOOL_CALLS]get_weather[ARGS]{}')


def test_special_tokens_are_forced_as_such() -> None:
    """What is one token for the model is written by that token: the grammar names it by its number."""
    spec = prepare(tokenizer(MISTRAL_TEMPLATE, {5: "[TOOL_CALLS]", 6: "<unk>"}), USER, TOOLS, "required").grammar
    assert spec is not None
    assert 'calls: <[5]> " [" call' in spec.value
    assert "TOOL_CALLS" not in spec.value


def test_calls_or_an_answer() -> None:
    """Tools that may be called, and a response format for the answer."""
    pytest.importorskip("llguidance")
    response = GrammarSpec(
        "json_schema", '{"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}'
    )
    spec = prepare(tokenizer(HERMES_TEMPLATE), USER, TOOLS, "auto", response=response).grammar
    assert writes(spec, '{"a": null}')
    assert writes(spec, hermes(("get_weather", "{}")))
    assert not writes(spec, '{"b": null}')
    with pytest.raises(UsageError, match="cannot be had with tools"):
        prepare(tokenizer(HERMES_TEMPLATE), USER, TOOLS, response=GrammarSpec("regex", "a"))
