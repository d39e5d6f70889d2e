"""What several forms of the API share: the fields of sampling, usage, and how they become GenerationOptions."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, GetJsonSchemaHandler, Tag, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from ipex_assist.env.options import Choice as OneOf
from ipex_assist.env.options import Kind, Number, Switch, Text, Texts, TokenNumbers, described, options_of
from ipex_assist.speculative.options import MODEL_DEFAULTS, GenerationOptions

MOST_CHOICES = 128  # texts of one request, as with OpenAI
MOST_STOPS = 64  # stop texts, each of which is looked for at every token
MOST_BIASES = 1 << 16  # biases of tokens, times the texts of the request: each text's engine is given all of them
MOST_TEMPERATURE = 2.0  # as with OpenAI
_MEDIA = ("image", "audio", "video", "file")  # words in the types of parts that no model here reads
TOKEN_ID = "x-token-id"  # in the JSON schema: a number below the vocabulary's size, once that is known
TIERS = {"flex": 1, "batch": 1, "priority": -1, "fast": -1}  # as priorities, of which lower ones come first
OPENAI = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}  # where the model's files say nothing


T = TypeVar("T")
MOST_ITEMS = 8192  # of a list in a request: messages, parts of one, …
MOST_TOOLS = 1024  # of a request; calls of a message
# A list that fails at its first invalid item: reporting millions of them would block the server for minutes.
BoundedList = Annotated[list[T], Field(fail_fast=True, max_length=MOST_ITEMS)]
ToolList = Annotated[list[T], Field(fail_fast=True, max_length=MOST_TOOLS)]


class RequestBody(BaseModel):
    """A request body: types are strict, and unknown fields are ignored, as OpenAI does."""

    model_config = ConfigDict(strict=True, extra="ignore")


class ResponseBody(BaseModel):
    """A response body, or a part of one."""

    model_config = ConfigDict(extra="forbid")


class OptionField:
    """Annotates a field that is an option of GenerationOptions, which defines its range, help and errors.

    most: maximum number of entries, as each costs time that other requests wait for. highest: of a number, where the
    API takes less than the option.
    """

    def __init__(self, name: str, most: int | None = None, highest: float | None = None) -> None:
        option = options_of(GenerationOptions)[name]
        self._kind, self._most = option.kind, most
        if highest is not None:
            assert isinstance(option.kind, Number)
            self._kind = dataclasses.replace(option.kind, highest=highest)
        if name in MODEL_DEFAULTS:
            self._help = f"(default: the model's, or {(MODEL_DEFAULTS | OPENAI)[name]:g})"
        else:
            default = None if name == "max_new_tokens" else getattr(GenerationOptions(), name)
            self._help = described(default, option)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Values are taken as the option takes them."""
        return core_schema.no_info_plain_validator_function(self._take)

    def _take(self, value: Any) -> Any:
        if self._most is not None and isinstance(value, (list, dict)) and len(value) > self._most:
            raise ValueError(f"has {len(value):,} entries, and may have {self._most:,}")
        return self._kind.take(value)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The same as a JSON schema."""
        found = json_schema(self._kind)
        for each in found.get("anyOf", [found]) if self._most is not None else ():
            if each["type"] in ("array", "object"):
                each["maxItems" if each["type"] == "array" else "maxProperties"] = self._most
        return {**found, **({"description": self._help} if self._help else {})}


def json_schema(kind: Kind) -> dict[str, Any]:
    """The values that a kind of option takes."""
    match kind:
        case Number():
            between = {"type": "integer" if kind.whole else "number", "minimum": kind.lowest, "maximum": kind.highest}
            return {"anyOf": [{"const": value} for value in kind.also] + [between]} if kind.also else between
        case Switch():
            return {"type": "boolean"}
        case OneOf():
            return {"type": "string", "enum": list(kind.names)}
        case Texts():
            text = {"type": "string", "minLength": 1}
            return {"anyOf": [text, {"type": "array", "items": text}]}
        case Text():
            return {"type": "string", "minLength": 1}
        case TokenNumbers():
            numbers = json_schema(kind.number)
            return {"type": "object", "propertyNames": {"pattern": "^[0-9]{1,9}$"}, "additionalProperties": numbers}
    raise AssertionError(f"no JSON schema of {kind}")


class AdapterScale(RequestBody):
    """An adapter by its number, and the factor of what it adds."""

    id: Annotated[int, Field(ge=0)]
    scale: Annotated[float, Field(ge=-100, le=100)]


AdapterScales = Annotated[list[AdapterScale], Field(fail_fast=True, max_length=1024)]


class SamplingFields(RequestBody):
    """How tokens are chosen, and where a text ends; names are OpenAI's or, beyond them, transformers' and vLLM's."""

    temperature: Annotated[float, OptionField("temperature", highest=MOST_TEMPERATURE)] | None = None
    top_p: Annotated[float, OptionField("top_p")] | None = None
    top_k: Annotated[int, OptionField("top_k")] | None = None
    min_p: Annotated[float, OptionField("min_p")] | None = None
    presence_penalty: Annotated[float, OptionField("presence_penalty")] | None = None
    frequency_penalty: Annotated[float, OptionField("frequency_penalty")] | None = None
    repetition_penalty: Annotated[float, OptionField("repetition_penalty")] | None = None
    logit_bias: Annotated[dict[int, float], OptionField("logit_bias", MOST_BIASES)] | None = None
    seed: Annotated[int, OptionField("seed")] | None = None
    stop: Annotated[tuple[str, ...], OptionField("stop", MOST_STOPS)] | None = None
    ignore_eos: Annotated[bool, OptionField("ignore_eos")] | None = None
    assisted: Annotated[bool, OptionField("assisted")] | None = None
    num_assistant_tokens: Annotated[int, OptionField("num_assistant_tokens")] | None = None
    num_assistant_tokens_schedule: Annotated[str, OptionField("num_assistant_tokens_schedule")] | None = None
    priority: Annotated[int, OptionField("priority")] | None = None
    service_tier: str | None = Field(None, description="flex and batch come later, priority and fast earlier")
    lora: AdapterScales | None = Field(None, description="as llama-server has it; one adapter whose scale is not 0")

    def generation_options(
        self,
        max_new_tokens: int,
        defaults: Mapping[str, Any],
        logprobs: int | None = None,
        prompt_logprobs: int | None = None,
    ) -> GenerationOptions:
        """The options, with the model's `defaults` or else OpenAI's: tokens are drawn, at temperature 1, unless the
        temperature is 0."""
        names = {each.name for each in dataclasses.fields(GenerationOptions)} & set(SamplingFields.model_fields)
        names -= {"lora"}  # which RequestedAdapters.apply reads
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        values: dict[str, Any] = {"priority": TIERS.get(self.service_tier or "", 0), **given}
        options = GenerationOptions(
            **values, max_new_tokens=max_new_tokens, logprobs=logprobs, prompt_logprobs=prompt_logprobs
        ).resolved(defaults, OPENAI)
        return dataclasses.replace(options, do_sample=options.temperature != 0)


def options_per_choice(options: GenerationOptions, count: int) -> list[GenerationOptions]:
    """Options of `count` choices: a given seed is the first choice's, and each further one gets the next seed."""
    limit = options_of(type(options))["seed"].kind
    assert isinstance(limit, Number)
    if options.seed is None or not options.draws:
        return [options] * count
    span = int(limit.highest) + 1
    return [dataclasses.replace(options, seed=(options.seed + index) % span) for index in range(count)]


MaxTokens = Annotated[int, OptionField("max_new_tokens")]
Count = Annotated[int, Field(ge=1, le=MOST_CHOICES)]
TokenId = Annotated[int, Field(ge=0, lt=2**31, json_schema_extra={TOKEN_ID: True})]
TokenList = Annotated[list[TokenId], Field(fail_fast=True)]  # any context's; a body's values are bounded as a whole


class StreamOptions(RequestBody):
    """What a stream says besides its text."""

    include_usage: bool | None = Field(None, description="end with a chunk of no choices that has the usage")
    continuous_usage_stats: bool | None = Field(None, description="every chunk has the usage so far")


class CompletionDetails(ResponseBody):
    """Of the tokens written."""

    reasoning_tokens: int


class PromptDetails(ResponseBody):
    """Of the tokens read. cached_tokens: that the prefix cache had."""

    cached_tokens: int = 0


class Usage(ResponseBody):
    """Tokens that were read and written. A prompt counts once, however many texts follow it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionDetails | None = None
    prompt_tokens_details: PromptDetails = PromptDetails()

    @classmethod
    def of(cls, prompt: int, completion: int, reasoning: int = 0) -> Usage:
        """With their sum. reasoning: of the completion's, tokens of thoughts."""
        details = CompletionDetails(reasoning_tokens=reasoning) if reasoning else None
        return cls(
            prompt_tokens=prompt,
            completion_tokens=completion,
            total_tokens=prompt + completion,
            completion_tokens_details=details,
        )


class Timings(ResponseBody):
    """Counts, milliseconds and speeds, by llama.cpp's names. cache_n: prompt tokens that were not read again."""

    cache_n: int
    prompt_n: int
    prompt_ms: float | None
    prompt_per_token_ms: float | None
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float | None
    predicted_per_token_ms: float | None
    predicted_per_second: float | None
    draft_n: int | None = None
    draft_n_accepted: int | None = None
    draft_n_by_source: dict[str, int] | None = None
    draft_n_accepted_by_source: dict[str, int] | None = None


class SpeculativeDecoding(ResponseBody):
    """What the draft did, by vLLM's names. A step is a pass of the target that verified drafted tokens."""

    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int


class SourceFigures(ResponseBody):
    """Tokens that one of several sources drafted, those that were accepted, and accepted ÷ drafted."""

    drafted: int
    accepted: int
    acceptance_rate: float


class DraftFigures(ResponseBody):
    """What drafted, and how well at each position.

    head: mtp, eagle3, dflash or shared_kv; null for a whole model and for prompt lookup. token_ms: milliseconds of a
    drafted token, after the first draft. drafted_by_position, accepted_by_position: passes whose draft had a first,
    second, … token, and those in which it was accepted. by_source: where two assistants draft, by the head's
    kind, model, lookup and grammar.
    """

    head: str | None
    token_ms: float | None
    drafted_by_position: list[int]
    accepted_by_position: list[int]
    by_source: dict[str, SourceFigures] | None = None


class Metrics(ResponseBody):
    """Figures of one answer. speedup: how many times as fast as plain decoding, where that was measured."""

    speculative_decoding: SpeculativeDecoding | None
    draft: DraftFigures | None = None
    speedup: float | None


def new_id(prefix: str) -> str:
    """An id as OpenAI's answers have them, such as chatcmpl-0123…"""
    return prefix + uuid.uuid4().hex


def now() -> int:
    """Seconds since 1970."""
    return int(time.time())


def with_one_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the systems that they begin with as one: many templates allow one, at the beginning alone."""
    count = next((place for place, each in enumerate(messages) if each["role"] != "system"), len(messages))
    if count < 2:
        return messages
    joined = "\n\n".join(text for each in messages[:count] if (text := each["content"]))
    return [{"role": "system", "content": joined}, *messages[count:]]


class TextPart(RequestBody):
    """A piece of a message. Models here read text alone."""

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        kind = value.get("type") if isinstance(value, dict) else None
        if isinstance(kind, str) and kind not in get_args(cls.model_fields["type"].annotation):
            medium = next((each for each in _MEDIA if each in kind), kind[:60])
            raise ValueError(f"the model reads text alone: leave out this {medium}")
        return value


class OtherPart(RequestBody):
    """Of what came of a call: neither text nor an image. A sentence takes its place (`texts_and_images`)."""

    type: str


def left_out(part: dict[str, Any]) -> str:
    """What stands in the place of a part that is no text."""
    kind = part["type"]
    medium = next((each for each in _MEDIA if each in kind), kind.replace("_", " ")[:60])
    name = next((str(part[key])[:200] for key in ("tool_name", "title", "name", "filename") if part.get(key)), "")
    return f"[{medium}{f' {name}' if name else ''}: left out, as this model reads text alone]"


def text_or_list(value: Any) -> str:
    """The tag of a text or a list; "[list]" is no name of a field in error messages."""
    return "[list]" if isinstance(value, list) else "str"


# A text or a list; errors are those of the form that was sent.
TextOrList = Annotated[
    Annotated[str, Tag("str")] | Annotated[BoundedList[T], Tag("[list]")], Discriminator(text_or_list)
]


class Unsupported:
    """Annotates a field of OpenAI's that is not supported: all values but `allowed` are rejected with `reason`."""

    def __init__(self, reason: str, *allowed: Any) -> None:
        self.reason, self._allowed = reason, [None, *allowed]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Take what asks for nothing."""

        def take(value: Any) -> Any:
            if not any(type(value) is type(each) and value == each for each in self._allowed):
                raise ValueError(self.reason)
            return value

        return core_schema.no_info_plain_validator_function(take)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Only what is taken."""
        return {"enum": self._allowed, "description": f"not offered: {self.reason}"}


class TimedResponse(ResponseBody):
    """A response body with timings and metrics, beyond OpenAI's fields."""

    timings: Timings
    metrics: Metrics
