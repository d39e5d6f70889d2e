"""Renders chat templates with jinja2 as transformers does, without importing transformers."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

LONGEST_DATE = 1000  # characters of a date's format; the date may have 256 times as many
SAFE_JINJA = (3, 1, 6)  # older versions have known sandbox escapes


# By these names a message may have what its model thought; the first that is there counts.
_REASONING = ("reasoning_content", "thinking", "reasoning")

# Gemma 3's place for an image.
_GEMMA_IMAGE = "<start_of_image>"


def with_lines_around_images(template: str) -> str:
    """The template with the empty lines around Gemma 3's images, which merge with those of the text beside them.

    transformers' processor puts them there before tokens are made.
    """
    return template.replace(_GEMMA_IMAGE, f"\\n\\n{_GEMMA_IMAGE}\\n\\n")


def apply_template(
    tokenizer: Any,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Render a conversation by the tokenizer's chat template, with the generation prompt.

    tools: functions that the model may call, in OpenAI's form. variables: further ones of the template, such as
    enable_thinking. Raises what jinja2, or the template itself, raises.
    """
    template = chosen_template(tokenizer.chat_template, tools)
    if tools and "xml_tools" in template:  # SmolLM3's name for them, and its form: functions without a wrapper
        variables = {"xml_tools": [tool.get("function", tool) for tool in tools], **(variables or {})}
    facts = {**(variables or {}), **tokenizer.special_tokens_map, "add_generation_prompt": True}
    text = _render_none(
        [_with_reasoning(message) for message in messages], lambda each: render(template, each, facts, tools)
    )
    if text is None:
        text = str(
            tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=True, tokenize=False, **(variables or {})
            )
        )
    return text


def chosen_template(template: Any, tools: Any = None) -> str:
    """Of several templates by name that for tools, where there are tools and it is there, else the default one.

    Raises ValueError where there is none.
    """
    if isinstance(template, str):
        return template
    for name in ("tool_use", "default") if tools is not None else ("default",):
        if name in template:
            return str(template[name])
    raise ValueError(f"it has several chat templates, {', '.join(template)}, of which none is the default")


def _render_none(messages: list[dict[str, Any]], rendered: Callable[[list[dict[str, Any]]], str | None]) -> str | None:
    """Render messages of which some may have no content (None), as calls of tools have none.

    Templates differ: some take a call by it, others fail, or write "None". So None becomes "" only for the latter.
    """
    empty = [{**each, "content": ""} if each.get("content") is None else each for each in messages]
    if empty == messages:
        return rendered(messages)
    try:
        text = rendered(messages)
    except Exception:
        return rendered(empty)
    if text is None or "None" not in text:
        return text
    other = rendered(empty)
    return other if other is not None and other.count("None") < text.count("None") else text


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its reasoning under the names that templates read, as transformers 5 gives it to them."""
    reasoning = next((message[key] for key in _REASONING if message.get(key) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def is_plain(conversation: Any) -> bool:
    """Whether all messages have just a role and a string, so that transformers would not preprocess them."""
    return (
        isinstance(conversation, list)
        and bool(conversation)
        and all(
            isinstance(message, dict)
            and message.keys() == {"role", "content"}
            and all(type(value) is str for value in message.values())
            for message in conversation
        )
    )


def render(
    template: str, messages: list[dict[str, Any]], facts: dict[str, Any], tools: list[dict[str, Any]] | None = None
) -> str | None:
    """Render a template with messages of plain data. Returns None if this jinja2 is too old to be safe.

    facts: further variables of the template. Raises what jinja2, or the template itself, raises.
    """
    import jinja2

    version = tuple(int(part) for part in jinja2.__version__.split(".")[:3] if part.isdecimal())
    if version < SAFE_JINJA:
        return None
    # Passed as None like transformers does: templates test for it.
    return str(_compiled(template).render(messages=messages, tools=tools, documents=None, **facts))


@functools.lru_cache(maxsize=8)
def _compiled(template: str) -> Any:
    """Compile a template, which is untrusted, in the environment of transformers (utils/chat_template_utils.py)."""
    import jinja2
    import jinja2.ext
    import jinja2.nodes

    from ipex_assist.tokenization.template_sandbox import BoundedEnvironment, bounded_filter

    class Generation(jinja2.ext.Extension):
        """The {% generation %} tag, which marks assistant tokens for training; no effect here."""

        tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_as_it_is"), [], [], body).set_lineno(line)

        def _as_it_is(self, caller: Any) -> Any:
            return caller()

    class Namespace(jinja2.utils.Namespace):
        """Rejects names with a leading underscore, which would give access to interpreter internals."""

        def __init__(*args: Any, **attributes: Any) -> None:
            names = dict(*args[1:], **attributes)
            for name in names:
                _check_name(name)
            jinja2.utils.Namespace.__init__(args[0], names)

        def __setitem__(self, name: str, value: Any) -> None:
            _check_name(name)
            jinja2.utils.Namespace.__setitem__(self, name, value)

    def raise_exception(message: str) -> None:
        raise jinja2.exceptions.TemplateError(BoundedEnvironment.checked(message))

    def strftime_now(form: str) -> str:
        if len(form) > LONGEST_DATE:
            raise jinja2.exceptions.SecurityError(f"a chat template's date has more than {LONGEST_DATE:,} characters")
        return datetime.now().strftime(form)

    environment = BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = bounded_filter("tojson", _to_json)  # jinja2's own escapes HTML
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": strftime_now,
        "dict": _Dict(BoundedEnvironment.checked),
        "namespace": Namespace,
    }
    return environment.from_string(template)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        import jinja2

        raise jinja2.exceptions.SecurityError(f"a chat template cannot keep the name {name!r}: it has an underscore")


def _to_json(
    x: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Dict:
    """`dict` without its other attributes. checked: of keys, which are hashed."""

    def __init__(self, checked: Callable[[Any], Any]) -> None:
        self._checked = checked

    def __call__(self, *args: Any, **items: Any) -> dict[Any, Any]:
        return dict(*map(self._checked, args), **items)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*map(self._checked, args))
