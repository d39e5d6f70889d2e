"""How models write calls: one table for the parser of outputs and for the grammars that force calls.

A `Dialect` is data: the words before and after a call's name, its arguments and the calls of an answer, and how
arguments are written (`JsonArguments`, a whole `CallObject` with the name in it, `TaggedArguments` whose values are
typed by the tool's schema, `LiteralArguments` in Python's or Gemma's notation). White space in these words is written
by grammars and taken in any amount by the parser (dialect_parser.py). Words that are special tokens of the vocabulary
mark calls as tokens alone (`SpecialWords` of tokenization/thinking.py). Which dialect a checkpoint has is found by
rendering a call with its own chat template and reading it back with each row (dialect_choice.py), never by looking for
a word in the template. Where thoughts stand is the business of the reader before the parser: a call drafted in a
thought is none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

INDEX, ID = "{index}", "{id}"  # in a word: the number of a call, from 0; its id


@dataclass(frozen=True)
class JsonArguments:
    """The arguments as a JSON object, after the name."""


@dataclass(frozen=True)
class CallObject:
    """The call as a JSON object that has the name and the arguments, in any order; `before`: other fields at first."""

    name: str = "name"
    arguments: str = "arguments"
    before: str = ""

    @property
    def opened(self) -> str:
        """What comes before the name."""
        return f'{{{self.before}"{self.name}": "'

    @property
    def after_name(self) -> str:
        """What comes between name and arguments."""
        return f'", "{self.arguments}": '


@dataclass(frozen=True)
class TaggedArguments:
    """Each argument between words. A text stands as it is, anything else as JSON, by the schema of the argument.

    other: in place of after_key before what is no text, where the form says so itself. cdata: a text may be in a CDATA
    section.
    """

    before_key: str
    after_key: str
    after_value: str
    other: str = ""
    cdata: bool = False


@dataclass(frozen=True)
class LiteralArguments:
    """Arguments as literals with their names. quotes: around texts. assigned: between a name and its value.

    raw: whether nothing is escaped in texts; keys of objects have no quotes then.
    """

    quotes: tuple[str, ...] = ('"', "'")
    assigned: str = "="
    separator: str = ", "
    closed: str = ")"
    raw: bool = False


Arguments: TypeAlias = JsonArguments | CallObject | TaggedArguments | LiteralArguments


@dataclass(frozen=True)
class Dialect:
    """A row of the table.

    opened, between, closed: around and between the calls of an answer. before_name, after_name, after_call: around the
    name, and after the arguments. several: whether an answer may have more than one call. bare: a call is the whole
    answer, at most after `tag`. skipped: a word that may come after the name, with whatever is before after_name. also:
    rows that are read where this one does not fit. known_only: what names none of the tools is no call. call_ids: what
    the ids of earlier calls must be for the template. channel: calls are messages of harmony's, which the reader of
    thoughts tells apart. shown: whether templates are known to leave calls out, so that the row is found by how the
    template explains tools, or by the vocabulary.
    """

    name: str
    models: str
    arguments: Arguments
    opened: str = ""
    before_name: str = ""
    after_name: str = ""
    after_call: str = ""
    between: str = ""
    closed: str = ""
    several: bool = True
    bare: bool = False
    tag: str = ""
    skipped: str = ""
    also: tuple[str, ...] = ()
    known_only: bool = False
    call_ids: str = ""
    channel: bool = False

    @property
    def opener(self) -> str:
        """The word that marks a call within text; empty where calls are the whole answer."""
        return "" if self.bare else chunks(self.opened or self.before_name)[0]

    @property
    def words(self) -> tuple[str, ...]:
        """All its words, for special tokens to be looked for in."""
        args = self.arguments
        more: tuple[str, ...] = ()
        if isinstance(args, TaggedArguments):
            more = (args.before_key, args.after_key, args.other, args.after_value)
        elif isinstance(args, LiteralArguments):
            more = (*args.quotes, args.closed)
        own = (self.opened, self.before_name, self.after_name, self.after_call, self.closed, self.tag, self.skipped)
        return (*own, *more)


def chunks(text: str) -> list[str]:
    """A dialect's text without its white space, in words; INDEX and ID are words of their own."""
    return [each for word in text.split() for each in _PLACES.split(word) if each]


_PLACES = re.compile(f"({re.escape(INDEX)}|{re.escape(ID)})")


_OBJECT = CallObject()
_GLM = TaggedArguments("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")
_QWEN = TaggedArguments("<parameter=", ">\n", "\n</parameter>\n")
_DSML = TaggedArguments(
    '<｜DSML｜parameter name="', '" string="true">', "</｜DSML｜parameter>\n", other='" string="false">'
)
_HY = TaggedArguments(
    "<arg_key:opensource>", "</arg_key:opensource>\n<arg_value:opensource>", "</arg_value:opensource>\n"
)

DIALECTS = (
    Dialect(
        "hermes", "Hermes, Qwen2.5, Qwen3, QwQ, Granite 4, SmolLM3, ERNIE 4.5, MiMo, Bielik", _OBJECT,
        before_name="<tool_call>\n", after_call="\n</tool_call>", between="\n", also=("tools", "fenced", "qwen-xml"),
    ),
    Dialect("tools", "", _OBJECT, opened="<tools>\n", closed="\n</tools>", between="\n", known_only=True),
    Dialect("fenced", "", _OBJECT, opened="```json\n", closed="\n```", between="\n", known_only=True),
    Dialect(
        "qwen-xml", "Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5", _QWEN,
        before_name="<tool_call>\n<function=", after_name=">\n", after_call="</function>\n</tool_call>", between="\n",
        also=("qwen-xml-bare", "hermes"),
    ),
    Dialect(
        "qwen-xml-bare", "", _QWEN, before_name="<function=", after_name=">\n", after_call="</function>",
        known_only=True,
    ),
    Dialect(
        "glm", "GLM 4.5 to 5, Ling 3, Laguna, Spark", _GLM,
        before_name="<tool_call>", after_name="\n", after_call="</tool_call>", between="\n",
    ),
    Dialect(
        "harmony", "gpt-oss", JsonArguments(), before_name="<|channel|>commentary to=functions.",
        after_name=" <|constrain|>json<|message|>", several=False, channel=True,
    ),
    Dialect(
        "deepseek-v3", "DeepSeek V3, R1", JsonArguments(), opened="<｜tool▁calls▁begin｜>",
        before_name="<｜tool▁call▁begin｜>function<｜tool▁sep｜>", after_name="\n```json\n",
        after_call="\n```<｜tool▁call▁end｜>", between="\n", closed="<｜tool▁calls▁end｜>",
    ),
    Dialect(
        "deepseek-v3.1", "DeepSeek V3.1", JsonArguments(), opened="<｜tool▁calls▁begin｜>",
        before_name="<｜tool▁call▁begin｜>", after_name="<｜tool▁sep｜>", after_call="<｜tool▁call▁end｜>",
        closed="<｜tool▁calls▁end｜>",
    ),
    Dialect(
        "deepseek-v3.2", "DeepSeek V3.2", _DSML, opened="<｜DSML｜function_calls>\n",
        before_name='<｜DSML｜invoke name="', after_name='">\n', after_call="</｜DSML｜invoke>\n",
        closed="</｜DSML｜function_calls>",
    ),
    Dialect(
        "deepseek-v4", "DeepSeek V4", _DSML, opened="<｜DSML｜tool_calls>\n",
        before_name='<｜DSML｜invoke name="', after_name='">\n', after_call="</｜DSML｜invoke>\n",
        closed="</｜DSML｜tool_calls>",
    ),
    Dialect(
        "gemma", "Gemma 4", LiteralArguments(('<|"|>',), ":", ",", "}", raw=True),
        before_name="<|tool_call>call:", after_name="{", after_call="<tool_call|>",
    ),
    Dialect(
        "kimi", "Kimi K2", JsonArguments(), opened="<|tool_calls_section_begin|>",
        before_name="<|tool_call_begin|>functions.", after_name=f":{INDEX}<|tool_call_argument_begin|>",
        after_call="<|tool_call_end|>", closed="<|tool_calls_section_end|>", call_ids="functions.{name}:{index}",
    ),
    Dialect(
        "minimax-m2", "MiniMax M2", TaggedArguments('<parameter name="', '">', "</parameter>\n"),
        opened="<minimax:tool_call>\n", before_name='<invoke name="', after_name='">\n', after_call="</invoke>\n",
        closed="</minimax:tool_call>",
    ),
    Dialect(
        "minimax-m1", "MiniMax M1", _OBJECT, opened="<tool_calls>\n", after_call="\n", closed="</tool_calls>",
    ),
    Dialect(
        "llama", "Llama 3, Llama 4", CallObject("name", "parameters"), bare=True, several=False,
        tag="<|python_tag|>",
    ),
    Dialect(
        "pythonic", "Llama 4, OLMo 3, ToolACE", LiteralArguments(), opened="[", after_name="(", between=", ",
        closed="]", bare=True,
    ),
    Dialect(
        "lfm2", "LFM2, LFM2.5", LiteralArguments(), opened="<|tool_call_start|>[", after_name="(", between=", ",
        closed="]<|tool_call_end|>",
    ),
    Dialect(
        "seed", "Seed-OSS", TaggedArguments("<parameter=", ">", "</parameter>\n"),
        before_name="<seed:tool_call>\n<function=", after_name=">\n", after_call="</function>\n</seed:tool_call>",
        between="\n",
    ),
    Dialect(
        "apertus", "Apertus", JsonArguments(), opened="<|tools_prefix|>[", before_name='{"', after_name='": ',
        after_call="}", between=", ", closed="]<|tools_suffix|>",
    ),
    Dialect(
        "granite", "Granite 3.3", _OBJECT, opened="<|tool_call|>[", between=", ", closed="]",
    ),
    Dialect(
        "command", "Command A and R7B", CallObject("tool_name", "parameters", f'"tool_call_id": "{INDEX}", '),
        opened="<|START_ACTION|>[\n    ", between=",\n    ", closed="\n]<|END_ACTION|>",
    ),
    Dialect(
        "hunyuan", "Hunyuan A13B and dense, Apriel", _OBJECT, opened="<tool_calls>[", between=", ",
        closed="]</tool_calls>",
    ),
    Dialect(
        "hunyuan-3", "Hunyuan 3", _HY, opened="<tool_calls:opensource>\n", before_name="<tool_call:opensource>",
        after_name="<tool_sep:opensource>\n", after_call="</tool_call:opensource>\n",
        closed="</tool_calls:opensource>",
    ),
    Dialect(
        "nemotron", "Nemotron Nano 2", _OBJECT, opened="<TOOLCALL>[", between=", ", closed="]</TOOLCALL>",
    ),
    Dialect(
        "phi", "Phi-4 mini", _OBJECT, opened="<|tool_call|>[", between=", ", closed="]<|/tool_call|>",
    ),
    Dialect("functools", "Phi-4 mini by vLLM's template", _OBJECT, opened="functools[", between=", ", closed="]"),
    Dialect(
        "mistral", "Mistral 7B v0.3, Nemo, Large", _OBJECT, opened="[TOOL_CALLS] [", between=", ", closed="]",
        call_ids="9", also=("mistral-object", "mistral-named"),
    ),
    Dialect("mistral-object", "", _OBJECT, before_name="[TOOL_CALLS]", call_ids="9"),
    Dialect(
        "mistral-named", "Mistral Small 3.2, Ministral 3, Devstral, Magistral", JsonArguments(),
        before_name="[TOOL_CALLS]", after_name="[ARGS]", skipped="[CALL_ID]", call_ids="9",
        also=("mistral", "mistral-object"),
    ),
    Dialect(
        "functionary", "Functionary 3.1", JsonArguments(), before_name="<function=", after_name=">",
        after_call="</function>",
    ),
    Dialect(
        "solar", "Solar Open", JsonArguments(), opened="<|tool_calls|>",
        before_name=f"<|tool_call:begin|>{ID}<|tool_call:name|>", after_name="<|tool_call:args|>",
        after_call="<|tool_call:end|>", closed="<|calls|>",
    ),
    Dialect(
        "gigachat", "GigaChat 3.1", _OBJECT, before_name="<|function_call|>", several=False,
    ),
    Dialect(
        "minicpm", "MiniCPM 5", TaggedArguments('<param name="', '">', "</param>", cdata=True),
        before_name='<function name="', after_name='">', after_call="</function>", between="\n",
    ),
)  # fmt: skip

BY_NAME: Mapping[str, Dialect] = {dialect.name: dialect for dialect in DIALECTS}


def written(dialect: Dialect, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Calls, by names and arguments, as models write them."""
    if dialect.bare and not dialect.several:
        calls = calls[:1]
    made = dialect.between.join(_call(dialect, index, *call) for index, call in enumerate(calls))
    return dialect.opened + made + dialect.closed


def _call(dialect: Dialect, index: int, name: str, arguments: Mapping[str, Any]) -> str:
    form = dialect.arguments
    before, after = dialect.before_name, dialect.after_name
    if isinstance(form, CallObject):
        before, after = before + form.opened, form.after_name
        text = f"{_json(arguments)}}}"
    elif isinstance(form, JsonArguments):
        text = _json(arguments)
    elif isinstance(form, TaggedArguments):
        text = "".join(_tagged(form, key, value) for key, value in arguments.items())
    else:
        pairs = (f"{key}{form.assigned}{literal_of(form, value)}" for key, value in arguments.items())
        text = form.separator.join(pairs) + form.closed
    head = f"{before}{name}{after}".replace(INDEX, str(index)).replace(ID, f"call{index}")
    return head + text + dialect.after_call


def _tagged(form: TaggedArguments, key: str, value: Any) -> str:
    is_text = isinstance(value, str)
    after = form.after_key if is_text or not form.other else form.other
    return f"{form.before_key}{key}{after}{value if is_text else _json(value)}{form.after_value}"


def literal_of(form: LiteralArguments, value: Any) -> str:
    """A value in the notation of a dialect."""
    if isinstance(value, str):
        return f"{form.quotes[0]}{value}{form.quotes[0]}" if form.raw else _json(value)
    if value is None or isinstance(value, bool):
        return _json(value) if form.raw else str(value)
    if isinstance(value, Mapping):
        pairs = (
            f"{f'{key}:' if form.raw else _json(key) + ': '}{literal_of(form, each)}" for key, each in value.items()
        )
        return "{" + form.separator.join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + form.separator.join(literal_of(form, each) for each in value) + "]"
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
