"""Statistics of one generation, counted from its rounds."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from ipex_assist.executors.traffic import Traffic
from ipex_assist.speculative.round import Round

PLAIN_ROUNDS = 4  # rounds without a draft, at least, whose mean time stands for a plain pass where none was measured


@dataclass(frozen=True)
class DraftTimes:
    """How many tokens were drafted, and in how many seconds."""

    tokens: int
    seconds: float


@dataclass
class SourceCounts:
    """Tokens that one of several sources drafted, and those of them that were accepted."""

    drafted: int = 0
    accepted: int = 0
    acceptance_rate: float = 0.0

    def add(self, drafted: int, accepted: int) -> None:
        """Count one draft."""
        self.drafted += drafted
        self.accepted += accepted
        self.acceptance_rate = self.accepted / self.drafted


@dataclass(frozen=True)
class Loading:
    """Seconds it took to read and pack each model's weights; None where there is no such model, or it was not timed."""

    target_s: float | None = None
    assistant_s: float | None = None


@dataclass
class Statistics:
    """Counts, and times in seconds. A round here is one pass of the target after the prompt's.

    Drafted and accepted tokens count even where a stop cut the last round short: they measure the draft, and
    `new_tokens` is what the user got.
    """

    prompt_tokens: int
    traffic: Traffic | None = None
    cached_tokens: int = 0  # of the prompt, from the prefix cache
    new_tokens: int = 0
    ttft_s: float | None = None
    decode_s: float = 0.0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    longest_draft: int = 0
    draft_s: float = 0.0
    target_s: float = 0.0
    accepted_histogram: list[int] = field(default_factory=list)
    drafted_by_position: list[int] = field(default_factory=list)  # rounds whose draft had a first, second, … token
    prompt_s: float | None = None  # the target's pass over the prompt, without sampling the first token
    choose_s: float | None = None  # sampling tokens by the target's logits, the first one included
    by_source: dict[str, SourceCounts] = field(default_factory=dict)  # where several may draft
    first_draft: DraftTimes | None = None
    later_drafts: DraftTimes | None = None
    _plain_s: float = 0.0  # time that plain passes for the kept tokens would have taken, of rounds that measure it
    _unpriced_tokens: int = 0  # kept tokens of the other rounds
    _longest_plain_s: float = 0.0  # kept tokens × the time of their own round's pass, which had at least as many rows
    _undrafted_s: list[float] = field(default_factory=list)  # the target's time in rounds without a draft
    _prompt_choose_s: float | None = None
    _length: int = 0  # tokens in the target's KV cache
    _read_tokens: int = 0  # tokens whose keys and values were read, summed over passes
    _started: float = field(default_factory=time.perf_counter, repr=False)

    @property
    def eval_s(self) -> float | None:
        """Seconds of the target's passes after the prompt's, without sampling; None where the two are not separate."""
        if not self.rounds or self.choose_s is None or self._prompt_choose_s is None:
            return None
        return self.target_s - (self.choose_s - self._prompt_choose_s)

    def count(self, round_: Round, kept: int) -> None:
        """Add one round, of which `kept` tokens went into the result."""
        elapsed = (time.perf_counter() if round_.ended is None else round_.ended) - self._started
        self.new_tokens += kept
        self._read_tokens += self._length
        self._length += len(round_.tokens)
        if round_.choose_s is not None:
            self.choose_s = (self.choose_s or 0.0) + round_.choose_s
        if round_.prompt:
            self._length += self.prompt_tokens
            self.cached_tokens = round_.cached_tokens
            self.ttft_s = elapsed
            self._prompt_choose_s = round_.choose_s
            self.prompt_s = None if round_.choose_s is None else round_.target_s - round_.choose_s
            return
        self.decode_s = elapsed - (self.ttft_s or 0.0)
        self.rounds += 1
        self.drafted += round_.drafted
        self.longest_draft = max(self.longest_draft, round_.drafted)
        self.accepted += round_.accepted
        self.draft_s += round_.draft_s
        self.target_s += round_.target_s
        if round_.plain_s is None:
            self._unpriced_tokens += kept
        else:
            self._plain_s += kept * round_.plain_s
        self._longest_plain_s += kept * round_.target_s
        if not round_.drafted:
            self._undrafted_s.append(round_.target_s)
        if round_.drafted and round_.drafted_by is not None:
            self.by_source.setdefault(round_.drafted_by, SourceCounts()).add(round_.drafted, round_.accepted)
        if round_.drafted and round_.draft_s:
            self._count_draft(round_)
        self.drafted_by_position += [0] * (round_.drafted - len(self.drafted_by_position))
        for position in range(round_.drafted):
            self.drafted_by_position[position] += 1
        self.accepted_histogram += [0] * (round_.accepted + 1 - len(self.accepted_histogram))
        self.accepted_histogram[round_.accepted] += 1

    def _count_draft(self, round_: Round) -> None:
        drafts = DraftTimes(round_.drafted, round_.draft_s)
        if self.first_draft is None:
            self.first_draft = drafts
        else:
            before = self.later_drafts or DraftTimes(0, 0.0)
            self.later_drafts = DraftTimes(before.tokens + drafts.tokens, before.seconds + drafts.seconds)

    @property
    def tokens_per_s(self) -> float | None:
        """Decode speed: tokens after the first ÷ seconds after the first; None before there are any."""
        return (self.new_tokens - 1) / self.decode_s if self.rounds and self.decode_s > 0 else None

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted ÷ drafted tokens; None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def accepted_by_position(self) -> list[int]:
        """Rounds in which the first, second, … drafted token was accepted."""
        return [sum(self.accepted_histogram[position + 1 :]) for position in range(len(self.drafted_by_position))]

    @property
    def tokens_per_pass(self) -> float | None:
        """Mean tokens from one pass of the target: the accepted ones and its own."""
        return (self.accepted + self.rounds) / self.rounds if self.rounds else None

    @property
    def encode_tokens_per_s(self) -> float | None:
        """Prompt tokens ÷ seconds to the first new token."""
        return self.prompt_tokens / self.ttft_s if self.ttft_s else None

    @property
    def parts_s(self) -> tuple[float, float, float] | None:
        """Seconds of drafting, of verifying, and of the rest of `decode_s` (detokenizing, statistics, the consumer).

        None where a library does not time drafting and verifying separately.
        """
        if not self.rounds or (self.drafted and not self.draft_s):
            return None
        return self.draft_s, self.target_s, max(0.0, self.decode_s - self.draft_s - self.target_s)

    @property
    def speedup(self) -> float | None:
        """The speed of the tokens after the first relative to plain decoding: plain seconds ÷ `decode_s`.

        Plain seconds are, summed over rounds, the kept tokens × the time of a one-row pass of the target as estimated
        when the round ended (the schedule's calibration, corrected by each round's own time), plus the time outside
        draft and target, which plain decoding spends as well. Without such a schedule the one-row pass is the mean of
        this generation's rounds without a draft, of which there must be four. A pass of one row takes no longer than
        those that were run, whatever was calibrated: with nothing accepted this is at most 1. None where neither is
        known, where the draft's time is not separate from the target's, and where nothing was drafted, which is plain
        decoding.
        """
        if not self.drafted or self.parts_s is None or self.decode_s <= 0:
            return None
        plain = self._plain_s
        if self._unpriced_tokens:
            if len(self._undrafted_s) < PLAIN_ROUNDS:
                return None
            plain += self._unpriced_tokens * sum(self._undrafted_s) / len(self._undrafted_s)
        return (min(plain, self._longest_plain_s) + self.parts_s[2]) / self.decode_s

    @property
    def read_gb_per_s(self) -> float | None:
        """GB/s of weights, keys and values that the target's passes after the prompt's read."""
        if self.traffic is None or self.parts_s is None or not self.target_s:
            return None
        read = self.rounds * self.traffic.weight_bytes + self._read_tokens * self.traffic.kv_bytes_per_token
        return read / self.target_s / 1e9
