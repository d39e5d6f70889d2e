"""The options of a generation: defaults, ranges and help. Never imports torch."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ipex_assist.env.options import Choice, Number, Options, Switch, Text, Texts, TokenNumbers, documented, option

SCHEDULES = ("adaptive", "constant", "heuristic")
_PENALTY = Number(-100, 100)
# The options that the model's files may decide, and transformers' defaults where they do not.
MODEL_DEFAULTS: dict[str, Any] = {
    "do_sample": False,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "min_p": 0.0,
}

Own = TypeVar("Own", bound="SamplingOptions")


def fresh_seed() -> int:
    """A random seed below 2^53, since JSON readers round larger numbers."""
    return secrets.randbits(53)


@dataclass(frozen=True)
class StopOptions(Options):
    """When generation stops, besides at the end of the model's context."""

    max_new_tokens: int = option(128, "", Number(1, 10_000_000, whole=True), "N")
    stop: tuple[str, ...] = option((), "stop before it; repeatable", Texts(), "TEXT")
    ignore_eos: bool = option(False, "continue after the end-of-text token, up to the limit", Switch())


@documented
@dataclass(frozen=True)
class DraftOptions(Options):
    """Whether to draft, how many tokens, and by which schedule; None: chosen automatically."""

    assisted: bool = option(True, "draft with the assistant, or decode plainly", Switch(both=True))
    num_assistant_tokens: int | None = option(
        None, "drafted tokens a round (default: by measured cost)", Number(0, 64, whole=True), "N"
    )
    num_assistant_tokens_schedule: str | None = option(
        None, "adaptive, constant or heuristic (default: adaptive; constant with a number)", Choice(SCHEDULES), "S"
    )

    @property
    def may_draft(self) -> bool:
        """Whether anything may be drafted."""
        return self.assisted and self.num_assistant_tokens != 0

    @property
    def kind(self) -> str:
        """The schedule's name; a number of tokens without a schedule means `constant`."""
        return self.num_assistant_tokens_schedule or ("adaptive" if self.num_assistant_tokens is None else "constant")

    @property
    def is_adaptive(self) -> bool:
        """Whether the pair's costs are needed."""
        return self.may_draft and self.kind == "adaptive"


@documented
@dataclass(frozen=True)
class SamplingOptions(Options):
    """How tokens are chosen, in the order of application.

    Names, defaults and rules are those of transformers' GenerationConfig (repetition_penalty, temperature, top_k,
    top_p, min_p) and of OpenAI's API (logit_bias, presence_penalty, frequency_penalty, which count output
    tokens only). Without `do_sample`, or with temperature 0, decoding is greedy. None is the model's own default, which
    its generation_config.json has, or else transformers' (`resolved`).
    """

    do_sample: bool | None = option(
        None, "sample tokens, or take the likeliest (default: the model's, or the likeliest)", Switch(both=True)
    )
    logit_bias: Mapping[int, float] = option(
        {}, 'added to the logits of these tokens: {"50256": -100}', TokenNumbers(_PENALTY), "JSON"
    )
    repetition_penalty: float | None = option(
        None,
        "divide logits of tokens already in prompt or text (default: the model's, or 1)",
        Number(1e-3, 100),
        "R",
    )
    presence_penalty: float = option(0.0, "subtract from logits of tokens already in the text", _PENALTY, "X")
    frequency_penalty: float = option(0.0, "subtract for each time that a token is in the text", _PENALTY, "X")
    temperature: float | None = option(
        None, "(default: the model's, or 1)", Number(1e-3, 100, also={0: "greedy"}), "T", needs="do_sample"
    )
    top_k: int | None = option(
        None, "(default: the model's, or 50; 0 is off)", Number(0, 10_000_000, whole=True), "K", needs="do_sample"
    )
    top_p: float | None = option(None, "(default: the model's, or 1)", Number(1e-6, 1), "P", needs="do_sample")
    min_p: float | None = option(
        None,
        "drop tokens below this share of the likeliest (default: the model's, or 0)",
        Number(0, 1),
        "P",
        needs="do_sample",
    )
    seed: int | None = option(
        None,
        "the same seed gives the same text (default: a random one)",
        Number(0, 2**63 - 1, whole=True),
        "N",
        needs="do_sample",
    )

    @property
    def draws(self) -> bool:
        """Whether tokens are sampled."""
        return bool(self.do_sample) and self.temperature != 0

    def resolved(self: Own, *defaults: Mapping[str, Any]) -> Own:
        """Return the options with a value for each that is None: that of the first of `defaults` that has one, or
        transformers' default."""
        values: dict[str, Any] = {}
        for each in (MODEL_DEFAULTS, *reversed(defaults)):
            values |= {name: value for name, value in each.items() if name in MODEL_DEFAULTS}
        return replace(self, **{name: value for name, value in values.items() if getattr(self, name) is None})

    def seeded(self: Own) -> Own:
        """Return the options, with a fresh seed to report in the result if tokens are sampled and none is given."""
        return replace(self, seed=fresh_seed()) if self.draws and self.seed is None else self


def bias_fault(biases: Mapping[int, float], vocab_size: int | None, lm_head_rows: int | None) -> str | None:
    """What is wrong with biases of tokens that the model does not have, or has no logits for; None where nothing is.

    Sizes that are None or 0 are not known.
    """
    rows = lm_head_rows or vocab_size
    unknown = None if not rows else next((token for token in biases if token >= rows), None)
    if not rows or unknown is None:
        return None
    if unknown >= (vocab_size or rows):
        return f"there is no token {unknown}; ids go to {(vocab_size or rows) - 1}"
    return f"the model reads token {unknown} and never writes it: only ids up to {rows - 1} have a logit"


@documented
@dataclass(frozen=True)
class GenerationOptions(SamplingOptions, DraftOptions, StopOptions):
    """All options of one generation."""

    logprobs: int | None = option(
        None,
        "log-probabilities of each token and the N likeliest, before any filter",
        Number(0, 20, whole=True),
        "N",
    )
    prompt_logprobs: int | None = option(
        None, "the same for each prompt token but the first", Number(0, 20, whole=True), "N"
    )
    lora: str | None = option(
        None, "name of a loaded adapter, or none for the model alone (default: see load)", Text(), "NAME", flags=()
    )
    lora_scale: float = option(1.0, "factor of what the adapter adds", Number(-100, 100), flags=())
    priority: int = option(0, "lower ones come first", Number(-(2**31), 2**31 - 1, whole=True), flags=())
    share: str | None = option(None, "who asked: many requests of one are not many shares", Text(), flags=())
    streamed: bool = option(True, "tokens are read as they come: passes beside them are short", Switch(), flags=())
