"""Every dialect: found by its template, read as its template writes it in any cut, held to schemas by its grammar."""

from __future__ import annotations

import json
import os
import random
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dialect_templates import TEMPLATES
from tool_calls import writes

from ipex_assist.serve.tools import content_and_calls, prepare
from ipex_assist.serve.tools.call_grammars import forced_calls, optional_calls
from ipex_assist.serve.tools.call_parser import CallParser
from ipex_assist.serve.tools.dialect_choice import CallFamily, NoFamily, family_of
from ipex_assist.serve.tools.dialects import BY_NAME, DIALECTS, Dialect, written
from ipex_assist.serve.tools.output_reader import OutputReader
from ipex_assist.serve.tools.parsed_events import Call
from ipex_assist.tokenization.template_trial import rendered_with
from ipex_assist.tokenization.thinking import HARMONY, SpecialWords, reader_of

pytestmark = pytest.mark.one_stack

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "share": {"type": "number"},
        "flag": {"type": "boolean"},
        "names": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object"},
        "maybe": {"type": ["string", "null"]},
        "one": {"enum": ["a", "b"]},
    },
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": SCHEMA}}
    for name in ("get_weather", "f.g-h", "mcp__files__write")
]
NAMES = [tool["function"]["name"] for tool in TOOLS]
PIECES = (
    *("a", "Zoë", "\n", " ", '"', "'", "\\", "{", "}", "[", "]", "<", ">", "</", "=", ":", ",", "12", "true", "null"),
    *("漢字", "🙂", "\t", "<b>", "</function>x", "```", "def f():\n    return 1\n", "&amp;"),
)
PLAIN = SpecialWords(SimpleNamespace(added_tokens_decoder={}), ())


def tokenizer(template: str, added: tuple[str, ...] = ()) -> Any:
    tokens = {number: SimpleNamespace(content=name, special=True) for number, name in enumerate(added, 500)}
    return SimpleNamespace(
        get_chat_template=lambda name, tools=None: template,
        special_tokens_map={"bos_token": "<BOS>", "eos_token": "<EOS>"},
        added_tokens_decoder=tokens,
    )


def text_of(chance: random.Random) -> str:
    return "".join(chance.choice(PIECES) for _ in range(chance.randrange(6)))


def value_of(chance: random.Random, kind: str, depth: int = 0) -> Any:
    match kind:
        case "string":
            return chance.choice([text_of(chance), "12", "true", "", "null", "[1]", " a ", "a\nb"])
        case "integer":
            return chance.randrange(-1000, 10**12)
        case "number":
            return chance.choice([0.5, -2.25, 1e-7, 3])
        case "boolean":
            return chance.random() < 0.5
        case "array":
            return [text_of(chance) for _ in range(chance.randrange(3))]
        case "null":
            return None
    kinds = ["string", "integer", "boolean", "null", *(["array", "object"] if depth < 3 else [])]
    return {f"k{i}": value_of(chance, chance.choice(kinds), depth + 1) for i in range(chance.randrange(3))}


def arguments_of(chance: random.Random, dialect: Dialect) -> dict[str, Any]:
    made = {}
    for name, schema in SCHEMA["properties"].items():
        if chance.random() < 0.5:
            kind = schema.get("type", "enum")
            if kind == "enum":
                made[name] = chance.choice(schema["enum"])
            elif isinstance(kind, list):
                made[name] = chance.choice([None, "x y", "Zoë"])
            else:
                made[name] = value_of(chance, kind)
    return made


def read(dialect: Dialect, pieces: list[str]) -> tuple[str | None, list[Call]]:
    parser = CallParser(dialect, dict.fromkeys(NAMES, SCHEMA), words=PLAIN, new_id=lambda: "id")
    reader = OutputReader(reader_of(PLAIN, HARMONY, False), None) if dialect.channel else OutputReader(None, parser)
    return content_and_calls([event for piece in pieces for event in reader.push(piece)] + reader.finish())


def rendered(template: str, calls: list[tuple[str, dict[str, Any]]], tools: Any = None) -> str:
    """What a template makes of calls in an answer."""
    made = [
        {"id": f"call{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for i, (name, arguments) in enumerate(calls)
    ]
    messages = [{"role": "user", "content": "Qu3"}, {"role": "assistant", "content": "", "tool_calls": made}]
    turn = prepare(tokenizer(template), [*messages, {"role": "user", "content": "End"}], TOOLS)
    text = rendered_with(template, (), turn.messages, TOOLS)
    assert text is not None
    return text.rpartition("End")[0].partition("Qu3")[2]


@lru_cache
def head_and_tail(template: str) -> tuple[str, str]:
    """What stands around an answer."""
    messages = [("user", "Qu3"), ("assistant", "S4id"), ("user", "End")]
    text = rendered_with(template, (), [{"role": role, "content": content} for role, content in messages], TOOLS)
    assert text is not None
    head, _, tail = text.rpartition("End")[0].partition("Qu3")[2].partition("S4id")
    return head, tail


@pytest.mark.parametrize("name", [dialect.name for dialect in DIALECTS if dialect.models])
def test_every_dialect_is_found_by_its_template(name: str) -> None:
    """By a call that is rendered and read back, and not by a word of the template."""
    found = family_of(tokenizer(TEMPLATES[name]), TOOLS)
    assert isinstance(found, CallFamily)
    assert (found.dialect.name, found.as_text, found.renders, found.describes) == (name, False, True, True)


@pytest.mark.parametrize("name", [dialect.name for dialect in DIALECTS if dialect.models])
def test_what_a_template_writes_is_read(name: str) -> None:
    """Two hundred times random calls, in pieces of a random size."""
    dialect, chance = BY_NAME[name], random.Random(name)
    template = TEMPLATES[name]
    head, tail = head_and_tail(template)
    for _ in range(200):
        count = chance.randrange(1, 4) if dialect.several else 1
        calls = [(chance.choice(NAMES), arguments_of(chance, dialect)) for _ in range(count)]
        text = rendered(template, calls)
        body = text if dialect.channel else text.removeprefix(head).removesuffix(tail)
        size = chance.randrange(1, 16)
        content, found = read(dialect, [body[at : at + size] for at in range(0, len(body), size)])
        assert [(call.name, json.loads(call.arguments)) for call in found] == calls, body
        assert not (content or "").strip(), body


@pytest.mark.parametrize("name", [dialect.name for dialect in DIALECTS if not dialect.channel])
def test_every_cut_reads_the_same(name: str) -> None:
    """With text around calls where the dialect allows it; as `written` and as a model breaks off."""
    dialect = BY_NAME[name]
    calls = [("get_weather", {"text": 'a\n<b> "c"', "count": 3, "more": {"k": [1, None]}}), ("f.g-h", {})]
    around = ("", "") if dialect.bare else ("Well, <so>\n", "\nDone")
    text = around[0] + written(dialect, calls if dialect.several else calls[:1]) + around[1]
    for whole in (text, text[: len(text) // 2], text[: 2 * len(text) // 3]):
        expected = read(dialect, [whole])
        for cut in range(len(whole)):
            assert read(dialect, [whole[:cut], whole[cut:]]) == expected, whole[cut:]
        assert read(dialect, list(whole)) == expected
    found = read(dialect, [text])[1]
    assert [(call.name, json.loads(call.arguments)) for call in found] == (calls if dialect.several else calls[:1])


REPORTED = [
    # vllm #29192: parameters without line ends; a parameter that no schema has; a call without its end
    (
        "qwen-xml",
        "<tool_call>\n<function=get_weather>\n<parameter=text>Rome</parameter>\n</function></tool_call>",
        "Rome",
    ),
    ("qwen-xml", "<tool_call>\n<function=get_weather>\n<parameter=text>\nRome\n</parameter>\n</function>", "Rome"),
    # Qwen3-Coder leaves <tool_call> out
    ("qwen-xml", "<function=get_weather>\n<parameter=text>\nRome\n</parameter>\n</function>\n</tool_call>", "Rome"),
    ("qwen-xml", '<tool_call>\n{"name": "get_weather", "arguments": {"text": "Rome"}}\n</tool_call>', "Rome"),
    # a text that has the word at its end in it
    ("qwen-xml", "<function=get_weather><parameter=text>\na</parameter>b\n</parameter></function>", "a</parameter>b"),
    # numbers that are texts stay so (llama.cpp #20198)
    ("glm", "<tool_call>get_weather\n<arg_key>text</arg_key>\n<arg_value>0012</arg_value>\n</tool_call>", "0012"),
    ("glm", "<tool_call>get_weather<arg_key>text</arg_key><arg_value>a\nb</arg_value></tool_call>", "a\nb"),
    ("gemma", '<|tool_call>call:get_weather{text:<|"|>a, {b}: "c"<|"|>}<tool_call|>', 'a, {b}: "c"'),
    ("lfm2", "<|tool_call_start|>[get_weather(text='it's 5 o\\'clock')]<|tool_call_end|>", "it's 5 o'clock"),
    ("pythonic", '[get_weather(text="a\nb")]', "a\nb"),
    ("mistral-named", '[TOOL_CALLS]get_weather{"text": "Rome"}', "Rome"),
    ("mistral-named", '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"text": "Rome"}}]', "Rome"),
    ("deepseek-v3.1", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"text": "Rome"}', "Rome"),
    ("minimax-m2", '<minimax:tool_call><invoke name="get_weather"><parameter name="text">a</parameter></invoke>', "a"),
]


@pytest.mark.parametrize(("name", "output", "text"), REPORTED)
def test_reported_outputs(name: str, output: str, text: str) -> None:
    _, calls = read(BY_NAME[name], list(output))
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("get_weather", {"text": text})]


def test_special_tokens_mark_and_their_names_do_not() -> None:
    """A model that quotes a marker in plain text calls nothing."""
    words = SpecialWords(tokenizer("", ("<|tool_call>", "<tool_call|>", '<|"|>')), BY_NAME["gemma"].words)
    parser = CallParser(BY_NAME["gemma"], {"f": {}}, words=words)
    events = [*parser.push("I write <|tool_call>call:f{}<tool_call|> so: ", 1), *parser.push("", 500)]
    for text, token in (("call:f{a:", 2), ("", 502), ('x<|"|>', 3), ("", 502), ("}", 4), ("", 501)):
        events += parser.push(text, token)
    content, calls = content_and_calls([*events, *parser.finish()])
    assert content == "I write <|tool_call>call:f{}<tool_call|> so:"
    assert [json.loads(call.arguments) for call in calls] == [{"a": 'x<|"|>'}]


STRICT = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "flag": {"type": "boolean"},
        "one": {"enum": ["left", "right"]},
        "deep": {
            "type": "object",
            "properties": {"a": {"type": "array", "items": {"type": "integer"}}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
    "required": ["text", "one"],
    "additionalProperties": False,
}
GOOD = [
    {"text": "a b <c>", "one": "left"},
    {"text": "", "count": -3, "flag": True, "one": "right", "deep": {"a": [1, 2]}},
]
BAD = [{"text": "a"}, {"text": "a", "one": "up"}, {"text": "a", "count": "x", "one": "left"}, {"one": "left"}]


@pytest.mark.parametrize("name", [dialect.name for dialect in DIALECTS if dialect.models])
def test_grammars_hold_calls_to_their_schema(name: str) -> None:
    """What is forced is what the parser reads, and nothing that the schema forbids; also within free text."""
    pytest.importorskip("llguidance")
    dialect = BY_NAME[name]
    schemas = {"get_weather": STRICT, "f.g-h": {"type": "object", "properties": {}, "additionalProperties": False}}
    forced = forced_calls(dialect, schemas, {}, several=True)
    free = optional_calls(dialect, schemas, {}, (), several=True)
    for arguments in GOOD:
        text = written(dialect, [("get_weather", arguments)])
        assert writes(forced, text), text
        assert writes(free, text), text
        parser = CallParser(dialect, schemas, words=PLAIN, streams=True)
        reader = OutputReader(reader_of(PLAIN, HARMONY, False), None) if dialect.channel else OutputReader(None, parser)
        events = [event for piece in text for event in reader.push(piece)] + reader.finish()
        assert [json.loads(call.arguments) for call in content_and_calls(events)[1]] == [arguments]
    for arguments in BAD:
        text = written(dialect, [("get_weather", arguments)])
        assert not writes(forced, text), text
        assert not writes(free, text), text
    assert writes(forced, written(dialect, [("f.g-h", {})]))
    assert not writes(forced, "Hello")
    if dialect.several and not dialect.bare:
        assert writes(forced, written(dialect, [("f.g-h", {}), ("get_weather", GOOD[0])]))
    if not dialect.channel:
        assert writes(free, "Hello < there")


def test_templates_that_leave_calls_or_tools_out() -> None:
    """SmolLM3 and LFM2 write no earlier calls: these go into the content. DeepSeek's first templates know no tools:
    these go to the system."""
    said = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    teaching = f"{{% if tools %}}Write <tool_call>\n{{% endif %}}{said}</tool_call>"
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"text": "x"}'}}
    messages = [{"role": "assistant", "content": "Well.", "tool_calls": [call]}]
    turn = prepare(tokenizer(teaching), messages, TOOLS)
    assert turn.messages[0]["content"] == "Well." + written(BY_NAME["hermes"], [("get_weather", {"text": "x"})])
    bare = "{% if tools %}{{ tools }}{% endif %}" + said
    found = family_of(tokenizer(bare, ("<|tool_call_start|>", "<|tool_call_end|>")), TOOLS)
    assert isinstance(found, CallFamily)
    assert (found.dialect.name, found.renders) == ("lfm2", False)
    assert family_of(tokenizer(bare), TOOLS) == NoFamily("")
    silent = TEMPLATES["deepseek-v3.1"].replace("{% if tools %}", "{% if false %}")
    described = prepare(tokenizer(silent), [{"role": "user", "content": "Hi"}], TOOLS).messages
    assert [each["role"] for each in described] == ["system", "user"]
    assert all(name in described[0]["content"] for name in (*NAMES, "<｜tool▁sep｜>"))


def test_tools_under_the_name_that_smollm3_has_for_them() -> None:
    """Its template knows no `tools`, and wants functions without a wrapper; a request's own `xml_tools` come first."""
    template = (
        "{%- if xml_tools or python_tools -%}{%- for tool in xml_tools[:] -%}{{ (tool | string) ~ '\n' }}{%- endfor -%}"
        "return a json object within <tool_call></tool_call> XML tags:\n<tool_call>\n{}\n</tool_call>{%- endif -%}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>"
    )
    found = family_of(tokenizer(template), TOOLS)
    assert isinstance(found, CallFamily)
    assert (found.dialect.name, found.renders, found.describes) == ("hermes", False, True)
    turn = prepare(tokenizer(template), [{"role": "user", "content": "Hi"}], TOOLS)
    assert turn.tools is not None
    text = rendered_with(template, (), turn.messages, turn.tools) or ""
    assert text.startswith(str(turn.tools[0]["function"]) + "\n")
    own = rendered_with(template, (), turn.messages, turn.tools, {"xml_tools": ["mine"]}) or ""
    assert own.startswith("mine\nreturn")


def test_arguments_as_templates_want_them() -> None:
    """As a text where the template adds them to one."""
    template = TEMPLATES["deepseek-v3.1"].replace("{{ c.arguments | tojson }}", "{{ '' + c.arguments }}")
    found = family_of(tokenizer(template), TOOLS)
    assert isinstance(found, CallFamily)
    assert found.as_text
    assert '<｜tool▁sep｜>{"text": "x"}' in rendered(template, [("get_weather", {"text": "x"})])


# What llama.cpp's templates come to (models/templates in its repository), where they do not come to Hermes.
LLAMA_CPP = {
    "GLM-4": "glm",
    "Qwen3-Coder": "qwen-xml",
    "Qwen3.5": "qwen-xml",
    "Nemotron-3": "qwen-xml",
    "StepFun3.5": "qwen-xml",
    "openai-gpt-oss": "harmony",
    "DeepSeek-V3.1": "deepseek-v3.1",
    "DeepSeek-V3.2": "deepseek-v3.2",
    "V4": "deepseek-v4",
    "gemma-4": "gemma",
    "moonshotai": "kimi",
    "MiniMax-M2": "minimax-m2",
    "MiniMax-M3": None,
    "Seed-OSS": "seed",
    "Apertus": "apertus",
    "granite-3.3": "granite",
    "command-r7b": "command",
    "Cohere2MoE": "command",
    "Apriel": "hunyuan",
    "Llama-3": "llama",
    "Nemo-": "mistral",
    "Devstral": "mistral-named",
    "Ministral": "mistral-named",
    "Hy3": "hunyuan-3",
    "Small-3.2": "mistral-named",
    "LFM2.5-8B": "lfm2",
    "MiMo": "hermes",
    "Qwen2.5": "hermes",
    "Qwen3-0": "hermes",
    "granite-4": "hermes",
    "MiniCPM5": "minicpm",
    "Solar": "solar",
    "functionary-medium-v3.1": "functionary",
}


@pytest.mark.skipif("LLAMA_CPP_TEMPLATES" not in os.environ, reason="LLAMA_CPP_TEMPLATES names no folder")
def test_templates_of_llama_cpp() -> None:
    """Its folder of published templates: each has the dialect of its model, or is refused with what it writes."""
    unseen = set(LLAMA_CPP)
    for path in sorted(Path(os.environ["LLAMA_CPP_TEMPLATES"]).glob("*.jinja")):
        found = family_of(tokenizer(path.read_text()), TOOLS)
        for part, name in LLAMA_CPP.items():
            if part in path.name and not (part == "Llama-3" and "meta" not in path.name):
                assert (found.dialect.name if isinstance(found, CallFamily) else None) == name, path.name
                unseen.discard(part)
    assert not unseen
