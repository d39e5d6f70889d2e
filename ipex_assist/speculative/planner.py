"""The planner: who drafts how much in the next pass, for N requests with M assistants each. No torch here.

A conservative bandit: plain decoding is the arm whose reward is known. A draft (an assistant, a length) is planned when
it should bring more tokens a second than plain decoding, and the account (account.py) covers its loss, should all of it
be rejected. Expected tokens come from counted acceptance, seconds from measured passes. Three policies say what is
tried without such an expectation, each below with its reason: trials, turns of an assistant that promises less, and
passes without drafts that measure plain decoding.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby

from ipex_assist.speculative.account import FIRST_TOKENS, OUTLIER, Account
from ipex_assist.speculative.arms import EXPLORED_SHARE, arm_of, next_arm
from ipex_assist.speculative.contexts import PARTS, SOON_PASSES, Contexts, ReadContext
from ipex_assist.speculative.costs.acceptance import MEMORY, Acceptance
from ipex_assist.speculative.costs.adapter_acceptance import AdapterAcceptance
from ipex_assist.speculative.costs.batch_costs import BatchCosts
from ipex_assist.speculative.costs.live_costs import CostFindings, LiveCosts
from ipex_assist.speculative.costs.pass_times import PassTimes
from ipex_assist.speculative.draft_lengths import DraftLength, best_group, first_token, worth_verifying
from ipex_assist.speculative.pass_drafts import PassDrafts, PlannedRequest, RequestDraft
from ipex_assist.speculative.planned_assistant import SEVERAL_MEMORY, WORTH, KnownAssistant, PlannedAssistant
from ipex_assist.speculative.schedule import ALL_UNREAD, LONGEST_DRAFT, DraftPlan
from ipex_assist.speculative.undrafted import Baseline, DraftPause

# A draft of several tokens may lose this share of the balance: two short drafts tell more than a long one.
SHARE = 0.3
PREPARING_SHARE = 0.5  # of the balance that a head's reading of a prompt, or its hidden states, are charged at most
PROBES = (4, 2)  # tokens that an assistant reads whose costs are not known, where the balance covers no part
ASKING_SHARE = 0.1  # of the allowance that planning takes where no draft could be worthwhile, as among many requests
LONGEST_PAUSE = 64  # passes without a plan: longer ones would notice too late that others share the passes


class Planner:
    """Plans the drafts of all requests that share passes, and learns from what became of them."""

    def __init__(
        self, known: Sequence[KnownAssistant], lookup: Acceptance | None = None, gained_passes: float = 0.0
    ) -> None:
        """known: of each assistant, at least one. gained_passes: by earlier requests, in plain passes."""
        self.live = LiveCosts(known[0].costs)
        self.assistants = [
            PlannedAssistant.of(number, each, LiveCosts(each.costs, self.live.target) if number else self.live)
            for number, each in enumerate(known)
        ]
        self._lookup = AdapterAcceptance(lookup or Acceptance(), known[0].known_of, SEVERAL_MEMORY, copies=True)
        self.account = Account(gained_passes * known[0].costs.verifying(1))
        self._baseline, self._pause = Baseline(), DraftPause()
        self._asking_s = 0.0  # what the last plan took
        self._last = PassDrafts((), self.live, BatchCosts(known[0].costs, 1))
        self.account.token_s = self._last.token_s

    # ---- requests

    def join(self, limit: int, longest: int = LONGEST_DRAFT, adapter: str | None = None) -> PlannedRequest:
        """Return a request's place in the planner."""
        return PlannedRequest(limit, longest, adapter, skipped=[0] * len(self.assistants))

    def grant(self, request: PlannedRequest) -> None:
        """Grant a request the allowance of its first tokens, once it runs: not while it waits for a place."""
        if request.ahead < 0:
            self._count_rested()
            request.ahead = float(min(FIRST_TOKENS, request.limit))
            self.account.begin(request.ahead, self._last.costs.plain_s)

    def leave(self, request: PlannedRequest) -> None:
        """A request has ended, perhaps before its first pass."""
        self._end_pause()
        self.account.ahead -= max(0.0, request.ahead)
        request.ahead = 0.0
        for each in self.assistants:
            each.part_errors = 0  # parts of other texts may do

    @property
    def token_s(self) -> float:
        """Seconds of plain decoding for each token of all requests together.

        Before such a pass was seen, no more than one request's takes: beside other programs calibration may have found
        twice as much for many.
        """
        costs = self._last.costs
        seen = costs.requests.bit_length() in self._baseline.seen
        return (costs.plain_s if seen else min(costs.plain_s, self.live.costs.verifying(1))) / costs.requests

    @property
    def gained_passes(self) -> float:
        """What drafts have gained, in plain passes."""
        self._count_rested()
        return self.account.earned_s / self.live.costs.verifying(1)

    def plain_s(self, tokens: int) -> float:
        """Return the seconds of plain decoding for each of the `tokens` tokens a request got in the last pass."""
        costs = self._last.costs
        return (costs.base_s + (tokens - 1) * costs.plain_s) / tokens

    def learnt(self, adapter: str | None = None) -> list[Acceptance]:
        """Return each assistant's acceptance rates of texts with an adapter, and those of copies behind them."""
        return [*(each.whole.of(adapter) for each in self.assistants), self._lookup.of(adapter)]

    def findings(self, request: PlannedRequest) -> list[CostFindings]:
        """Return what the passes say of each assistant's costs, after this request."""
        self._end_pause()
        untried = request.joined and not request.allowed
        return [each.live.findings(untried) for each in self.assistants]

    # ---- before a pass

    def plan(
        self, drafts: Sequence[RequestDraft], requests: int, prefill_rows: int = 0, prefilling: int = 0
    ) -> PassDrafts:
        """Set the plan of each request that may draft in the next pass.

        requests: that decode in it, whether they draft or not. prefill_rows: prompt rows in it. prefilling: requests
        whose prompts are being read, which will share later passes.
        """
        self._end_pause()
        costs = BatchCosts(self.live.costs_from(requests), requests, prefill_rows)
        made = self._last = PassDrafts(drafts, self.live, costs, prefilling, rate=requests / costs.plain_s)
        made.resting_s = self._pause.resting_s
        self._count_in(drafts)
        if not prefill_rows and self._baseline.is_due:
            return made
        able = [draft for draft in drafts if draft.most > 0]
        self._plan_copies(made, [draft for draft in able if draft.copies])
        if reading := [draft for draft in able if not draft.copies]:
            self._plan_drafts(made, reading)
        return made

    def _count_in(self, drafts: Sequence[RequestDraft]) -> None:
        """Note who decodes, and what a token takes."""
        memory, self.account.token_s = MEMORY if len(drafts) == 1 else SEVERAL_MEMORY, self.token_s
        for draft in drafts:
            self.grant(draft.request)
            draft.request.joined = True
            for each in self.assistants:
                each.whole.of(draft.request.adapter).memory = memory

    def _plan_copies(self, made: PassDrafts, drafts: Sequence[RequestDraft]) -> None:
        if drafts:
            known = [self._lookup.of(draft.request.adapter) for draft in drafts]
            promising, length = best_group(drafts, known, made.costs, LONGEST_DRAFT, free=True)
            if length.gain > WORTH:
                self._plan_length(
                    made,
                    self.assistants[0],
                    length,
                    Contexts([ReadContext(draft, None) for draft in promising]),
                    free=True,
                )

    def _plan_drafts(self, made: PassDrafts, drafts: Sequence[RequestDraft]) -> None:
        """Plan drafts of the assistant that promises most; of another where nothing of it is covered; or a trial."""
        arms = [arm_of(made, each, drafts, self.account.balance_s) for each in self.assistants]
        first = next_arm(made, arms)
        for arm in sorted(arms, key=lambda arm: (arm is not first, arm.token_s)):
            if arm.contexts.reads and self._plan_length(made, arm.each, arm.length, arm.contexts):
                drafting = {id(read.draft) for read in arm.contexts.reads}
                others = [draft for draft in drafts if id(draft) not in drafting]
                if arm.each.could_be_worthwhile(made, len(others)):
                    self._plan_trial(made, arm.each, others)
                return
        plain_s = made.costs.plain_s
        waits = []
        for arm in sorted(arms, key=lambda arm: -arm.each.unasked_s):
            missing = made.passes_until(arm.contexts.needs_s + self._asking_s - self.account.balance_s)
            if arm.each.measured and 0 < missing <= LONGEST_PAUSE:
                waits.append(missing)  # a trial would put off the drafts that are worthwhile
                continue
            possible = arm.each.could_be_worthwhile(made, len(drafts))
            if possible and self._plan_trial(made, arm.each, drafts, promised=arm.promised):
                return
            draft, _, cost = self._next_to_try(made, arm.each, drafts, promised=arm.promised)
            covered = made.passes_until(cost + self._asking_s - self.account.balance_s)
            waited_s = math.inf if arm.promised else arm.each.waited_s(draft.request.adapter)
            asked = 0.0 if possible else made.passes_until(self._asking_s / ASKING_SHARE)
            waits.append(max(covered, (cost / EXPLORED_SHARE - waited_s) / plain_s, asked))
        if not any(draft.plan.k for draft in made.drafts):
            self._pause.passes = math.ceil(max(0.0, min(LONGEST_PAUSE, *waits)))

    def _plan_length(
        self, made: PassDrafts, each: PlannedAssistant, length: DraftLength, contexts: Contexts, *, free: bool = False
    ) -> bool:
        """Plan drafts with as many tokens as the balance covers if all of them are rejected."""
        balance_s, count = self.account.balance_s - contexts.seconds, len(contexts.reads)
        k, block = length.k, bool(made.costs_of(each.live).block_s(1)) and not free
        if block:  # drafted at one cost, whatever its length; `trim` leaves what is worth verifying
            k, length = max(of.draft.most for of in contexts.reads), replace(length, min_confidence=0.0)
        verified = min(k, length.k) if each.measured or free else 1  # the first tells what drafts take
        while verified and each.loss_s(made, count, verified, free=free) > balance_s * (1 if verified == 1 else SHARE):
            verified -= 1
        if not verified:
            return False
        made.assistant = made.assistant if free else each.number
        for draft, context, _ in contexts.reads:
            most = min(k if block else verified, draft.most)
            draft.plan = DraftPlan(most, length.min_confidence, context, each.number)
            draft.request.allowed = True
        made.rate, rows_s = max(made.rate, length.rate), float(made.costs.more_s(count * verified))
        drafting_s = each.loss_s(made, count, verified, free=free) - rows_s
        made.covered_s = max(rows_s, SHARE * balance_s - drafting_s)
        return True

    def _plan_trial(
        self, made: PassDrafts, each: PlannedAssistant, drafts: Sequence[RequestDraft], *, promised: bool = False
    ) -> bool:
        """Let one of the requests draft one token, if that is due and covered.

        promised: by all that is known, which is little, all of them together would gain: due at once.
        """
        if not drafts:
            return False
        draft, context, cost = self._next_to_try(made, each, drafts, promised=promised)
        due = promised or each.waited_s(draft.request.adapter) * EXPLORED_SHARE >= cost
        if not due or cost > self.account.balance_s:
            return False
        draft.plan, made.trial, made.assistant = DraftPlan(1, 0.0, context, each.number), draft, each.number
        draft.request.allowed = True
        return True

    def _next_to_try(
        self, made: PassDrafts, each: PlannedAssistant, drafts: Sequence[RequestDraft], *, promised: bool
    ) -> tuple[RequestDraft, int | None, float]:
        """Return the request that has the least to read, what it reads, and the cost.

        Of the adapter that waited longest, or whose drafts are the likeliest to be right if together they promise gain.

        What an assistant's draft costs is not known before its first one, whatever calibration said beside other
        programs: that one counts as a plain pass at most, which the tokens that came must allow, and is charged what it
        took.
        """
        cheapest: dict[str, RequestDraft] = {}
        for draft in sorted(drafts, key=each.to_read):
            cheapest.setdefault(draft.request.adapter or "", draft)
        draft = max(
            cheapest.values(),
            key=lambda draft: (
                0.0 if promised else each.waited_s(draft.request.adapter),
                first_token(each.rates(draft, part=False)),
            ),
        )
        unread, step_s, balance_s = draft.now.unread[each.number], each.loss_s(made, 1, 1), self.account.balance_s
        context, cost = ALL_UNREAD, step_s + each.reading_s(made, unread)
        if each.to_read(draft) > unread:
            whole_s = step_s + each.reading_s(made, each.to_read(draft))
            if whole_s <= balance_s + made.allowed_s(SOON_PASSES):
                return draft, None, whole_s
        if unread > PARTS[-1] and cost > balance_s + made.allowed_s(SOON_PASSES):
            context, cost = PARTS[-1], step_s + each.reading_s(made, PARTS[-1])
        if not each.measured and cost > balance_s:
            for context in (min(unread, size) for size in PROBES):
                cost = step_s + each.reading_s(made, context)
                if cost <= balance_s:
                    break
            cost = min(cost, made.costs.plain_s + self.account.granted_s)
        return draft, context, cost

    # ---- pauses

    def rests(self, requests: Sequence[PlannedRequest], decoding: int) -> int:
        """Return for how many passes nothing will be planned, if `decoding` requests decode, these among them.

        `rest` then takes the place of `plan` and `observe`.
        """
        same = decoding == self._last.costs.requests and all(request.joined for request in requests)
        return self._pause.passes if same else 0

    def rest(self, took: PassTimes) -> None:
        """Take note of a pass of a pause. All are counted after the last: little is done between plain passes."""
        self._pause.rest(took)

    def _end_pause(self) -> None:
        self._pause.passes = 0
        self._count_rested()

    def _count_rested(self) -> None:
        """Count the passes of a pause so far, and learn from those without prompt rows, at once."""
        rested = self._pause.take_rested()
        if not rested:
            return
        requests, plain_s = self._last.costs.requests, self._last.costs.plain_s
        self._pause.resting_s = min(sum(took.overhead_s for took in rested) / len(rested), (OUTLIER - 1) * plain_s)
        self.account.charge(len(rested) * self._pause.resting_s, math.inf)
        for _ in rested:
            self._count()
        self._baseline.passes = 0
        if plain := [took for took in rested if not took.read]:
            self._baseline.count(requests)
            self.live.target.observe_plain(plain, requests)

    # ---- after drafting, and after the pass

    def _rates(self, made: PassDrafts, draft: RequestDraft) -> Acceptance:
        """Return how often drafts of this pass are right."""
        each = self.assistants[made.assistant]
        return self._lookup.of(draft.request.adapter) if draft.copies else each.rates(draft, part=each.skips(draft))

    def trim(self, made: PassDrafts) -> None:
        """Trim the drafts to the rows that are worthwhile; every `proposal` was set before."""
        made.expect(self.assistants[made.assistant].live)
        drafted = [draft for draft in made.drafts if draft.proposal.tokens and draft is not made.trial]
        rates = {id(draft): self._rates(made, draft) for draft in drafted}
        drafted.sort(key=lambda draft: id(rates[id(draft)]))
        chances: list[list[float]] = []
        for _, alike in groupby(drafted, key=lambda draft: id(rates[id(draft)])):
            same = list(alike)
            proposals = [draft.proposal for draft in same]
            lengths = [len(each.tokens) for each in proposals]
            chances += rates[id(same[0])].chances([each.confidence for each in proposals], lengths)
        for draft, kept in zip(drafted, worth_verifying(chances, made.costs, made.rate, made.covered_s), strict=True):
            draft.proposal = replace(draft.proposal, tokens=draft.proposal.tokens[:kept])

    def observe(self, made: PassDrafts, took: PassTimes) -> None:
        """Record the outcome of the pass; every `accepted` was set before."""
        each, costs, draft_s, overhead_s = self.assistants[made.assistant], made.costs, took.draft_s, took.overhead_s
        drafted, accepted = made.drafted, sum(draft.accepted for draft in made.drafts)
        for draft in made.drafts:
            count = len(draft.proposal.tokens)
            if count or draft.proposal.confidence:
                if not draft.copies:
                    each.note_reading(draft)
                self._rates(made, draft).observe(draft.proposal.confidence, count, draft.accepted)
        if not took.read:  # prompt rows need no logits, so such a pass says little about others
            each.live.observe_pass(took, made.expected_s, took.rows - drafted)
            costs = made.costs = BatchCosts(self.live.costs_from(costs.requests), costs.requests)
            gain = made.rate * costs.plain_s / costs.requests if drafted else 0.0
            self._baseline.count(costs.requests, gain)
        else:
            each.live.observe_draft(took.draft_s, made.expected_s)
        made.expect(each.live)
        self.account.charge(overhead_s, (OUTLIER - 1) * costs.plain_s)  # where passes are tiny, a plan takes longer
        if any(draft.plan.k for draft in made.drafts):
            # Far more time than expected was taken by other processes; and half of what else is unexpected, by chance.
            # A pass with prompt rows is known too roughly to measure a few drafted rows.
            likely = costs.base_s + float(costs.more_s(drafted))
            if drafted:
                likely_s = OUTLIER * each.doubt * made.likely_s
                draft_s = min(draft_s, max(likely_s, 0.0 if each.measured else self.account.balance_s))
            measured = min(max(took.seconds, likely / OUTLIER), likely * OUTLIER)
            pass_s = likely if took.read else (likely + measured) / 2
            self.account.book(accepted * self.token_s, draft_s + pass_s - costs.base_s)
            each.note_overhead(min(overhead_s, costs.plain_s))
        if overhead_s:
            self._asking_s = min(overhead_s, (OUTLIER - 1) * costs.plain_s)
        models = {draft.request.adapter for draft in made.drafts if draft.plan.k and not draft.copies}
        self._count(each, models if drafted or draft_s > made.expected_s[0] / 2 else ())
        if made.trial is not None and made.trial.accepted:
            each.untried_s[made.trial.request.adapter] = math.inf
        if models and drafted:
            each.measured = True
            each.note_draft(made, took.draft_s)

    def _count(self, drafter: PlannedAssistant | None = None, adapters: Collection[str | None] = ()) -> None:
        """Count plain decoding since each assistant's last draft, and the allowance of the tokens that came."""
        decoded = [draft.request.adapter for draft in self._last.drafts]
        for each in self.assistants:
            each.count(self._last.costs.plain_s, decoded, adapters if each is drafter else ())
        for draft in self._last.drafts:
            came = draft.accepted + 1
            self.account.allow(came, self.token_s)
            self.account.ahead -= min(came, draft.request.ahead)
            draft.request.ahead = max(0.0, draft.request.ahead - came)

    # ---- beside passes

    def charge(self, request: PlannedRequest, seconds: float) -> None:
        """Charge what drafting took beside passes: a head's reading of a prompt, hidden states.

        Far more than may be spent on that was taken by other processes.
        """
        self.grant(request)
        self._count_rested()
        self.account.charge(seconds, PREPARING_SHARE * max(0.0, self.account.balance_s))
