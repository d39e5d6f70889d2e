"""How many tokens to draft each round: fixed, by transformers' rule, or by measured cost. Pure; never imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ipex_assist.acceptance import Acceptance
from ipex_assist.env.errors import UsageError

SCHEDULES = ("adaptive", "constant", "heuristic")
CONSTANT_TOKENS = 3  # four rows are the most that cost a target's pass no more than one on every machine we measured
HEURISTIC_TOKENS = 5  # where transformers' rule starts
LONGEST_DRAFT = 15

# Of the time that plain decoding takes, what drafts that turn out wrong may cost: at the beginning, for the tokens to
# be expected, and further on as they come. The rest of the 3 % that we promise is for errors of the cost model.
STAKE, FURTHER = 0.02, 0.005
# A text ends when it likes: no more than so many tokens of it are counted on when the first drafts are paid for.
EXPECTED_TOKENS = 128
# What a pair that did well on an earlier text, or on this one so far, may lose on top of it.
TRUST = 0.04
TRUSTED_TOKENS = 16  # seen before a pair is trusted
# Tokens of the text's end that a draft reads where reading all of it costs too much.
CONTEXTS = (64, 32, 16, 8)
WORTH = 1.01  # a draft must promise that much more than plain decoding
# Of the credit a round may lose no more than this share, or one drafted token: many short drafts tell more about an
# assistant than one long one.
SHARE = 0.25


@dataclass(frozen=True)
class Plan:
    """What to draft: at most `k` tokens, ending behind one less likely than `least`; `context` as in DraftSource."""

    k: int
    least: float = 0.0
    context: int | None = None


@dataclass(frozen=True)
class Situation:
    """Where a text stands: tokens so far, tokens that may still come, tokens the draft source has not read."""

    length: int
    remaining: int
    unread: int


@dataclass(frozen=True)
class Outcome:
    """What came of a plan: counts of tokens, the draft's confidence, seconds."""

    drafted: int
    accepted: int
    confidence: Sequence[float] = ()
    draft_s: float = 0.0
    target_s: float = 0.0


@dataclass(frozen=True)
class DraftOptions:
    """What one text asks for: whether to draft, how many tokens, by which schedule; None leaves it to us."""

    assisted: bool = True
    num_assistant_tokens: int | None = None
    schedule: str | None = None

    def __post_init__(self) -> None:
        if self.schedule not in (None, *SCHEDULES):
            raise UsageError(
                f"num_assistant_tokens_schedule {self.schedule!r}: there is no such; give one of {', '.join(SCHEDULES)}"
            )

    @property
    def wanted(self) -> bool:
        """Whether anything may be drafted."""
        return self.assisted and self.num_assistant_tokens != 0

    @property
    def kind(self) -> str:
        """The schedule: a number alone means that number every round, as people know it."""
        return self.schedule or ("adaptive" if self.num_assistant_tokens is None else "constant")

    @property
    def adapts(self) -> bool:
        """Whether the pair's costs are needed."""
        return self.wanted and self.kind == "adaptive"


class Schedule(Protocol):
    """Says how to draft, and hears what came of it. One object serves one text."""

    def plan(self, now: Situation) -> Plan:
        """For the round to come."""
        ...

    def observe(self, outcome: Outcome) -> None:
        """Of the round that was planned last."""
        ...


class Constant:
    """The same number every round."""

    def __init__(self, k: int = CONSTANT_TOKENS) -> None:
        self.k = k

    def plan(self, now: Situation) -> Plan:
        """Always `k`."""
        return Plan(self.k)

    def observe(self, outcome: Outcome) -> None:
        """It learns nothing."""


class Heuristic:
    """transformers' `num_assistant_tokens_schedule="heuristic"`: two more after a full hit, one less after a miss."""

    def __init__(self, k: int = HEURISTIC_TOKENS) -> None:
        self.k = k

    def plan(self, now: Situation) -> Plan:
        """The number as it stands."""
        return Plan(self.k)

    def observe(self, outcome: Outcome) -> None:
        """Count it up or down; a round in which nothing could be drafted says nothing."""
        if outcome.drafted:
            self.k = self.k + 2 if outcome.accepted == outcome.drafted else max(1, self.k - 1)


@dataclass(frozen=True)
class Costs:
    """Seconds of passes, measured by calibration.py.

    verify: the target's pass over 1, 2, … rows, never falling. draft: one drafted token. rows: the draft's pass over
    1, 2, … 16 rows, by which it catches up; read: each token of a longer stretch. A source without a model has zeros.
    """

    verify: tuple[float, ...]
    draft: float = 0.0
    rows: tuple[float, ...] = ()
    read: float = 0.0

    def reading(self, unread: int) -> float:
        """Seconds to read `unread` tokens, beyond the one row that a draft step reads anyway."""
        if unread <= 1 or not self.rows:
            return 0.0
        if unread <= len(self.rows):
            return max(0.0, self.rows[unread - 1] - self.rows[0])
        return unread * self.read

    def verifying(self, rows: int) -> float:
        """Seconds of the target's pass over `rows` rows; beyond what was measured it goes on with its last slope."""
        known = len(self.verify)
        if rows <= known:
            return self.verify[rows - 1]
        slope = (self.verify[-1] - self.verify[0]) / (known - 1) if known > 1 else self.verify[0]
        return self.verify[-1] + slope * (rows - known)


@dataclass(frozen=True)
class Choice:
    """The best way to draft that was found, and the tokens per second it promises."""

    k: int
    least: float
    rate: float


def best_choice(acceptance: Acceptance, costs: Costs, longest: int) -> Choice:
    """The number and the threshold with the most expected tokens per second; k = 0 is plain decoding.

    With a share g of drafted tokens at or above the threshold, accepted with probability h (those below with l), token
    j is drafted with probability g^(j-1) and accepted with (gh)^(j-1) (gh + (1-g)l). Without a threshold that is
    (1 - h^(k+1)) / (1 - h) tokens in k·draft + verify(k+1) seconds: Leviathan et al. 2023, section 3.5, with the
    verification's own cost for each number of rows.
    """
    steps = [costs.draft + costs.verifying(j + 1) - costs.verifying(j) for j in range(1, longest + 1)]
    plain = costs.verifying(1)
    best = Choice(0, 0.0, 1 / plain)
    for first, later in acceptance.splits():
        drafted = reached = tokens = 1.0
        seconds = plain
        for j, step in enumerate(steps):
            split = later if j else first
            seconds += drafted * step
            tokens += reached * (split.share * split.above + (1 - split.share) * split.below)
            if tokens > best.rate * seconds:
                best = Choice(j + 1, first.least, tokens / seconds)
            drafted *= split.share
            reached *= split.share * split.above
            if drafted < 0.01:
                break
    return best


@dataclass
class _Scale:
    """How much longer passes take than calibration found: other load, a longer context."""

    value: float = 1.0
    known: bool = False

    def observe(self, seconds: float, expected: float) -> None:
        """A pause of the machine counts no more than a pass of twice the length."""
        if seconds <= 0 or expected <= 0:
            return
        ratio = seconds / expected
        if not self.known:
            self.value, self.known = min(max(ratio, 0.25), 4.0), True
            return
        self.value += 0.1 * (min(max(ratio, self.value / 2), self.value * 2) - self.value)


@dataclass
class Adaptive:
    """Drafts as much as promises the most tokens per second, and nothing where plain decoding promises more.

    A ledger keeps the promise that drafting costs next to nothing where it does not pay: each round's tokens are worth
    what they would have taken plainly, and nothing is drafted whose loss, were all of it wrong, the balance and the
    allowance would not cover. While nothing is drafted, one token is tried whenever the allowance of the time since the
    last one has grown to its cost.

    `models` and `copies` are what is known of sources that read the text at a cost, and of those that do not.
    """

    costs: Costs
    limit: int  # tokens that the text may get
    longest: int = LONGEST_DRAFT
    models: Acceptance = field(default_factory=Acceptance)
    copies: Acceptance = field(default_factory=Acceptance)
    balance: float = 0.0  # seconds won over plain decoding
    _tokens: int = 0
    _since_try: float = 0.0  # seconds of plain decoding since a draft was last tried
    _tried: bool = False
    _shortened: bool = False  # the source has read the end of the text only
    _now: Situation = field(default_factory=lambda: Situation(0, 0, 0))
    _plan: Plan = field(default_factory=lambda: Plan(0))
    _target: _Scale = field(default_factory=_Scale)
    _plain: _Scale = field(default_factory=_Scale)
    _draft: _Scale = field(default_factory=_Scale)

    def __post_init__(self) -> None:
        known = self.models.seen >= TRUSTED_TOKENS
        choice = best_choice(self.models, self.costs, self.longest) if known else Choice(0, 0.0, 0.0)
        self._trusted = choice.rate * self.costs.verifying(1) > 1.1

    @property
    def credit(self) -> float:
        """Seconds that may be lost from here on."""
        tokens = max(min(self.limit, EXPECTED_TOKENS), self._tokens)
        share = STAKE + TRUST if self._trusted or self._pays() else STAKE
        return self.balance + (share * tokens + FURTHER * self._tokens) * self._costs(True).verifying(1)

    def _pays(self) -> bool:
        """Whether first tokens, by what was seen of them alone, are right often enough to pay for a draft of one."""
        now, known = self._now, self._known(self._now)
        costs = self._costs(now.unread == 0)
        price = costs.draft + costs.verifying(2) - costs.verifying(1)
        return sum(known.first.drafted) >= TRUSTED_TOKENS / 2 and known.first_rate * costs.verifying(1) > 1.2 * price

    def plan(self, now: Situation) -> Plan:
        """The best choice that can be afforded."""
        self._now = now
        costs = self._costs(now.unread == 0)
        longest = min(self.longest, now.remaining - 1)
        choice = best_choice(self._known(now), costs, longest) if longest > 0 else Choice(0, 0.0, 0.0)
        plain = costs.verifying(1)
        if choice.k and choice.rate * plain > WORTH:
            self._plan = self._affordable(now, choice, costs)
        else:
            self._plan = self._trial(now, costs, longest)
        return self._plan

    def observe(self, outcome: Outcome) -> None:
        """Book the round, and learn from it."""
        now, drafted = self._now, outcome.drafted
        self._learn_costs(outcome)
        costs = self._costs(now.unread == 0)
        plain = costs.verifying(1)
        self._tokens += outcome.accepted + 1
        self._since_try += plain
        # A source that had nothing to propose has read nothing either.
        if not drafted:
            return
        self.balance += outcome.accepted * plain - self._loss(now, drafted, self._plan.context, costs)
        if self._trusted and self._plan.context is None:
            self.balance += self._reading(now, None, costs)  # see _affordable
        self._since_try, self._tried = 0.0, True
        if self._plan.context is None:
            self._shortened = False
        elif now.unread > self._plan.context:
            self._shortened = True
        self._known(now).observe(outcome.confidence, drafted, outcome.accepted)

    def _known(self, now: Situation) -> Acceptance:
        return self.copies if now.unread == 0 else self.models

    def _costs(self, copies: bool) -> Costs:
        """In this moment's seconds, by what was measured since the start."""
        several = self._target.value if self._target.known else self._plain.value
        one = self._plain.value if self._plain.known else several
        verify = self.costs.verify
        # A pass of more rows is never cheaper, whatever a disturbed measurement says.
        scaled = [verify[0] * one]
        for seconds in verify[1:]:
            scaled.append(max(scaled[-1], seconds * several))
        if copies:
            return Costs(tuple(scaled))
        draft = self._draft.value
        return Costs(
            tuple(scaled), self.costs.draft * draft, tuple(r * draft for r in self.costs.rows), self.costs.read * draft
        )

    def _loss(self, now: Situation, k: int, context: int | None, costs: Costs) -> float:
        """Seconds that a round with `k` drafted tokens takes longer than a plain one."""
        return self._reading(now, context, costs) + k * costs.draft + costs.verifying(k + 1) - costs.verifying(1)

    def _reading(self, now: Situation, context: int | None, costs: Costs) -> float:
        if context is None:
            return costs.reading(now.length if self._shortened else now.unread)
        return costs.reading(min(now.unread, context))

    def _affordable(self, now: Situation, choice: Choice, costs: Costs) -> Plan:
        """The choice, with as much of the text read, and as many tokens, as the credit covers."""
        context = self._context(now, choice, costs)
        credit = self.credit
        if context is None and self._trusted:
            credit += self._reading(now, None, costs)  # a pair that did well before may read what it needs
        k, reading = choice.k, self._reading(now, context, costs)
        while k and self._loss(now, k, context, costs) > (credit if k == 1 else reading + SHARE * (credit - reading)):
            k -= 1
        return Plan(k, choice.least, context)

    def _context(self, now: Situation, choice: Choice, costs: Costs) -> int | None:
        """None to read the whole text: where that pays in the tokens to come, and its price may be lost."""
        if now.unread <= CONTEXTS[-1] and not self._shortened:
            return None
        price = self._reading(now, None, costs)
        won = now.remaining * (costs.verifying(1) - 1 / choice.rate)
        if self._shortened:
            # It drafts as it is; knowing the whole text makes it better by an amount that only trying would tell.
            whole = price < 0.5 * self.balance and price < 0.25 * won
        else:
            whole = price < won and (self._trusted or price < self.credit / 2)
        return None if whole else self._end_of_text(costs)

    def _end_of_text(self, costs: Costs) -> int:
        """As much of the text's end as half of the credit covers."""
        return next((size for size in CONTEXTS if costs.reading(size) < self.credit / 2), CONTEXTS[-1])

    def _trial(self, now: Situation, costs: Costs, longest: int) -> Plan:
        """Nothing, or now and then one token, by which a text that has become easier is noticed."""
        if longest < 1:
            return Plan(0)
        context = None if now.unread <= CONTEXTS[-1] and not self._shortened else CONTEXTS[-1]
        price = self._loss(now, 1, context, costs)
        due = not self._tried or self._since_try * STAKE >= price
        return Plan(1, 0.0, context) if due and price <= self.credit else Plan(0)

    def _learn_costs(self, outcome: Outcome) -> None:
        """Compare the seconds that the round took with those that calibration expects."""
        rows = outcome.drafted + 1
        if rows == 1:
            self._plain.observe(outcome.target_s, self.costs.verifying(1))
        else:
            self._target.observe(outcome.target_s, self.costs.verifying(rows))
        if outcome.drafted and self._now.unread and self.costs.draft:
            expected = outcome.drafted * self.costs.draft + self._reading(self._now, self._plan.context, self.costs)
            self._draft.observe(outcome.draft_s, expected)
