"""What a generation returns: chunks while it runs, and the result with its statistics."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ipex_assist.executors.interface import TokenLogprob
from ipex_assist.generation.stats import Loading, SourceCounts, Statistics
from ipex_assist.speculative.round import Round

SHOWN = 80  # characters of a text in a repr
StopReason = Literal["eos", "stop", "length", "context", "interrupted"]


@dataclass(frozen=True)
class Identity:
    """The names and precisions of the models, which every result repeats."""

    target: str
    assistant: str | None
    precision: str
    assistant_precision: str | None
    executor: str
    kv_precision: str | None = None  # of keys and values; None where transformers decides
    draft_head: str | None = None  # the assistant's kind, where it is a draft head


@dataclass(frozen=True)
class TokenPiece:
    """The text that one token adds. drafted: the token was drafted and accepted."""

    text: str
    drafted: bool = False


@dataclass(frozen=True)
class Chunk:
    """The text that one round adds, and those of its tokens that belong to the result (a stop may cut some off)."""

    text: str
    tokens: list[int]
    round: Round
    pieces: list[TokenPiece] = field(default_factory=list)

    def __repr__(self) -> str:
        return (
            f"Chunk(text={self.text!r}, tokens={self.tokens}, accepted={self.round.accepted} of {self.round.drafted})"
        )

    @property
    def logprobs(self) -> list[TokenLogprob] | None:
        """The log-probability of each token; None where they were not requested."""
        return None if self.round.logprobs is None else self.round.logprobs[: len(self.tokens)]


@dataclass
class DraftResult:
    """How drafting went: token counts, and a histogram of how many rounds accepted 0, 1, 2, … tokens.

    drafted_by_position, accepted_by_position: rounds in which there was a first, second, … drafted token, and in which
    it was accepted. by_source: where two assistants draft, what each source did: the kind of the draft head, model,
    lookup, and grammar for tokens that a grammar forces.
    """

    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    acceptance_rate: float | None = None
    tokens_per_pass: float | None = None
    accepted_histogram: list[int] | None = None
    longest: int | None = None
    drafted_by_position: list[int] | None = None
    accepted_by_position: list[int] | None = None
    by_source: dict[str, SourceCounts] | None = None

    @classmethod
    def of(cls, counts: Statistics) -> DraftResult:
        """Take the draft's part of the statistics."""
        return cls(
            rounds=counts.rounds,
            drafted=counts.drafted,
            accepted=counts.accepted,
            acceptance_rate=counts.acceptance_rate,
            tokens_per_pass=counts.tokens_per_pass,
            accepted_histogram=counts.accepted_histogram,
            longest=counts.longest_draft,
            drafted_by_position=counts.drafted_by_position,
            accepted_by_position=counts.accepted_by_position,
            by_source=counts.by_source or None,
        )


@dataclass
class TargetTimes:
    """The target's work and its times in seconds, in llama.cpp's terms; None where it was not measured.

    load_s: reading and packing the weights, once for all requests. prompt_s: the pass over the prompt;
    prompt_tokens_per_s: prompt tokens ÷ prompt_s. eval_s: the `passes` after it, which verify drafted tokens;
    tokens: the accepted ones and one more for each pass. token_s: eval_s ÷ tokens. choose_s: sampling, and accepting
    drafted tokens by the logits, in addition to prompt_s and eval_s. With transformers only load_s and the counts are
    known.
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
        """Take the target's part of the statistics."""
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
    """The assistant's work and its times in seconds, sampling included; None where it was not measured or not used.

    load_s: reading and packing the weights, once for all requests. first_s: the first draft, of first_tokens tokens;
    it includes reading the prompt, since both happen in one call. later_s: all other drafts together, of later_tokens
    tokens; token_s: later_s ÷ later_tokens.
    """

    load_s: float | None = None
    first_tokens: int | None = None
    first_s: float | None = None
    later_tokens: int | None = None
    later_s: float | None = None
    token_s: float | None = None

    @classmethod
    def of(cls, counts: Statistics, load_s: float | None) -> AssistantTimes:
        """Take the assistant's part of the statistics."""
        made = cls(load_s)
        if counts.first_draft is not None:
            made.first_tokens, made.first_s = counts.first_draft.tokens, counts.first_draft.seconds
        if counts.later_drafts is not None:
            made.later_tokens, made.later_s = counts.later_drafts.tokens, counts.later_drafts.seconds
            made.token_s = made.later_s / made.later_tokens
        return made


@dataclass
class Times:
    """Where the time after the first token went, in seconds, and the speeds reached; None where not known.

    encode_tokens_per_s: prompt tokens ÷ time to first token. read_gb_per_s: weights, keys and values read by the
    target's passes, ÷ their time. machine_gb_per_s: this machine's memory bandwidth, where it was measured. total_s:
    from the call to the last token, ttft_s + decode_s, without loading. target, assistant: the same time by model.
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
        """Take the times from the statistics."""
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
    """The generated text and its statistics. Times are in seconds, None where there was nothing to time.

    tokens_per_s: decode speed, of the tokens after the first. speedup: that ÷ the estimated speed of plain decoding
    here, from timed passes (Statistics.speedup); None where nothing was drafted or no plain pass was timed. seed: the
    seed that was used, given or not; None for greedy output. logprobs: of each token, where requested: natural
    logarithms of the model's own distribution. prompt_logprobs: of each token of the prompt but the first.
    kv_precision: of keys and values; None: transformers'. cached_tokens: of the prompt, which the prefix cache had, so
    that they were not read. stop_text: of the texts to stop at, the one that ended this one. draft_head: the
    assistant's kind (mtp, eagle3, dflash or shared_kv), where it is a draft head. reasoning, answer: of the text, what
    the model thought and the rest, where it answers a conversation and its chat template has thoughts; else None.
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
    cached_tokens: int = 0
    stop_text: str | None = None
    draft_head: str | None = None
    reasoning: str | None = None
    answer: str | None = None

    def __repr__(self) -> str:
        """What tells results apart: the text's beginning, its length and speed, how it ended, and who made it."""
        facts = {
            "text": short(self.text),
            "new_tokens": self.new_tokens,
            "tokens_per_s": _rounded(self.tokens_per_s),
            "speedup": _rounded(self.speedup),
            "acceptance_rate": _rounded(self.draft.acceptance_rate),
            "stop_reason": self.stop_reason,
            "target": self.target,
            "assistant": self.assistant,
            "precision": self.precision,
        }
        return f"Result({', '.join(f'{name}={value!r}' for name, value in facts.items() if value is not None)})"

    def as_dict(self) -> dict[str, Any]:
        """All fields by name, nested ones as well: the object that `--json` prints."""
        return asdict(self)


def short(text: str) -> str:
    """A text's beginning, with … for the rest."""
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
