"""Tools of a request: what the chat template is given, what the text is held to, and who reads the calls out of it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ipex_assist.env.errors import UsageError
from ipex_assist.serve.backend import InvalidField
from ipex_assist.serve.json_schemas import adapt_schema
from ipex_assist.serve.tools.call_grammars import (
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_NAMED,
    CallSyntax,
    calls_or_json,
    forced_calls,
    optional_calls,
)
from ipex_assist.serve.tools.call_parser import CallParser, call_id, short_id
from ipex_assist.serve.tools.call_parsers import (
    HERMES_CLOSE,
    HERMES_OPEN,
    LLAMA_TAG,
    MISTRAL_ARGS,
    MISTRAL_CALL_ID,
    MISTRAL_CALLS,
    HermesParser,
    LlamaParser,
    MistralParser,
)
from ipex_assist.speculative.choosing.grammar import GrammarSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Words of templates whose calls look like Hermes', and are something else (Qwen3-Coder, GLM).
_OTHER_FORMS = ("<function=", "<arg_key>")
_MARKERS = (HERMES_OPEN, HERMES_CLOSE, LLAMA_TAG, MISTRAL_CALLS, MISTRAL_ARGS, MISTRAL_CALL_ID)

SCHEMA_FIELDS = "tools[{}].function.parameters"  # of /v1/chat/completions

# Where a schema has one of these, it says by them what other arguments there may be.
_OPEN = {"additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "$ref"}


@dataclass(frozen=True)
class CallFamily:
    """How some models write calls, by what their chat templates contain."""

    form: CallSyntax
    parser: type[CallParser]
    new_id: Callable[[], str] = call_id


@dataclass(frozen=True)
class PreparedConversation:
    """messages, tools: for `encode_messages`. grammar: what the text is held to, that of the response format included.

    parser: makes the parser of one text; None where there is nothing to read calls from: all of it is content then.
    calls: the calls alone, where a text may have others beside them: checked first, as texts at random hardly come to
    one, and so that errors name the right field.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    grammar: GrammarSpec | None = None
    parser: Callable[[], CallParser] | None = None
    calls: GrammarSpec | None = None


def prepare(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: str | Mapping[str, Any] | None = None,
    *,
    parallel: bool = True,
    response: GrammarSpec | None = None,
    schema_fields: str = SCHEMA_FIELDS,
) -> PreparedConversation:
    """What a conversation with tools needs, by OpenAI's fields of the same names; also without any tools.

    response: the grammar of the response format, or None. schema_fields: the path of a tool's schema in the body, with
    {} for its number, for errors. Calls of earlier messages become what templates read: their arguments objects, and
    their ids such as the family takes. Where a tool is strict the text may be any, but a call in
    it is held to its schema. Raises InvalidField, for status 400: a tool that is not there, tools for a model whose
    template knows none or has an unknown form of calls, a schema that cannot be forced.
    """
    known = [_tool(tool, place) for place, tool in enumerate(tools or ())]
    names = [tool["function"]["name"] for tool in known]
    mode, called = _choice(tool_choice, names)
    family = family_of(tokenizer, known or None) if known or any(each.get("tool_calls") for each in messages) else None
    written = [_message(message, family) for message in messages]
    if not known or mode == "none":
        return PreparedConversation(written, grammar=response)
    if family is None:
        raise InvalidField(
            "tools: the chat template of this model has no place for tools, or writes calls in a form that is not "
            "known here (known are those of Hermes and Qwen, Llama 3 and Mistral). Leave tools out, or serve another "
            "model",
            "tools",
        )
    markers = special_markers(tokenizer)
    strict = [name for name, tool in zip(names, tools or (), strict=True) if tool["function"].get("strict")]
    grammar, calls = response, None
    schemas_of = partial(_schemas, known, schema_fields=schema_fields)
    if mode == "forced":
        several = parallel and tool_choice == "required"
        grammar = forced_calls(family.form, schemas_of(called), markers, several=several)
    elif response is not None:
        calls = forced_calls(family.form, schemas_of(names), markers, several=parallel)
        grammar = calls_or_json(calls, response)
    elif strict:
        schemas = {name: {"type": "object"} for name in names} | schemas_of(strict)
        others = special_tokens(tokenizer) - markers.keys()
        grammar = optional_calls(family.form, schemas, markers, others, several=parallel)
        calls = forced_calls(family.form, schemas, markers, several=parallel)
    held = called if mode == "forced" else names if response is not None else strict
    field = schema_fields.format(names.index(held[0])) if len(held) == 1 else "tools"
    grammar, calls = (each and replace(each, field=each.field or field) for each in (grammar, calls))

    def parser() -> CallParser:
        assert family is not None
        return family.parser(
            names, parallel=parallel, streams=grammar is not None, markers=markers, new_id=family.new_id
        )

    return PreparedConversation(written, known, grammar, parser, calls)


def family_of(tokenizer: PreTrainedTokenizerBase, tools: list[dict[str, Any]] | None) -> CallFamily | None:
    """How the model writes calls, by its chat template; None where that has no tools, or an unknown form of calls."""
    try:
        template = str(tokenizer.get_chat_template(None, tools=tools))
    except ValueError:  # there is none
        return None
    if not re.search(r"\btools\b", template) or any(word in template for word in _OTHER_FORMS):
        return None
    if MISTRAL_CALLS in template:
        return CallFamily(MISTRAL_NAMED if MISTRAL_ARGS in template else MISTRAL, MistralParser, short_id)
    if HERMES_OPEN in template:
        return CallFamily(HERMES, HermesParser)
    if LLAMA_TAG in template or ('"parameters"' in template and "ipython" in template):
        return CallFamily(LLAMA, LlamaParser)
    return None


def special_markers(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """The special tokens among the words that mark calls, which no text shows, by their ids."""
    added = tokenizer.added_tokens_decoder.items()
    return {number: token.content for number, token in added if token.special and token.content in _MARKERS}


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """The ids of tokens that no text shows."""
    return {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}


def _tool(tool: Mapping[str, Any], place: int) -> dict[str, Any]:
    """A tool as templates expect it: without fields that say nothing, with parameters."""
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, Mapping) or not function.get("name"):
        raise InvalidField(
            f"tools[{place}] must be {{'type': 'function', 'function': {{'name': …}}}}", f"tools[{place}]"
        )
    kept = {key: value for key, value in function.items() if value is not None and key != "strict"}
    kept.setdefault("description", "")
    kept.setdefault("parameters", {"type": "object", "properties": {}})
    return {"type": "function", "function": kept}


def _choice(choice: str | Mapping[str, Any] | None, names: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Whether calls are "auto", "none" or "forced", and the names of those that are forced."""
    if len(set(names)) < len(names):
        raise InvalidField("tools: two of them have the same name", "tools")
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if name not in names:
            known = ", ".join(names) or "none"
            raise InvalidField(
                f"tool_choice names {str(name)[:100]!r}, which is not among the tools ({known})", "tool_choice"
            )
        return "forced", [str(name)]
    if choice not in (None, "auto", "none", "required"):
        raise InvalidField(
            f"tool_choice is {str(choice)[:100]!r}; there are auto, none, required, and a function's name",
            "tool_choice",
        )
    if choice == "required" and not names:
        raise InvalidField("tool_choice is required, and there are no tools", "tool_choice")
    return ("forced", names) if choice == "required" else (choice or "auto", ())


def _schemas(tools: Sequence[Mapping[str, Any]], names: Sequence[str], schema_fields: str) -> dict[str, Any]:
    """By these names of functions, what their arguments must be: no others than those named, where any are."""
    schemas = {}
    for place, function in enumerate(tool["function"] for tool in tools):
        if function["name"] not in names:
            continue
        try:
            schema = {"type": "object", **adapt_schema(function["parameters"])}
        except UsageError as error:
            message = f"the parameters of the tool {function['name']} cannot be forced: {error}"
            raise InvalidField(message, schema_fields.format(place)) from None
        if "properties" in schema and not _OPEN & schema.keys():
            schema["additionalProperties"] = False
        schemas[function["name"]] = schema
    return schemas


def _message(message: Mapping[str, Any], family: CallFamily | None) -> dict[str, Any]:
    """A message as templates read it."""
    made = dict(message)
    if made.get("tool_call_id") is not None:
        made["tool_call_id"] = _id(str(made["tool_call_id"]), family)
    if made.get("tool_calls"):
        made["tool_calls"] = [_call(call, family) for call in made["tool_calls"]]
    return made


def _call(call: Mapping[str, Any], family: CallFamily | None) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            value = None
        function["arguments"] = value if isinstance(value, dict) else arguments
    made = {**call, "type": "function", "function": function}
    if made.get("id") is not None:
        made["id"] = _id(str(made["id"]), family)
    return made


def _id(name: str, family: CallFamily | None) -> str:
    """An id as the family's template takes it; the same one for the same name."""
    if family is None or family.new_id is not short_id or re.fullmatch("[a-zA-Z0-9]{9}", name):
        return name
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:9]
