"""Tools of a request: what the chat template is given, what the text is held to, and who reads the calls out of it."""

from __future__ import annotations

import hashlib
import json
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ipex_assist.env.errors import UsageError
from ipex_assist.serve.backend import InvalidField
from ipex_assist.serve.json_schemas import adapt_schema
from ipex_assist.serve.tools.call_grammars import calls_or_json, final_head, forced_calls, optional_calls
from ipex_assist.serve.tools.call_parser import CallParser
from ipex_assist.serve.tools.dialect_choice import CallFamily, NoFamily, family_of
from ipex_assist.serve.tools.dialects import DIALECTS, Dialect, written
from ipex_assist.serve.tools.parsed_events import call_id, short_id
from ipex_assist.speculative.choosing.grammar import GrammarSpec
from ipex_assist.tokenization.thinking import END, FORMAT_WORDS, START, SpecialWords

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_WORDS = frozenset(word for dialect in DIALECTS for word in dialect.words)
SCHEMA_FIELDS = "tools[{}].function.parameters"  # of /v1/chat/completions

# Where a schema has one of these, it says by them what other arguments there may be.
_OPEN = {"additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "$ref"}


@dataclass(frozen=True)
class PreparedConversation:
    """messages, tools: for `encode_messages`. grammar: what the text is held to, that of the response format included.

    parser: makes the parser of one text; None where there is nothing to read calls from: all of it is content then.
    channel: whether calls are messages of harmony's, which the reader of thoughts tells apart.
    calls: the calls alone, where a text may have others beside them: checked first, as texts at random hardly come to
    one, and so that errors name the right field.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    grammar: GrammarSpec | None = None
    parser: Callable[[], CallParser] | None = None
    calls: GrammarSpec | None = None
    channel: bool = False


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
    wanted = bool(known) or any(each.get("tool_calls") for each in messages)
    found = family_of(tokenizer, known or None) if wanted else NoFamily()
    family = found if isinstance(found, CallFamily) else None
    turns = _turns(messages, family)
    if not known or mode == "none":
        return PreparedConversation(turns, grammar=response)
    if isinstance(found, NoFamily):
        raise InvalidField(_refusal(found), "tools")
    dialect = found.dialect
    markers = grammar_markers(tokenizer, dialect)
    strict = [name for name, tool in zip(names, tools or (), strict=True) if tool["function"].get("strict")]
    grammar, calls = response, None
    schemas_of = partial(_schemas, known, schema_fields=schema_fields)
    if mode == "forced":
        several = parallel and tool_choice == "required"
        grammar = forced_calls(dialect, schemas_of(called), markers, several=several)
    elif response is not None:
        calls = forced_calls(dialect, schemas_of(names), markers, several=parallel)
        grammar = calls_or_json(calls, response, final_head(markers) if dialect.channel else "")
    elif strict:
        schemas = {name: {"type": "object"} for name in names} | schemas_of(strict)
        others = grammar_specials(tokenizer).keys() - markers.keys()
        grammar = optional_calls(dialect, schemas, markers, others, several=parallel)
        calls = forced_calls(dialect, schemas, markers, several=parallel)
    held = called if mode == "forced" else names if response is not None else strict
    field = schema_fields.format(names.index(held[0])) if len(held) == 1 else "tools"
    grammar, calls = (each and replace(each, field=each.field or field) for each in (grammar, calls))

    parser = None if dialect.channel else _parser_of(tokenizer, dialect, known, parallel, grammar is not None)
    if not found.describes:
        turns = _described(turns, known, dialect)
    return PreparedConversation(turns, known, grammar, parser, calls, dialect.channel)


def _parser_of(
    tokenizer: PreTrainedTokenizerBase, dialect: Dialect, tools: list[dict[str, Any]], parallel: bool, held: bool
) -> Callable[[], CallParser]:
    """What makes the parser of one text. held: whether a grammar holds calls to the dialect's own form: a call in
    another one would be held to nothing, and is text."""
    form = replace(dialect, also=()) if held else dialect
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    words, new_id = special_words(tokenizer), short_id if dialect.call_ids == "9" else call_id
    return lambda: CallParser(form, schemas, words=words, parallel=parallel, streams=held, new_id=new_id)


def _described(turns: list[dict[str, Any]], tools: list[dict[str, Any]], dialect: Dialect) -> list[dict[str, Any]]:
    """The messages with the tools in that of the system, for a template that knows calls and no tools."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = written(dialect, [("NAME", {"ARGUMENT": "VALUE"})])
    text = f"You may call these functions:\n{listed}\nTo call one, write:\n{example}"
    if turns and turns[0].get("role") == "system":
        return [{**turns[0], "content": f"{turns[0].get('content') or ''}\n\n{text}"}, *turns[1:]]
    return [{"role": "system", "content": text}, *turns]


def _refusal(found: NoFamily) -> str:
    """Why there can be no tools."""
    if found.rendered is None:
        return "tools: the chat template of this model has no place for tools. Leave tools out, or serve another model"
    wrote = f": {found.rendered.strip()!r}" if found.rendered.strip() else ""
    known = ", ".join(sorted({dialect.name for dialect in DIALECTS if dialect.models}))
    return (
        f"tools: the chat template of this model writes calls in a form that is not known here{wrote} (known are "
        f"{known}). Leave tools out, or serve another model"
    )


def special_words(tokenizer: PreTrainedTokenizerBase) -> SpecialWords:
    """The special tokens that mark calls or thoughts; the same object for all that reads one output."""
    try:
        kept = _special_words.get(tokenizer)
    except TypeError:  # it cannot be kept
        return SpecialWords(tokenizer, (*_WORDS, *FORMAT_WORDS))
    if kept is None:
        kept = _special_words[tokenizer] = SpecialWords(tokenizer, (*_WORDS, *FORMAT_WORDS))
    return kept


_special_words: weakref.WeakKeyDictionary[Any, SpecialWords] = weakref.WeakKeyDictionary()


def grammar_specials(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """The tokens that no text in a grammar matches, by their ids: special ones, and as llguidance has it, all added
    tokens that are named <…>."""
    added = tokenizer.added_tokens_decoder.items()
    return {number: token.content for number, token in added if token.special or _NAMED.fullmatch(token.content)}


_NAMED = re.compile("<.*>", re.DOTALL)


def grammar_markers(tokenizer: PreTrainedTokenizerBase, dialect: Dialect) -> dict[int, str]:
    """Those of them that are in a dialect's words, longer ones first."""
    words = (*dialect.words, *((START, END) if dialect.channel else ()))
    found = [(number, name) for number, name in grammar_specials(tokenizer).items() if any(name in w for w in words)]
    return dict(sorted(found, key=lambda each: -len(each[1])))


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


def _turns(messages: Sequence[Mapping[str, Any]], family: CallFamily | None) -> list[dict[str, Any]]:
    """The messages as the template reads them."""
    ids = _CallIds("" if family is None else family.dialect.call_ids)
    return [_message(message, family, ids) for message in messages]


def _message(message: Mapping[str, Any], family: CallFamily | None, ids: _CallIds) -> dict[str, Any]:
    made = dict(message)
    if made.get("tool_calls"):
        calls = [_call(call, family, ids) for call in made["tool_calls"]]
        if family is not None and not family.renders:
            pairs = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
            text = written(family.dialect, [(name, value) for name, value in pairs if isinstance(value, Mapping)])
            made["content"] = f"{made.get('content') or ''}{text}"
        made["tool_calls"] = calls
        thought = made.get("reasoning_content")
        if family is not None and family.dialect.channel and thought and made.get("content"):
            # gpt-oss's template takes one of them beside calls.
            made["reasoning_content"], made["content"] = f"{thought}\n{made['content']}", ""
    if made.get("tool_call_id") is not None:
        made["tool_call_id"] = ids.of(str(made["tool_call_id"]))
    return made


def _call(call: Mapping[str, Any], family: CallFamily | None, ids: _CallIds) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            value = None
        function["arguments"] = value if isinstance(value, dict) else arguments
    if family is not None and family.as_text and not isinstance(function.get("arguments"), str):
        function["arguments"] = json.dumps(function.get("arguments"), ensure_ascii=False)
    made = {**call, "type": "function", "function": function}
    if made.get("id") is not None:
        made["id"] = ids.of_call(str(made["id"]), str(function.get("name")))
    return made


class _CallIds:
    """Ids of calls as a template takes them; the same one for the same name. form: see Dialect.call_ids."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._given: dict[str, str] = {}

    def of_call(self, name: str, function: str) -> str:
        """The id of the next call."""
        if "{index}" in self._form:
            self._given[name] = self._form.format(name=function, index=len(self._given))
        return self.of(name)

    def of(self, name: str) -> str:
        """The id that a call has, or that a result names."""
        if self._form == "9" and not re.fullmatch("[a-zA-Z0-9]{9}", name):
            return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:9]
        return self._given.get(name, name)
