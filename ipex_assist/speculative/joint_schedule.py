"""The joint schedule of requests that share passes: one cost model and one budget for all. No torch here.

The requests that draft together share the cost of the draft's pass and of the rows it adds to the target's pass, so
whether drafting is worthwhile depends on how many do. One schedule decides for all, by one budget and by acceptance
rates over all requests, apart for each adapter. A request alone uses its own schedule (adaptive_schedule.py), which
shares costs and acceptance rates with this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from ipex_assist.speculative.adapter_acceptance import AdapterAcceptance, KnownOf, best_group, mean_of
from ipex_assist.speculative.adaptive_schedule import ASKING_SHARE, SHARE, AdaptiveSchedule
from ipex_assist.speculative.costs.acceptance import Acceptance
from ipex_assist.speculative.costs.live_costs import LiveCosts
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.draft_budget import EXPECTED_TOKENS, FURTHER, OUTLIER, STAKE, TRUST
from ipex_assist.speculative.joint_draft_choice import BatchCosts, JointDraftChoice, best_joint_draft, worth_verifying
from ipex_assist.speculative.schedule import LONGEST_DRAFT, DraftPlan, RoundState
from ipex_assist.speculative.sources.proposal import Proposal

MEMORY = 0.995  # decay of acceptance counts per round of one request: some 200 rounds are remembered
WORTH = 1.03  # a draft must promise this factor over plain decoding
KNOWN_TOKENS = 8  # verified before a source is trusted: each costs a pass of the draft
# Gain ÷ cost of first tokens from which a source gets more credit: it must read prompts before it gains.
TRUSTED_GAIN = 1.1
READY = 8  # a source with at most this many unread tokens is ready to draft
ALL_UNREAD = 1 << 30  # context: the source reads all unread tokens, however many
# Passes without a plan; the second where plans would otherwise take more than ASKING_SHARE of the time.
LONGEST_PAUSE, SELDOM_PAUSE = 16, 64
# Last tokens that one request reads to measure the cost of reading, if by calibration all prompts are too expensive.
PROBES = (8, 4, 2)
READING_SHARE = 0.75  # share of a request's expected gain that may be spent on reading its prompt
# Passes without drafts measure what plain decoding takes now. They may cost this share of the time in forgone gain,
# and come after at least the first and at most the second number of passes with drafts.
BASELINE_SHARE, BASELINE_AFTER = 0.01, (8, 48)
# Past gains are kept as credit up to this share of the time of EXPECTED_TOKENS plain passes.
KEPT_CREDIT = 0.1


@dataclass
class JointDraft:
    """One request's draft in a pass that several requests share."""

    schedule: AdaptiveSchedule
    now: RoundState
    plan: DraftPlan = field(default_factory=lambda: DraftPlan(0))
    proposal: Proposal = field(default_factory=lambda: Proposal([]))
    accepted: int = 0  # tokens of the proposal

    @property
    def most(self) -> int:
        """Longest draft allowed."""
        return min(self.schedule.longest, self.now.remaining - 1)


@dataclass
class PlainBaseline:
    """When a pass without drafts is due among those with drafts, to measure plain decoding."""

    gain: float = 1.0  # expected, of the last pass with drafts
    passes: int = 0  # with drafts since the last one without

    def count(self, gain: float | None) -> None:
        """Count a pass, and what its drafts were expected to gain; None: it had none."""
        self.passes = 0 if gain is None else self.passes + 1
        self.gain = self.gain if gain is None else gain

    @property
    def is_due(self) -> bool:
        """Whether the next pass should have no drafts."""
        first, last = BASELINE_AFTER
        return self.passes >= min(last, max(first, (self.gain - 1) / BASELINE_SHARE))


@dataclass
class ProbedReading:
    """What sources read before they draft: all that is unread, or a probe first, which measures what reading costs."""

    probed: AdaptiveSchedule | None = None  # of the request that read a probe, and next reads all its tokens

    def unread(self, draft: JointDraft) -> int:
        """Return how many tokens the source would read."""
        return draft.now.length if draft.schedule is self.probed else draft.now.unread

    def seconds(self, draft: JointDraft, costs: Costs) -> float:
        """Return what reading them takes."""
        return costs.reading(self.unread(draft))

    def context(self, draft: JointDraft) -> int | None:
        """Return the context by which the source reads all unread tokens, or starts again after a probe."""
        return None if draft.schedule is self.probed else ALL_UNREAD

    def note(self, draft: JointDraft) -> bool:
        """Note whether the source read a probe, which is returned, or all tokens after one."""
        text, context = draft.schedule, draft.plan.context
        if not draft.proposal.read or not draft.now.rereads:
            return False
        if context is None:
            text.round.skipped, self.probed = 0, None
        if context is None or not _is_probe(draft.plan):
            return False
        text.round.skipped, self.probed = draft.now.length - context, text
        return True


class JointSchedule:
    """Drafts what maximises the tokens per second of all requests together, within the credit."""

    def __init__(
        self,
        costs: Costs,
        model_acceptance: Acceptance,
        lookup_acceptance: Acceptance,
        known_of: KnownOf | None = None,
    ) -> None:
        """costs: calibrated. The acceptances are of earlier requests; they are copied. known_of: of adapters."""
        self.live = LiveCosts(costs)
        self._model = AdapterAcceptance(model_acceptance, known_of, MEMORY)
        self._lookup = AdapterAcceptance(lookup_acceptance, known_of, MEMORY, copies=True)
        self._credit = 0.0  # seconds that may be lost
        self._baseline = PlainBaseline()
        # Seconds of passes since the last draft; infinite before the first, and after a trial that was right.
        self._undrafted_s = float("inf")
        self._asking_s = 0.0  # of the last pass in which nothing was drafted: what asking takes
        self._drafts: list[JointDraft] = []
        self._batch_costs = BatchCosts(costs, 1)
        self._prefilling = 0  # requests whose prompts are being read
        self._rate = 0.0  # expected tokens per second of the current round
        self._trial = False
        self._left_out_s = 0.0  # seconds of passes since one of the requests was tried that others' drafts leave out
        self._tried: JointDraft | None = None  # such a request, in this pass
        self._turn = 0  # of the adapters' trials
        self._reading = ProbedReading()
        self._expected_draft_s = 0.0, 0.0  # of steps, and of reading, as calibrated
        self._pause = 0  # passes in which nothing will be planned, with these requests
        self._rested: list[tuple[float, float | None]] = []  # seconds and experts of such passes, not learnt from yet

    def pass_s(self, requests: int) -> float:
        """Return the seconds of a plain decoding pass of `requests` requests."""
        return self.live.costs_from(requests).verifying(requests)

    def plain_s(self, tokens: int) -> float:
        """Return the seconds of plain decoding for each of the `tokens` tokens a request got in one round."""
        return (self._batch_costs.base_s + (tokens - 1) * self._batch_costs.plain_s) / tokens

    def plan(self, drafts: Sequence[JointDraft], requests: int, prefill_rows: int, prefilling: int = 0) -> None:
        """Set the plan of each request that may draft in the next pass.

        requests: that decode in it, whether they draft or not. prefill_rows: prompt rows in it. prefilling: requests
        whose prompts are being read, which will share later passes.
        """
        self._wake()
        self._prefilling = prefilling
        self._batch_costs = BatchCosts(self.live.costs_from(requests), requests, prefill_rows)
        self._drafts = list(drafts)
        self._trial, self._tried, self._expected_draft_s = False, None, (0.0, 0.0)
        self._rate = self._batch_costs.requests / self._batch_costs.plain_s
        self._adopt_new()
        if not prefill_rows and self._baseline.is_due:
            return
        self._plan_able([draft for draft in drafts if draft.most > 0])

    def _plan_able(self, able: Sequence[JointDraft]) -> None:
        """Plan the drafts of requests that have tokens left to draft."""
        reading = [draft for draft in able if draft.now.unread > 0]
        self._plan_copies([draft for draft in able if not draft.now.unread])
        if reading and not self._plan_drafts(reading):
            self._plan_trial(reading)
        if reading and not any(draft.plan.k for draft in self._drafts):
            self._pause = self._passes_to_wait(reading)

    def rests(self, schedules: Sequence[AdaptiveSchedule], requests: int) -> bool:
        """Whether nothing will be planned in a pass of `requests` requests, those with these schedules among them.

        `rest` then takes the place of `plan` and `observe`.
        """
        same = requests == self._batch_costs.requests and all(self.has_adopted(schedule) for schedule in schedules)
        return self._pause > 0 and same

    def rest(self, read: int, seconds: float, experts: float | None = None) -> None:
        """Count a pass of a pause; its arguments are those of `observe`. What it says is learnt after the last."""
        self._pause -= 1
        self._credit += FURTHER * self._batch_costs.plain_s
        self._undrafted_s += self._batch_costs.plain_s
        self._baseline.passes = 0
        if not read:
            self._rested.append((seconds, experts))

    def _wake(self) -> None:
        """Learn from the passes of a pause."""
        self._pause = 0
        if not self._rested:
            return
        self.live.observe_plain(self._rested, self._batch_costs.requests)
        self._rested.clear()

    def _passes_to_wait(self, drafts: Sequence[JointDraft]) -> int:
        """Return for how many passes no draft would be due or covered, if costs stay as they are."""
        plain = self._batch_costs.plain_s
        cost = self._batch_costs.loss(1, 1) + self.live.costs.reading(min(map(self._reading.unread, drafts)))
        passes = (cost + self._asking_s - self._credit) / (FURTHER * plain)
        if self._promising(drafts)[1].gain <= WORTH:
            passes = max(passes, (cost / STAKE - self._undrafted_s) / plain)
        longest = min(max(LONGEST_PAUSE, self._asking_s / (ASKING_SHARE * plain)), SELDOM_PAUSE)
        return math.ceil(max(0.0, min(longest, passes)))

    def has_adopted(self, schedule: AdaptiveSchedule) -> bool:
        """Whether a request's drafts are paid from this schedule's credit."""
        return schedule.model_acceptance is self._model.of(schedule.adapter)

    def repays_reading(self, draft: JointDraft, requests: int) -> bool:
        """Whether drafts should repay a draft head's pass over a prompt's unread tokens, in passes of `requests`."""
        costs = self.live.costs_from(requests)
        batch_costs = BatchCosts(costs, requests)
        known = self._of_model(draft)
        choice = best_joint_draft(known, batch_costs, requests, LONGEST_DRAFT)
        if choice.gain <= WORTH:
            return False
        token_s, tokens = batch_costs.token_s, draft.schedule.budget.expected_tokens
        seconds = costs.reading(draft.now.unread)
        credit = self._credit + (
            0.0 if self.has_adopted(draft.schedule) else draft.schedule.joint_stake * tokens * token_s
        )
        if known.seen >= KNOWN_TOKENS:
            credit += TRUST * EXPECTED_TOKENS * batch_costs.plain_s
        won = min(draft.now.remaining, EXPECTED_TOKENS) * token_s * (1 - WORTH / choice.gain)
        return seconds < credit / 2 and seconds < READING_SHARE * won

    def book_reading(self, seconds: float) -> None:
        """Charge a draft head's pass over a prompt."""
        self._credit -= seconds

    def trim(self) -> None:
        """Trim the drafts to the rows that are worthwhile; every `proposal` was set before."""
        self._expected_draft_s = _drafting(self._drafts, self.live)
        if self._trial:
            return
        drafted = [draft for draft in self._drafts if draft.proposal.tokens and draft is not self._tried]
        drafted.sort(key=lambda draft: (draft.now.unread > 0, draft.schedule.adapter or ""))
        chances: list[list[float]] = []
        for _, alike in groupby(drafted, key=lambda draft: id(self._known(draft))):
            chances += _chances(self._known((same := list(alike))[0]), same)
        for draft, kept in zip(drafted, worth_verifying(chances, self._batch_costs, self._rate), strict=True):
            draft.proposal = replace(draft.proposal, tokens=draft.proposal.tokens[:kept])

    def observe(
        self,
        rows: int,
        read: int,
        seconds: float,
        draft_s: float,
        experts: float | None = None,
        overhead_s: float = 0.0,
    ) -> None:
        """Record the outcome of the round; every `accepted` was set before.

        rows: of the pass, `read` of them of prompts. seconds, draft_s: of the pass, and of drafting before it.
        experts: distinct experts it read, mean over the layers. overhead_s: as in RoundResult.
        """
        batch_costs, drafted, accepted = self._batch_costs, 0, 0
        for draft in self._drafts:
            count = len(draft.proposal.tokens)
            probe = self._reading.note(draft)
            if (count or draft.proposal.confidence) and not probe:
                self._known(draft).observe(draft.proposal.confidence, count, draft.accepted)
            drafted, accepted = drafted + count, accepted + draft.accepted
        if not read:  # prompt rows need no logits, so such a pass says little about others
            self.live.observe_pass(rows, seconds, self._expected_draft_s, draft_s, experts, rows - drafted)
        self._credit += FURTHER * batch_costs.plain_s - min(overhead_s, (OUTLIER - 1) * batch_costs.plain_s)
        if not read:
            self._baseline.count(self._rate * batch_costs.plain_s / batch_costs.requests if drafted else None)
        if any(draft.plan.k for draft in self._drafts):
            # Times far from the expected ones are caused by other processes, and clipped; but drafting that takes less
            # was calibrated beside others. A pass with prompt rows is known too roughly to measure a few drafted rows.
            likely = batch_costs.base_s + float(batch_costs.more_s(drafted))
            took = draft_s + (likely if read else max(seconds, likely / OUTLIER))
            took = min(took, (sum(self._expected_draft_s) + likely) * OUTLIER)
            self._credit += accepted * batch_costs.token_s - (took - batch_costs.base_s)
            probed = any(_is_probe(draft.plan) for draft in self._drafts)
            if drafted and not probed:
                self._undrafted_s = math.inf if self._trial and accepted else 0.0
        else:
            self._undrafted_s += batch_costs.plain_s
            self._asking_s = min(overhead_s, batch_costs.plain_s)
        self._credit = min(self._credit, KEPT_CREDIT * EXPECTED_TOKENS * batch_costs.plain_s)

    def _known(self, draft: JointDraft) -> Acceptance:
        return self._of_model(draft) if draft.now.unread else self._lookup.of(draft.schedule.adapter)

    def _of_model(self, draft: JointDraft) -> Acceptance:
        return self._model.of(draft.schedule.adapter)

    def _promising(self, drafts: Sequence[JointDraft]) -> tuple[Sequence[JointDraft], JointDraftChoice]:
        """Return the requests whose model is best allowed to draft, and how; the others' adapters change too much."""
        return best_group(drafts, list(map(self._of_model, drafts)), self._batch_costs, LONGEST_DRAFT)

    def _adopt_new(self) -> None:
        """Give each new request the shared acceptance rates, and add what is left of its stake to the credit."""
        for draft in self._drafts:
            text = draft.schedule
            if not self.has_adopted(text):
                left = max(0.0, text.credit)  # it may have read a prompt, or drafted alone
                self._credit += min(text.joint_stake * text.budget.expected_tokens * self._batch_costs.token_s, left)
                text.model_acceptance, text.lookup_acceptance = self._of_model(draft), self._lookup.of(text.adapter)

    def _plan_copies(self, drafts: Sequence[JointDraft]) -> None:
        if not drafts:
            return
        known = [self._lookup.of(draft.schedule.adapter) for draft in drafts]
        promising, choice = best_group(drafts, known, self._batch_costs, LONGEST_DRAFT, free=True)
        if choice.gain > WORTH:
            self._plan_choice(choice, promising, free=True)

    def _plan_drafts(self, drafts: Sequence[JointDraft]) -> bool:
        """Plan drafts of a model; False if none are worthwhile, or covered by the credit."""
        promising, choice = self._promising(drafts)
        if choice.gain <= WORTH:
            return False
        taking, read_s = self._readers(promising)
        trusted = all(self._of_model(draft).seen >= KNOWN_TOKENS for draft in promising)
        if trusted and len(taking) < len(promising):
            known = mean_of(list(map(self._of_model, taking or promising)))
            choice = best_joint_draft(known, self._batch_costs, max(1, len(taking)), LONGEST_DRAFT)
        if not taking or choice.gain <= WORTH or not self._plan_choice(choice, taking, read_s):
            return False
        if len(promising) < len(drafts):
            chosen = set(map(id, promising))
            self._plan_left_out([draft for draft in drafts if id(draft) not in chosen])
        return True

    def _readers(self, drafts: Sequence[JointDraft]) -> tuple[list[JointDraft], float]:
        """Return the requests whose source is ready or may read its unread tokens, and the seconds of that reading.

        Reading is limited to half of the credit. A trusted source reads for requests that should gain more than it
        costs; an untrusted one reads the shortest contexts, to find out whether to trust it.
        """
        # Reading now serves later passes, in which the prefilling requests will decode as well.
        requests = self._batch_costs.requests + self._prefilling
        batch_costs = BatchCosts(self.live.costs_from(requests), requests)
        known = mean_of(list(map(self._of_model, drafts)))
        choice = best_joint_draft(known, batch_costs, len(drafts) + self._prefilling, LONGEST_DRAFT)
        credit = self._credit_for(drafts)
        taking, whole = [], 0.0
        for draft in sorted(drafts, key=self._reading.unread):
            seconds = self._reading.seconds(draft, self.live.costs)
            won = min(draft.now.remaining, EXPECTED_TOKENS) * batch_costs.token_s * (1 - WORTH / choice.gain)
            trusted = self._of_model(draft).seen >= KNOWN_TOKENS
            covered = whole + seconds < credit / 2 and (seconds < READING_SHARE * won or not trusted)
            if self._reading.unread(draft) <= READY or covered:
                taking.append(draft)
                whole += seconds
        return taking, whole

    def _plan_choice(
        self, choice: JointDraftChoice, drafts: Sequence[JointDraft], read_s: float = 0.0, *, free: bool = False
    ) -> bool:
        """Plan the choice with as many tokens as the credit covers if all of them are rejected."""
        count, k = len(drafts), choice.k
        credit = self._credit_for(drafts) - read_s
        while k and self._batch_costs.loss(count, k, free=free) > credit * (1.0 if k == 1 else SHARE):
            k -= 1
        for draft in drafts:
            draft.plan = DraftPlan(min(k, draft.most), choice.min_confidence, self._reading.context(draft))
        self._rate = max(self._rate, choice.rate) if k else self._rate
        return k > 0

    def _credit_for(self, drafts: Sequence[JointDraft]) -> float:
        """Return the credit in seconds, with more where first tokens of trusted sources alone make it worthwhile."""
        trusted = [known for known in map(self._of_model, drafts) if known.seen >= KNOWN_TOKENS]
        gain = sum(known.first_rate for known in trusted) * self._batch_costs.token_s
        worthwhile = gain > TRUSTED_GAIN * self._batch_costs.loss(len(drafts), 1)
        return self._credit + (TRUST * EXPECTED_TOKENS * self._batch_costs.plain_s if worthwhile else 0.0)

    def _plan_trial(self, drafts: Sequence[JointDraft]) -> None:
        """Let one request draft one token from time to time, to notice when drafting becomes worthwhile."""
        step, costs = self._batch_costs.loss(1, 1), self.live.costs
        draft = _next_to_try(drafts, lambda each: step + self._reading.seconds(each, costs) <= self._credit, self._turn)
        cost, context = step + self._reading.seconds(draft, costs), self._reading.context(draft)
        if cost > self._credit and not self.live.reading_known:
            sizes = [size for size in PROBES if step + costs.reading(size) <= self._credit]
            if sizes and draft.now.unread > sizes[0]:
                cost, context = step + costs.reading(sizes[0]), sizes[0]
        is_due = self._undrafted_s * STAKE >= cost and cost <= self._credit
        if is_due and self._batch_costs.could_gain(WORTH, len(drafts), LONGEST_DRAFT):
            draft.plan, self._trial = DraftPlan(1, 0.0, context), True
            self._turn += 1

    def _plan_left_out(self, drafts: Sequence[JointDraft]) -> None:
        """Let one of the requests that the others' drafts leave out draft one token from time to time."""
        step, costs = self._batch_costs.loss(1, 1), self.live.costs
        draft = _next_to_try(drafts, lambda each: step + self._reading.seconds(each, costs) <= self._credit, self._turn)
        cost = step + self._reading.seconds(draft, costs)
        self._left_out_s += self._batch_costs.plain_s
        if self._left_out_s * draft.schedule.budget.stake >= cost and cost <= self._credit:
            draft.plan, self._tried = DraftPlan(1, 0.0, self._reading.context(draft)), draft
            self._left_out_s = 0.0
            self._turn += 1


def _next_to_try(drafts: Sequence[JointDraft], is_covered: Callable[[JointDraft], bool], turn: int) -> JointDraft:
    """Return the request that has the least to read, of each adapter in turn whose trial the credit covers."""
    cheapest: dict[str | None, JointDraft] = {}
    for draft in sorted(drafts, key=lambda draft: draft.now.unread):
        cheapest.setdefault(draft.schedule.adapter, draft)
    ordered = [cheapest[adapter] for adapter in sorted(cheapest, key=lambda adapter: adapter or "")]
    turns = list(filter(is_covered, ordered)) or ordered
    return turns[turn % len(turns)]


def _drafting(drafts: Sequence[JointDraft], live: LiveCosts) -> tuple[float, float]:
    """Return the calibrated seconds of drafting: of a pass for each depth, and of reading before it."""
    counts = [len(draft.proposal.tokens) for draft in drafts if draft.proposal.read]
    if not counts:
        return 0.0, 0.0
    batch_costs = BatchCosts(live.calibrated, len(counts))
    passes = (float(batch_costs.draft_s(sum(count > depth for count in counts))) for depth in range(max(counts)))
    steps = batch_costs.block_s(len(counts)) + sum(passes)
    return steps, sum(live.reading(draft.proposal.read) for draft in drafts)


def _is_probe(plan: DraftPlan) -> bool:
    return plan.k > 0 and plan.context is not None and plan.context < ALL_UNREAD


def _chances(acceptance: Acceptance, drafts: Sequence[JointDraft]) -> list[list[float]]:
    proposals = [draft.proposal for draft in drafts]
    return acceptance.chances([each.confidence for each in proposals], [len(each.tokens) for each in proposals])
