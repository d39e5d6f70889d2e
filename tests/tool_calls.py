"""Tools and templates for tests, and whether a grammar allows a text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import fake_backend
import pytest
from fake_backend import FakeBackend

from ipex_assist.speculative.choosing.grammar import GrammarSpec

# A template of the Hermes form that can be rendered, a tool, and a call of it.
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }} <tool_call>{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
FUNCTION = {"name": "get_weather", "arguments": '{"city": "Rome"}'}

HERMES_TEMPLATE = "{% for t in tools %}{{ t }}{% endfor %}<tool_call>"
LLAMA_TEMPLATE = "{% if tools %}<|python_tag|>{% endif %}"
MISTRAL_TEMPLATE = "{{ tools }}[TOOL_CALLS]"


def tokenizer(template: str | None, special: dict[int, str] | None = None) -> Any:
    """As far as `prepare` looks at one."""

    def get_chat_template(name: Any, tools: Any = None) -> str:
        if template is None:
            raise ValueError("none")
        return template

    added = {number: SimpleNamespace(content=text, special=True) for number, text in (special or {}).items()}
    return SimpleNamespace(get_chat_template=get_chat_template, added_tokens_decoder=added)


def tool(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    function = {"name": name, "description": None, "parameters": parameters, **more}
    return {"type": "function", "function": function}


XY = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "string"}}, "required": ["x"]}
TOOLS = [tool("add", XY), tool("get_weather")]
USER = [{"role": "user", "content": "hi"}]


def writes(spec: GrammarSpec | None, text: str) -> bool:
    """Whether a grammar allows a whole text."""
    from ipex_assist.serve.grammar_trial import byte_tokenizer
    from ipex_assist.speculative.choosing.llguidance_grammar import LlguidanceGrammar, initial_matcher

    assert spec is not None
    state = LlguidanceGrammar(initial_matcher(spec, byte_tokenizer()), 257, frozenset([256]))
    tokens = [*text.encode()]
    if state.allows(tokens) < len(tokens):
        return False
    for token in tokens:
        state.advance(token)
    return bool(state.mask()[256])


def hermes(*pairs: tuple[str, str]) -> str:
    each = (f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>' for name, arguments in pairs)
    return "\n".join(each)


def calling_backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    """A backend of a model whose template takes tools, which calls one twice."""
    monkeypatch.setattr(fake_backend.tokenizer(), "chat_template", TEMPLATE)
    return FakeBackend(f"Let me see.\n{CALL}\n{CALL}", context_length=4096)
