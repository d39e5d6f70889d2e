"""An assistant of a planner: its costs, how often its drafts are right, when it was last asked. No torch here."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from ipex_assist.speculative.account import OUTLIER
from ipex_assist.speculative.costs.acceptance import Acceptance
from ipex_assist.speculative.costs.adapter_acceptance import AdapterAcceptance, KnownOf
from ipex_assist.speculative.costs.live_costs import LiveCosts
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.pass_drafts import PassDrafts, RequestDraft
from ipex_assist.speculative.schedule import LONGEST_DRAFT

WORTH = 1.02  # a draft must promise this factor over plain decoding: costs are known to about as much
KNOWN_TOKENS = 8  # verified before a source's counts are trusted more than the prior
SEVERAL_MEMORY = 0.995  # decay of acceptance counts with each draft, where several requests are counted together
MOST_ERRORS = 4  # of drafts from a part: after these they do not pay; as many right ones are set against later errors
MOST_DOUBT = 16.0  # calibration was wrong by this factor at most
OVERHEAD_MEMORY = 0.9  # decay of the mean seconds beside passes, with each pass that has drafts


@dataclass(frozen=True)
class KnownAssistant:
    """What is known of an assistant when a planner begins.

    costs: of the target's passes and its own. acceptance: of earlier requests. known_of: the same by adapter.
    """

    costs: Costs
    acceptance: Acceptance = field(default_factory=Acceptance)
    known_of: KnownOf | None = None


@dataclass
class PlannedAssistant:
    """What is known of an assistant: costs, and acceptance rates of drafts from all of the context and from a part.

    untried_s: by adapter, plain decoding since its last draft, and infinite after a right trial. unasked_s: since any,
    for turns of the one of two that promises less. overhead_s: decayed mean of what passes with its drafts take
    beside the models. doubt: how many times as long as is believed its last draft took, where that was far more.
    """

    number: int
    live: LiveCosts
    whole: AdapterAcceptance
    part: AdapterAcceptance
    measured: bool = False  # one of its drafts
    part_errors: int = 0  # drafts from a part that were wrong, beyond those that were right
    untried_s: dict[str | None, float] = field(default_factory=dict)
    unasked_s: float = math.inf
    overhead_s: float = 0.0
    doubt: float = 1.0

    @classmethod
    def of(cls, number: int, known: KnownAssistant, live: LiveCosts) -> PlannedAssistant:
        """Begin with what is known. live: the costs of its passes and the target's."""
        whole, part = (AdapterAcceptance(known.acceptance, known.known_of, SEVERAL_MEMORY) for _ in range(2))
        made = cls(number, live, whole, part)
        if whole.without.seen >= KNOWN_TOKENS:
            made.unasked_s, made.measured = 0.0, True
        return made

    def rates(self, draft: RequestDraft, *, part: bool) -> Acceptance:
        """Return how often a request's drafts are right. part: after reading a part of the context only."""
        return (self.part if part else self.whole).of(draft.request.adapter)

    def skips(self, draft: RequestDraft) -> bool:
        """Whether it has read only a part of the request's context."""
        return draft.request.skipped[self.number] > 0

    def to_read(self, draft: RequestDraft) -> int:
        """Return the tokens that it reads before a trial: all of the context, where drafts from a part were wrong."""
        again = self.skips(draft) and self.part_errors > 0 and draft.now.rereads[self.number]
        return draft.now.length if again else draft.now.unread[self.number]

    def reading_s(self, made: PassDrafts, tokens: int) -> float:
        """Return the seconds in which it reads `tokens` tokens."""
        return self.doubt * made.costs_of(self.live).now.reading(tokens)

    def loss_s(self, made: PassDrafts, requests: int, k: int, *, free: bool = False) -> float:
        """Return the seconds that a pass takes beyond its own if each of `requests` drafts `k` tokens.

        free: copies, which no model makes.
        """
        costs = made.costs_of(self.live)
        drafting = 0.0 if free else k * float(costs.draft_s(requests)) + costs.block_s(requests)
        return self.doubt * drafting + float(costs.more_s(requests * k))

    def could_be_worthwhile(self, made: PassDrafts, requests: int) -> bool:
        """Whether drafts would be worthwhile if every token were accepted; yes where their costs are not known."""
        if not self.measured:
            return True
        costs, own, lengths = made.costs, made.costs_of(self.live), np.arange(1, LONGEST_DRAFT + 1)
        drafting_s = lengths * float(own.draft_s(requests)) + own.block_s(requests)
        seconds = costs.plain_s + self.doubt * drafting_s + own.more_s((requests * lengths).astype(np.float64))
        worth_s = WORTH * costs.requests / costs.plain_s
        return bool((costs.requests + requests * lengths > worth_s * seconds).any())

    def doubts(self, adapter: str | None) -> bool:
        """Whether first tokens, by counts alone, were right too seldom to pay."""
        first, costs = self.whole.of(adapter).first, self.live.costs
        gained_s = float(first.accepted.sum()) * costs.verifying(1)
        return first.seen >= KNOWN_TOKENS and gained_s < first.seen * costs.loss(1)

    def note_reading(self, draft: RequestDraft) -> None:
        """Note whether it read all of the context, or began with a part of it."""
        context, number = draft.plan.context, self.number
        if not draft.proposal.read or not draft.now.rereads[number]:
            return
        if context is None:
            draft.request.skipped[number] = 0
        elif context < draft.now.unread[number]:
            draft.request.skipped[number] = draft.now.length - context
        if self.skips(draft):
            errors = self.part_errors + (-1 if draft.accepted else 1)
            self.part_errors = min(max(errors, -MOST_ERRORS), MOST_ERRORS)

    def waited_s(self, adapter: str | None) -> float:
        """Return the seconds of plain decoding of texts with this adapter since the last draft of one."""
        return self.untried_s.get(adapter, math.inf)

    def count(self, plain_s: float, adapters: Sequence[str | None], drafted: Collection[str | None]) -> None:
        """Count a plain pass's seconds since its last draft, of each adapter by its share of the pass's requests.

        drafted: adapters of those that it drafted for.
        """
        for adapter in set(adapters) & self.untried_s.keys():
            self.untried_s[adapter] += plain_s * adapters.count(adapter) / len(adapters)
        self.untried_s.update(dict.fromkeys(drafted, 0.0))
        self.unasked_s = 0.0 if drafted else self.unasked_s + plain_s

    def note_draft(self, made: PassDrafts, seconds: float) -> None:
        """Note what a draft took. Far more than is believed by now may be what the next one takes, too."""
        made.expect(self.live)
        slower = seconds / made.likely_s if made.likely_s else 1.0
        self.doubt = min(slower, MOST_DOUBT) if slower > OUTLIER else 1.0

    def note_overhead(self, seconds: float) -> None:
        """Note what a pass with its drafts took beside the models."""
        self.overhead_s += (1 - OVERHEAD_MEMORY) * (seconds - self.overhead_s)
