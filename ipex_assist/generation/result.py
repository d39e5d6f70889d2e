"""What a generation returns: chunks on the way, and the result with its statistics."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ipex_assist.executors.interface import TokenLogprob
from ipex_assist.generation.stats import Loading, Statistics
from ipex_assist.speculative.round import Round

StopReason = Literal["eos", "stop", "length", "context", "interrupted"]


@dataclass(frozen=True)
class Identity:
    """Who generates: the names and precisions that every result repeats."""

    target: str
    assistant: str | None
    precision: str
    assistant_precision: str | None
    executor: str
    kv_precision: str | None = None  # of keys and values, where it is ours to say


@dataclass(frozen=True)
class TokenPiece:
    """Text that became certain with one token; `drafted` says that the token was drafted and accepted."""

    text: str
    drafted: bool = False


@dataclass(frozen=True)
class Chunk:
    """Text that became certain with one round, and the tokens of that round that went into the result."""

    text: str
    tokens: list[int]
    round: Round
    pieces: list[TokenPiece] = field(default_factory=list)

    @property
    def logprobs(self) -> list[TokenLogprob] | None:
        """Of each of the tokens; None where nobody asked for them."""
        return None if self.round.logprobs is None else self.round.logprobs[: len(self.tokens)]


@dataclass
class DraftResult:
    """How the draft did: counts of tokens, and how many rounds accepted 0, 1, 2, … of them."""

    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    acceptance_rate: float | None = None
    tokens_per_pass: float | None = None
    accepted_histogram: list[int] | None = None
    longest: int | None = None

    @classmethod
    def of(cls, counts: Statistics) -> DraftResult:
        """Take what `counts` says about the draft."""
        return cls(
            rounds=counts.rounds,
            drafted=counts.drafted,
            accepted=counts.accepted,
            acceptance_rate=counts.acceptance_rate,
            tokens_per_pass=counts.tokens_per_pass,
            accepted_histogram=counts.accepted_histogram,
            longest=counts.longest_draft,
        )


@dataclass
class TargetTimes:
    """What the target did and in how many seconds, as llama.cpp reports it; None where it was not measured.

    load_s: reading and packing the weights, once for all texts. prompt_s: the pass over the prompt;
    prompt_tokens_per_s: the prompt's tokens ÷ that. eval_s: the `passes` after it, all rows of which were verified;
    tokens: accepted ones and one a pass. token_s: eval_s ÷ tokens. choose_s: choosing the text's tokens and verifying
    drafted ones by the logits, which is in neither of the two. Through transformers there are load_s and counts alone.
    """

    load_s: float | None = None
    prompt_s: float | None = None
    prompt_tokens_per_s: float | None = None
    passes: int | None = None
    tokens: int | None = None
    eval_s: float | None = None
    token_s: float | None = None
    choose_s: float | None = None

    @classmethod
    def of(cls, counts: Statistics, load_s: float | None) -> TargetTimes:
        """Take what `counts` says about the target."""
        tokens = counts.accepted + counts.rounds
        return cls(
            load_s=load_s,
            prompt_s=counts.prompt_s,
            prompt_tokens_per_s=counts.prompt_tokens / counts.prompt_s if counts.prompt_s else None,
            passes=counts.rounds,
            tokens=tokens,
            eval_s=counts.eval_s,
            token_s=None if counts.eval_s is None else counts.eval_s / tokens,
            choose_s=counts.choose_s,
        )


@dataclass
class AssistantTimes:
    """What drafted and in how many seconds, choosing included; None where it was not measured, or nothing drafted.

    load_s: reading and packing the weights, once for all texts. first_s: the first draft, of first_tokens, in which a
    model reads the text so far as well: how long that takes alone nobody can tell who asks for both in one call.
    later_s: all other drafts together, of later_tokens; token_s: later_s ÷ later_tokens.
    """

    load_s: float | None = None
    first_tokens: int | None = None
    first_s: float | None = None
    later_tokens: int | None = None
    later_s: float | None = None
    token_s: float | None = None

    @classmethod
    def of(cls, counts: Statistics, load_s: float | None) -> AssistantTimes:
        """Take what `counts` says about drafting."""
        made = cls(load_s)
        if counts.first_draft is not None:
            made.first_tokens, made.first_s = counts.first_draft.tokens, counts.first_draft.seconds
        if counts.later_drafts is not None:
            made.later_tokens, made.later_s = counts.later_drafts.tokens, counts.later_drafts.seconds
            made.token_s = made.later_s / made.later_tokens
        return made


@dataclass
class Times:
    """Where the time after the first token went, in seconds, and at what speeds; None where it is not known.

    read_gb_per_s: what the target's passes read of weights, keys and values. machine_gb_per_s: what this machine's
    memory gives at best, where somebody measured it. total_s: from the call to the last token, ttft_s + decode_s,
    without loading. target, assistant: the same time by model.
    """

    encode_tokens_per_s: float | None = None
    draft_s: float | None = None
    verify_s: float | None = None
    other_s: float | None = None
    read_gb_per_s: float | None = None
    machine_gb_per_s: float | None = None
    total_s: float | None = None
    target: TargetTimes = field(default_factory=TargetTimes)
    assistant: AssistantTimes = field(default_factory=AssistantTimes)

    @classmethod
    def of(cls, counts: Statistics, loading: Loading) -> Times:
        """Take what `counts` says about times."""
        draft_s, verify_s, other_s = counts.parts_s or (None, None, None)
        return cls(
            counts.encode_tokens_per_s,
            draft_s,
            verify_s,
            other_s,
            counts.read_gb_per_s,
            total_s=None if counts.ttft_s is None else counts.ttft_s + counts.decode_s,
            target=TargetTimes.of(counts, loading.target_s),
            assistant=AssistantTimes.of(counts, loading.assistant_s),
        )


@dataclass
class Result:
    """What was generated, and at what speed. Times are in seconds, None where there is nothing to time.

    tokens_per_s: of the tokens after the first. speedup: that ÷ what plain decoding would have had here, by passes that
    were timed (Statistics.speedup); None where nothing was drafted, and where no plain pass was timed. seed: by which
    the text was drawn, given or not; None where chance decided nothing. logprobs: of each token, where they were
    wanted: natural logarithms, of the model's own distribution. prompt_logprobs: of each token of the prompt but the
    first. kv_precision: of keys and values; None: transformers'.
    """

    text: str
    tokens: list[int]
    prompt_tokens: int
    new_tokens: int
    ttft_s: float | None
    decode_s: float
    tokens_per_s: float | None
    speedup: float | None
    assisted: bool
    target: str
    assistant: str | None
    precision: str
    assistant_precision: str | None
    executor: str
    stop_reason: StopReason
    draft: DraftResult = field(default_factory=DraftResult)
    times: Times = field(default_factory=Times)
    seed: int | None = None
    logprobs: list[TokenLogprob] | None = None
    kv_precision: str | None = None
    prompt_logprobs: list[TokenLogprob] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return all fields by name, nested ones too, as `--json` prints them."""
        return asdict(self)
