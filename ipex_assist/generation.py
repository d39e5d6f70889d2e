"""One generation: rounds in, pieces of text out, and the result at any moment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ipex_assist.decode import Round
from ipex_assist.executors.traffic import Traffic
from ipex_assist.stats import Statistics
from ipex_assist.text import Detokenizer, TextStream

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
        """What `counts` says about the draft."""
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
        """What `counts` says about times."""
        draft_s, verify_s, other_s = counts.parts_s or (None, None, None)
        return cls(counts.encode_tokens_per_s, draft_s, verify_s, other_s, counts.read_gb_per_s)


@dataclass
class Result:
    """What was generated, and at what speed. Times are in seconds, None where there is nothing to time."""

    text: str
    tokens: list[int]
    prompt_tokens: int
    new_tokens: int
    ttft_s: float | None
    decode_s: float
    tokens_per_s: float | None
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
        """All fields by name, nested ones too, as `--json` prints them."""
        return asdict(self)


class Generation(Iterator[Chunk]):
    """Iterate for text as it is accepted; `result()` is the whole, or what there is so far."""

    def __init__(
        self,
        rounds: Iterator[Round],
        tokenizer: Detokenizer,
        identity: Identity,
        *,
        prompt_tokens: int,
        max_new_tokens: int,
        eos: frozenset[int] = frozenset(),
        stop: Sequence[str] = (),
        assisted: bool = False,
        limit_is_context: bool = False,
        traffic: Traffic | None = None,
    ) -> None:
        """`limit_is_context` says that max_new_tokens is what the model's context leaves, not what was asked for.

        traffic: what a pass of the target reads, where that is known.
        """
        self.statistics = Statistics(prompt_tokens, traffic)
        self._text = TextStream(tokenizer, stop)
        self._rounds, self._identity, self._eos, self._assisted = rounds, identity, eos, assisted
        self._max_new_tokens = max_new_tokens
        self._at_limit: StopReason = "context" if limit_is_context else "length"
        self._stop_reason: StopReason | None = None
        self._pieces: list[str] = []

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> Chunk:
        if self._stop_reason is not None:
            self._close()
            raise StopIteration
        round_ = next(self._rounds)
        if self._stop_reason is not None:  # interrupted while the round ran
            self._close()
            raise StopIteration
        before, pieces = len(self._text.tokens), []
        for index, token in enumerate(round_.tokens):
            text = self._text.push(token)
            self._stop_reason = self._reason(token)
            if self._stop_reason is not None:
                text += self._text.finish()
            pieces.append(Piece(text, drafted=index < round_.accepted))
            if self._stop_reason is not None:
                break
        kept = self._text.tokens[before:]
        text = "".join(piece.text for piece in pieces)
        self._pieces.append(text)
        self.statistics.count(round_, len(kept))
        return Chunk(text, kept, round_, pieces)

    def _reason(self, token: int) -> StopReason | None:
        if token in self._eos:
            return "eos"
        if self._text.stopped:
            return "stop"
        return self._at_limit if len(self._text.tokens) >= self._max_new_tokens else None

    def interrupt(self) -> str:
        """End here, as Ctrl-C does; returns the text that was held back."""
        if self._stop_reason is not None:
            return ""
        self._stop_reason = "interrupted"
        self._close()
        self._pieces.append(self._text.finish())
        return self._pieces[-1]

    def _close(self) -> None:
        """No round is wanted any more: where they come from a generator, it ends here and not when it is collected."""
        close = getattr(self._rounds, "close", None)
        if close is not None:
            with contextlib.suppress(ValueError):  # a round is running, in another thread or under a signal's handler
                close()

    def result(self) -> Result:
        """The result; before the end, that of the tokens so far."""
        counts = self.statistics
        return Result(
            text="".join(self._pieces),
            tokens=list(self._text.tokens),
            prompt_tokens=counts.prompt_tokens,
            new_tokens=counts.new_tokens,
            ttft_s=counts.ttft_s,
            decode_s=counts.decode_s,
            tokens_per_s=counts.tokens_per_s,
            assisted=self._assisted,
            stop_reason=self._stop_reason or "interrupted",
            draft=DraftResult.of(counts) if self._assisted else DraftResult(),
            times=Times.of(counts),
            **asdict(self._identity),
        )
