"""Texts that share passes by one planner, by costs that are easy to add up: what drafts bring, and may lose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from drafted_texts import known

from ipex_assist.speculative.account import LOST_SHARE
from ipex_assist.speculative.costs.acceptance import Acceptance
from ipex_assist.speculative.costs.batch_costs import BatchCosts
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.costs.pass_times import PassTimes
from ipex_assist.speculative.draft_lengths import best_length
from ipex_assist.speculative.pass_drafts import PlannedRequest, RequestDraft
from ipex_assist.speculative.planned_assistant import KnownAssistant
from ipex_assist.speculative.planner import Planner
from ipex_assist.speculative.schedule import NOTHING, RoundState
from ipex_assist.speculative.sources.proposal import Proposal

pytestmark = pytest.mark.one_stack

ROWS = 64


def machine(free: int, draft: float = 0.1) -> Costs:
    """A machine on which a pass takes 1 s, of up to `free` rows, and beyond these the same for each row."""
    verify = tuple(max(1.0, rows / free) for rows in range(1, ROWS + 1))
    return Costs(verify, draft, tuple(draft * (1 + rows / 10) for rows in range(16)), 0.1)


CHEAP = Costs(machine(64).verify, 0.1, machine(64).rows, 0.005)


class Texts:
    """Texts that share passes.

    costs: as calibrated. true: of the machine, if calibration was disturbed. adapters: of the texts in turn.
    """

    def __init__(
        self,
        costs: Costs,
        count: int,
        right: float = 0.0,
        model: Acceptance | None = None,
        true: Costs | None = None,
        prompt: int = 100,
        adapters: Sequence[str | None] = (None,),
        gained_passes: float = 0.0,
    ) -> None:
        self.true, self.right = true or costs, right
        self.planner = Planner([KnownAssistant(costs, model or Acceptance())], gained_passes=gained_passes)
        self.requests = [self.planner.join(128, adapter=adapters[i % len(adapters)]) for i in range(count)]
        self.wrong: set[str] = set()  # adapters whose drafts are always wrong
        self.seconds, self.tokens, self.drafted = 0.0, 0, 0
        self.unread, self.length = [prompt] * count, prompt
        self.partial: set[int] = set()  # texts whose source started from a part
        self.from_parts = 0  # drafts of these, of which every other one is right as often as the others

    def round(self, sure: float = 0.5) -> list[int]:
        """Run a pass in which every draft is right with the given share; returns what was drafted."""
        costs, count = BatchCosts(self.true, len(self.requests)), len(self.requests)
        self.length += 1
        if self.planner.rests(self.requests, count):
            self.planner.rest(PassTimes(count, costs.plain_s))
            self.seconds, self.tokens = self.seconds + costs.plain_s, self.tokens + count
            self.unread = [unread + 1 for unread in self.unread]
            return [0] * count
        drafts = [
            RequestDraft(request, RoundState(self.length - 1, 100, (unread,)))
            for request, unread in zip(self.requests, self.unread, strict=True)
        ]
        made, draft_s = self.planner.plan(drafts, count), 0.0
        for i, draft in enumerate(drafts):
            if draft.plan.k:
                read = self._read(i, draft.plan.context)
                draft.proposal = Proposal([1] * draft.plan.k, [sure] * draft.plan.k, read)
                draft_s += self.true.reading(read)
        depths = [len(draft.proposal.tokens) for draft in drafts]
        draft_s += sum(float(costs.draft_s(sum(d > depth for d in depths))) for depth in range(max(depths)))
        self.planner.trim(made)
        for i, draft in enumerate(drafts):
            self.drafted += len(draft.proposal.tokens)
            right = 0.0 if draft.request.adapter in self.wrong else self.right
            if i in self.partial and draft.proposal.tokens:
                self.from_parts += 1
                right *= self.from_parts % 2
            draft.accepted = int(len(draft.proposal.tokens) * right)
            self.tokens += 1 + draft.accepted
            self.unread[i] = 1 if draft.plan.k else self.unread[i] + 1
        rows = count + sum(len(draft.proposal.tokens) for draft in drafts)
        target_s = float(costs.pass_s(rows))
        self.planner.observe(made, PassTimes(rows, target_s, draft_s))
        self.seconds += target_s + draft_s
        return [len(draft.proposal.tokens) for draft in drafts]

    def _read(self, i: int, context: int | None) -> int:
        """Return the tokens that text i's source reads, which may be a part of its context."""
        if context is None:
            read = self.length if i in self.partial else self.unread[i]
            self.partial.discard(i)
            return read
        if self.unread[i] > context:
            self.partial.add(i)
        return min(self.unread[i], context)


@pytest.mark.parametrize("count", [2, 4, 8, 16, 32])
@pytest.mark.parametrize("sure", [0.3, 0.99])
def test_drafts_that_are_always_wrong_cost_little(count: int, sure: float) -> None:
    """Three per cent of plain decoding at most, reading of prompts included, after 128 tokens of each text."""
    texts = Texts(CHEAP, count)
    for _ in range(128):
        texts.round(sure)
    assert texts.drafted > 0
    assert texts.seconds <= (1 + LOST_SHARE) * 128 + 0.1, "what reading takes is known roughly"


@pytest.mark.parametrize("count", [2, 4, 8])
def test_drafts_that_are_right_soon_pay(count: int) -> None:
    """Prompts are read as soon as a few drafts were right, and then all texts draft."""
    texts = Texts(CHEAP, count, right=1.0)
    counts = [texts.round(0.9) for _ in range(40)]
    assert all(map(any, zip(*counts[-2:], strict=True))), "of two passes, one may be without drafts"
    assert texts.tokens / texts.seconds > 2 * count


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize(("prompt", "factor"), [(40, 4), (40, 10), (40, 40), (100, 10), (100, 40), (400, 4), (400, 10)])
def test_a_calibration_in_which_reading_was_disturbed(count: int, prompt: int, factor: float) -> None:
    """Reading looks so expensive that no prompt is read: a few tokens tell what it takes, and all texts draft."""
    true = Costs(machine(64).verify, 0.1, tuple(0.1 + 0.003 * i for i in range(16)), 0.003)
    disturbed = Costs(true.verify, 0.1, tuple(0.1 + 0.003 * factor * i for i in range(16)), 0.003 * factor)
    seconds = []
    for costs, right in ((true, 1.0), (disturbed, 1.0), (disturbed, 0.0)):
        texts = Texts(costs, count, right, true=true, prompt=prompt)
        while texts.tokens < 128 * count:
            texts.round(0.9)
        seconds.append(texts.seconds * 128 * count / texts.tokens)
    quiet, found, wrong = seconds
    assert 128 - found >= 0.7 * (128 - quiet)
    assert wrong <= (1 + LOST_SHARE) * 128 + 0.4, "what reading takes is known roughly"


def test_a_token_of_many_is_worth_what_was_measured() -> None:
    """Finds gains and allowances by a calibration that took passes of many for three times as slow as they are.

    While prompts are read no pass corrects it: a token counts as no more than its share of one request's pass.
    """
    dear = replace(CHEAP, verify=(*CHEAP.verify[:7], *(3.0,) * (ROWS - 7)))
    texts = Texts(dear, 8, true=CHEAP)
    drafts = [RequestDraft(request, RoundState(100, 100, (100,))) for request in texts.requests]
    made = texts.planner.plan(drafts, 8, prefill_rows=100, prefilling=1)
    texts.planner.observe(made, PassTimes(108, 5.0, read=100))
    assert made.costs.plain_s / 8 == 3 / 8
    assert texts.planner.token_s == 1 / 8
    for _ in range(20):
        made = texts.planner.plan(drafts, 8)
        for draft in drafts:
            draft.plan = NOTHING
        texts.planner.observe(made, PassTimes(8, 2.0))
    assert texts.planner.token_s == pytest.approx(2 / 8, rel=0.1), "as measured"


def test_what_would_not_pay_if_all_of_it_were_right_is_not_tried() -> None:
    """Sixteen texts fill the pass of a machine that is bound by arithmetic; one draft is measured, of one token."""
    texts = Texts(machine(16), 16, right=1.0)
    for _ in range(300):
        texts.round(0.9)
    assert texts.drafted <= 1
    assert texts.seconds <= 300 + 0.5


def test_a_known_pair_reads_prompts_at_once() -> None:
    """As far as what it should win is more than the reading."""
    assert min(Texts(CHEAP, 4, model=known(0.9), gained_passes=8.0).round()) > 0
    slow = Texts(Costs(CHEAP.verify, CHEAP.draft, CHEAP.rows, 10.0), 4, model=known(0.9), gained_passes=8.0)
    slow.round()
    assert slow.partial == {0, 1, 2, 3}, "the last tokens alone"
    assert slow.seconds < 3


def test_texts_share_what_they_learn() -> None:
    """A text that goes on alone keeps what all of them taught."""
    texts = Texts(CHEAP, 4, right=1.0)
    for _ in range(10):
        texts.round(0.9)
    assert texts.planner.learnt()[0].seen > 16


def test_texts_with_equal_adapters_are_drafted_for_together() -> None:
    """Eight adapters under which drafts are right: one of them alone would not pay the draft's pass."""
    dear = replace(CHEAP, draft=0.25, rows=tuple(0.25 * (1 + rows / 10) for rows in range(16)))
    assert best_length(known(0.9), BatchCosts(dear, 8), 1, 15).k == 0
    texts = Texts(dear, 8, right=1.0, model=known(0.9), adapters=[f"a{i}" for i in range(8)], gained_passes=8.0)
    counts = [texts.round(0.9) for _ in range(40)]
    assert all(map(any, zip(*counts[-2:], strict=True))), "of two passes, one may be without drafts"
    assert len({id(texts.planner.learnt(f"a{i}")[0]) for i in range(8)}) == 8


def test_an_adapter_whose_drafts_become_right_is_noticed() -> None:
    """Finds texts that are left out of the others' drafts for ever, and rates that another adapter's texts change."""
    texts = Texts(CHEAP, 8, right=1.0, adapters=("good", "bad"))
    texts.wrong = {"bad"}
    counts = [texts.round(0.9) for _ in range(60)]
    good, bad = (texts.planner.learnt(adapter)[0] for adapter in ("good", "bad"))
    assert all(map(any, zip(*(each[::2] for each in counts[-2:]), strict=True)))
    assert sum(sum(each[1::2]) for each in counts[-20:]) <= 4, "trials of one token"
    assert good.first_rate > 0.95 > 0.05 > bad.first_rate
    texts.wrong = set()
    rounds = 0
    while min(texts.round(0.9)[1::2]) == 0:
        rounds += 1
        assert rounds < 1000, "its texts are never drafted for again"


@pytest.mark.parametrize("count", [2, 8, 32])
def test_adapters_whose_drafts_are_always_wrong_cost_little(count: int) -> None:
    """Beside each other, and as many as there are texts: they have one account, and one turn of trials."""
    texts = Texts(CHEAP, count, adapters=[f"a{i}" for i in range(count)])
    for _ in range(128):
        texts.round(0.3)
    assert texts.drafted > 0
    assert texts.seconds <= (1 + LOST_SHARE) * 128


def passes(texts: Texts, read: int, count: int, target_s: float, draft_s: float) -> None:
    """Run a pass in which each text drafts `count` tokens, whatever was planned, after reading `read`."""
    drafts = [RequestDraft(request, RoundState(200, 100, (read,) if read else ())) for request in texts.requests]
    made = texts.planner.plan(drafts, len(drafts))
    for draft in drafts:
        draft.proposal = Proposal([1] * count, [0.9] * count, read)
    made.expect(texts.planner.live)
    texts.planner.observe(made, PassTimes(len(drafts) * (1 + count), target_s, draft_s))


def test_what_passes_take_is_learnt() -> None:
    """On a machine that became slower, and of whose wide passes calibration knew too little."""
    texts = Texts(machine(64), 8)
    for i in range(60):
        count = 3 * (i % 2)
        passes(texts, 1, count, 3.0 if count else 2.0, count * 0.17 * 2)
    live = texts.planner.live
    assert live.costs_from(8).verifying(8) == pytest.approx(2.0, rel=0.1)
    assert live.costs.verifying(32) == pytest.approx(3.0, rel=0.1)
    assert live.costs.draft == pytest.approx(0.2, rel=0.15)


def test_what_a_draft_reads_is_no_price_of_drafting() -> None:
    """Eight texts whose prompts the draft reads before its first tokens, and copies that no model drafts."""
    costs = machine(64)
    texts = Texts(costs, 8)
    for i in range(20):
        read = 100 if i % 2 else 0
        passes(texts, read, 1, 1.0, 8 * 100 * costs.read + 0.17 if read else 0.0)
    assert texts.planner.live.costs.draft == pytest.approx(0.1, rel=0.01)


def test_a_newcomer_is_granted_its_start_when_it_runs() -> None:
    """And not while it waits for a place: a hundred that wait would lend their allowance to one that drafts."""
    texts = Texts(CHEAP, 2)
    texts.round()
    granted = texts.planner.account.ahead
    waiting: list[PlannedRequest] = [texts.planner.join(128) for _ in range(100)]
    assert texts.planner.account.ahead == granted
    texts.planner.grant(waiting[0])
    assert texts.planner.account.ahead > granted
    for request in waiting:
        texts.planner.leave(request)
    assert texts.planner.account.ahead == granted
