"""What a generation returns: chunks on the way, and the result with its statistics."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ipex_assist.generation.stats import Statistics
from ipex_assist.speculative.decode import Round

StopReason = Literal["eos", "stop", "length", "context", "interrupted"]


@dataclass(frozen=True)
class Identity:
    """Who generates: the names and precisions that every result repeats."""

    target: str
    assistant: str | None
    precision: str
    assistant_precision: str | None
    executor: str


@dataclass(frozen=True)
class Piece:
    """Text that became certain with one token; `drafted` says that the token was drafted and accepted."""

    text: str
    drafted: bool = False


@dataclass(frozen=True)
class Chunk:
    """Text that became certain with one round, and the tokens of that round that went into the result."""

    text: str
    tokens: list[int]
    round: Round
    pieces: list[Piece] = field(default_factory=list)


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
class Times:
    """Where the time after the first token went, in seconds, and at what speeds; None where it is not known.

    read_gb_per_s: what the target's passes read of weights, keys and values. machine_gb_per_s: what this machine's
    memory gives at best, where somebody measured it.
    """

    encode_tokens_per_s: float | None = None
    draft_s: float | None = None
    verify_s: float | None = None
    other_s: float | None = None
    read_gb_per_s: float | None = None
    machine_gb_per_s: float | None = None

    @classmethod
    def of(cls, counts: Statistics) -> Times:
        """Take what `counts` says about times."""
        draft_s, verify_s, other_s = counts.parts_s or (None, None, None)
        return cls(counts.encode_tokens_per_s, draft_s, verify_s, other_s, counts.read_gb_per_s)


@dataclass
class Result:
    """What was generated, and at what speed. Times are in seconds, None where there is nothing to time.

    tokens_per_s: of the tokens after the first. speedup: that ÷ what plain decoding would have had here, by passes that
    were timed (Statistics.speedup); None where nothing could be drafted, and where no plain pass was timed.
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

    def as_dict(self) -> dict[str, Any]:
        """Return all fields by name, nested ones too, as `--json` prints them."""
        return asdict(self)
