"""The adaptive schedule: drafts as long as measured costs and observed acceptance make worth while. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ipex_assist.speculative.acceptance import EDGES, Acceptance, Array
from ipex_assist.speculative.costs import Costs
from ipex_assist.speculative.live_costs import LiveCosts
from ipex_assist.speculative.schedule import LONGEST_DRAFT, Plan, RoundResult, RoundState

# Of the time that plain decoding takes, what drafts that turn out wrong may cost: at the beginning, for the tokens to
# be expected, and further on as they come. The rest of the 3 % that we promise is for errors of the cost model.
STAKE, FURTHER = 0.016, 0.005
# A text ends when it likes: no more than so many tokens of it are counted on when the first drafts are paid for.
EXPECTED_TOKENS = 128
# What a pair that did well on an earlier text, or on this one so far, may lose on top of it.
TRUST = 0.04
TRUSTED_TOKENS = 16  # seen before a pair is trusted
TRUSTED_READING = 0.1  # and what it may spend on reading a prompt, which it then need not have won before
# Tokens of the text's end that a draft reads where reading all of it costs too much.
CONTEXTS = (64, 32, 16, 8)
WORTH = 1.01  # a draft must promise that much more than plain decoding
# Of the credit a round may lose no more than this share, or one drafted token: two drafts tell more about an
# assistant than one long one.
SHARE = 0.5
PAUSE = 1.5  # a round's seconds ÷ those expected, beyond which they do not count
KEPT_TOKENS = 8  # for which a choice is kept where nothing is drafted


@dataclass(frozen=True)
class Choice:
    """The best way to draft that was found, and the tokens per second it promises."""

    k: int
    min_confidence: float
    rate: float


def best_choice(acceptance: Acceptance, costs: Costs, longest: int) -> Choice:
    """The number and the threshold with the most expected tokens per second; k = 0 is plain decoding.

    With a share g of drafted tokens at or above the threshold, accepted with probability h (those below with l), token
    j is drafted with probability g^(j-1) and accepted with (gh)^(j-1) (gh + (1-g)l). Without a threshold that is
    (1 - h^(k+1)) / (1 - h) tokens in k·draft + verify(k+1) seconds: Leviathan et al. 2023, section 3.5, with the
    verification's own cost for each number of rows.
    """
    plain = costs.verifying(1)
    verify = np.array([costs.verifying(rows) for rows in range(1, longest + 2)])
    first, later = acceptance.splits()
    drafted = _powers(first.share, later.share, longest)
    reached = _powers(first.share * first.above, later.share * later.above, longest)
    right = np.repeat((later.share * later.above + (1 - later.share) * later.below)[:, None], longest, axis=1)
    right[:, 0] = first.share * first.above + (1 - first.share) * first.below
    tokens = 1 + np.cumsum(reached * right, axis=1)
    seconds = plain + np.cumsum(drafted * (costs.draft + np.diff(verify)), axis=1)
    rates = tokens / seconds
    edge, number = divmod(int(rates.argmax()), longest)
    rate = float(rates[edge, number])
    return Choice(number + 1, EDGES[edge], rate) if rate * plain > 1 else Choice(0, 0.0, 1 / plain)


def _powers(first: Array, later: Array, longest: int) -> Array:
    """(edges, longest): the probability that token 1, 2, … is drafted, or reached: 1, first, first·later, …"""
    table: Array = np.repeat(later[:, None], longest, axis=1)
    table[:, 0] = 1.0
    if longest > 1:
        table[:, 1] = first
    return np.cumprod(table, axis=1, dtype=np.float64)


@dataclass
class Adaptive:
    """Drafts as much as promises the most tokens per second, and nothing where plain decoding promises more.

    A ledger keeps the promise that drafting costs next to nothing where it does not pay: each round's tokens are worth
    what they would have taken plainly, and nothing is drafted whose loss, were all of it wrong, the balance and the
    allowance would not cover. While nothing is drafted, one token is tried whenever the allowance of the time since the
    last one has grown to its cost.

    `model_acceptance` and `lookup_acceptance` are what is known of sources that read the text at a cost, and of those
    that do not.
    """

    costs: Costs
    limit: int  # tokens that the text may get
    longest: int = LONGEST_DRAFT
    model_acceptance: Acceptance = field(default_factory=Acceptance)
    lookup_acceptance: Acceptance = field(default_factory=Acceptance)
    balance: float = 0.0  # seconds won over plain decoding
    _tokens: int = 0
    _drafts: int = 0  # rounds with one
    _chosen: Choice = Choice(0, 0.0, 0.0)
    _chosen_for: tuple[object, ...] = ()
    _since_try: float = 0.0  # seconds of plain decoding since a draft was last tried
    _tried: bool = False
    _has_read: bool = False  # the whole text, on trust
    _shortened: bool = False  # the source has read the end of the text only
    _now: RoundState = field(default_factory=lambda: RoundState(0, 0, 0))
    _plan: Plan = field(default_factory=lambda: Plan(0))

    def __post_init__(self) -> None:
        self._live = LiveCosts(self.costs)
        known = self.model_acceptance.seen >= TRUSTED_TOKENS
        choice = best_choice(self.model_acceptance, self.costs, self.longest) if known else Choice(0, 0.0, 0.0)
        self._trusted = choice.rate * self.costs.verifying(1) > 1.1

    @property
    def credit(self) -> float:
        """Seconds that may be lost from here on."""
        trust = TRUST * self._expected_tokens if self._trusted or self._pays() else 0.0
        stake = STAKE * max(self._expected_tokens, self._tokens) + FURTHER * self._tokens
        return self.balance + (trust + stake) * self._live.costs.verifying(1)

    @property
    def _expected_tokens(self) -> int:
        """Of the text, before it is seen how long it is."""
        return min(self.limit, EXPECTED_TOKENS)

    def _pays(self) -> bool:
        """Whether first tokens, by what was seen of them alone, are right often enough to pay for a draft of one."""
        known, costs = self._known, self._costs
        price = costs.draft + costs.verifying(2) - costs.verifying(1)
        return known.first.seen >= TRUSTED_TOKENS / 2 and known.first_rate * costs.verifying(1) > 1.2 * price

    def plan(self, now: RoundState) -> Plan:
        """The best choice that can be afforded."""
        self._now = now
        longest = min(self.longest, now.remaining - 1)
        choice = self._choice(longest) if longest > 0 else Choice(0, 0.0, 0.0)
        if choice.k and choice.rate * self._costs.verifying(1) > WORTH:
            self._plan = self._affordable(choice)
        else:
            self._plan = self._trial() if longest > 0 else Plan(0)
        return self._plan

    def _choice(self, longest: int) -> Choice:
        """The best one. It is searched for anew when a draft taught something, and else now and then: costs drift."""
        key = (self._known is self.lookup_acceptance, self._drafts, longest, self._tokens // KEPT_TOKENS)
        if key != self._chosen_for:
            self._chosen, self._chosen_for = best_choice(self._known, self._costs, longest), key
        return self._chosen

    def observe(self, outcome: RoundResult) -> None:
        """Book the round, and learn from it."""
        now, drafted, context = self._now, outcome.drafted, self._plan.context
        unread = now.unread if context is None else min(now.unread, context)
        self._live.observe(outcome, now.length if context is None and self._shortened else unread)
        plain = self._costs.verifying(1)
        self._tokens += outcome.accepted + 1
        self._since_try += plain
        # A source that had nothing to propose has read nothing either.
        if not drafted:
            return
        # What it took by the clock, where that is more: costs may be wrong. Far more was somebody else's work.
        expected = plain + self._loss(drafted, context)
        took = min(max(outcome.draft_s + outcome.target_s, expected), expected * PAUSE)
        self.balance += (outcome.accepted + 1) * plain - took
        if self._reads_on_trust(context):
            self.balance += self._reading(None)
            self._has_read = True
        self._since_try, self._tried = 0.0, True
        self._drafts += 1
        if context is None:
            self._shortened = False
        elif now.unread > context:
            self._shortened = True
        self._known.observe(outcome.confidence, drafted, outcome.accepted)

    @property
    def _known(self) -> Acceptance:
        return self.model_acceptance if self._now.unread else self.lookup_acceptance

    @property
    def _costs(self) -> Costs:
        return self._live.costs if self._now.unread else self._live.copying

    def _loss(self, k: int, context: int | None) -> float:
        """Seconds that a round with `k` drafted tokens takes longer than a plain one."""
        costs = self._costs
        return self._reading(context) + k * costs.draft + costs.verifying(k + 1) - costs.verifying(1)

    def _reading(self, context: int | None) -> float:
        now = self._now
        if context is None:
            return self._costs.reading(now.length if self._shortened else now.unread)
        return self._costs.reading(min(now.unread, context))

    def _affordable(self, choice: Choice) -> Plan:
        """The choice, with as much of the text read, and as many tokens, as the credit covers."""
        context, credit = self._context(choice), self.credit
        reading = self._reading(context)
        if self._reads_on_trust(context):
            credit += reading
        k, most = choice.k, reading + SHARE * (credit - reading)
        while k and self._loss(k, context) > (credit if k == 1 else most):
            k -= 1
        return Plan(k, choice.min_confidence, context)

    def _reads_on_trust(self, context: int | None) -> bool:
        """Whether the ledger leaves this reading out: the first of the whole text, by a pair that did well before."""
        return self._trusted and context is None and not self._has_read

    def _context(self, choice: Choice) -> int | None:
        """None to read the whole text: where that pays in the tokens to come, and its price may be lost."""
        now, plain = self._now, self._costs.verifying(1)
        if now.unread <= CONTEXTS[-1] and not self._shortened:
            return None
        price, won = self._reading(None), min(now.remaining, EXPECTED_TOKENS) * (plain - 1 / choice.rate)
        if self._shortened:
            # It drafts as it is; knowing the whole text makes it better by an amount that only trying would tell.
            whole = price < 0.5 * self.balance and price < 0.25 * won
        else:
            trusted = self._trusted and price < TRUSTED_READING * self._expected_tokens * plain
            whole = price < won and (trusted or price < self.credit / 2)
        return None if whole else self._end_of_text()

    def _end_of_text(self) -> int:
        """As much of the text's end as half of the credit covers."""
        half = self.credit / 2
        return next((size for size in CONTEXTS if self._costs.reading(size) < half), CONTEXTS[-1])

    def _trial(self) -> Plan:
        """Nothing, or now and then one token, by which a text that has become easier is noticed."""
        context = None if self._now.unread <= CONTEXTS[-1] and not self._shortened else CONTEXTS[-1]
        price = self._loss(1, context)
        due = not self._tried or self._since_try * STAKE >= price
        return Plan(1, 0.0, context) if due and price <= self.credit else Plan(0)
