"""What drafts promise texts that share passes, and what they may lose: by costs that are easy to add up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ipex_assist.speculative.adaptive_schedule import AdaptiveSchedule
from ipex_assist.speculative.costs.acceptance import Acceptance
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.joint_draft_choice import BatchCosts, best_joint_draft, worth_verifying
from ipex_assist.speculative.joint_schedule import JointDraft, JointSchedule
from ipex_assist.speculative.schedule import RoundState
from ipex_assist.speculative.sources.proposal import Proposal

pytestmark = pytest.mark.one_stack

ROWS = 64


def machine(free: int, draft: float = 0.1) -> Costs:
    """A machine on which a pass takes 1 s, of up to `free` rows, and beyond these the same for each row."""
    verify = tuple(max(1.0, rows / free) for rows in range(1, ROWS + 1))
    return Costs(verify, draft, tuple(draft * (1 + rows / 10) for rows in range(16)), 0.1)


def known(right: float, rounds: int = 100) -> Acceptance:
    """Return what is known of a source that is always sure, and right so often."""
    acceptance = Acceptance()
    for i in range(rounds):
        acceptance.observe([0.99], 1, int(i * right) != int((i + 1) * right))
    return acceptance


def test_prices_of_a_pass() -> None:
    """Four texts beside eight rows of a prompt, on a machine on which eight rows are free."""
    batch_costs = BatchCosts(machine(8), 4, 8)
    assert (batch_costs.plain_s, batch_costs.base_s) == (1.0, 1.5)
    assert float(batch_costs.more_s(4)) == pytest.approx(0.5)
    assert float(batch_costs.draft_s(4)) == pytest.approx(0.13)
    assert float(batch_costs.draft_s(0.5)) == pytest.approx(0.05)
    assert float(BatchCosts(machine(8), 4).more_s(124)) == pytest.approx(15.0), "beyond what was measured"


def test_prices_of_whole_rows_are_interpolated_ones() -> None:
    """Catches another price for the same pass, by which a schedule would change its mind with the type of a number."""
    batch_costs = BatchCosts(machine(8), 4, 8)
    for rows in (*range(1, 80), 200):
        assert float(batch_costs.pass_s(rows)) == float(batch_costs.pass_s(float(rows)))
        assert float(batch_costs.more_s(rows)) == float(batch_costs.more_s(float(rows)))
        assert float(batch_costs.draft_s(rows)) == float(batch_costs.draft_s(float(rows)))


def test_expected_tokens_are_those_of_the_last_observation() -> None:
    """Catches tables that were computed before it."""
    acceptance, other = known(0.2), known(0.9)
    _, before = acceptance.expected_tokens(5)
    acceptance.observe([0.99], 1, 1)
    _, after = acceptance.expected_tokens(5)
    assert (after[:, 0] > before[:, 0]).all()
    acceptance.take(other)
    assert (acceptance.expected_tokens(5)[1] == other.expected_tokens(5)[1]).all()
    assert acceptance.expected_tokens(7)[0].shape[1] == 7


@pytest.mark.parametrize("texts", [1, 2, 4, 8, 16, 32])
def test_drafts_shrink_as_passes_are_bound_by_arithmetic(texts: int) -> None:
    """Where all rows of the pass are paid for anyway, nothing is drafted; and where they are free, as much as pays."""
    choice = best_joint_draft(Acceptance(), BatchCosts(machine(16), texts), texts, 15)
    twice = best_joint_draft(Acceptance(), BatchCosts(machine(16), 2 * texts), 2 * texts, 15)
    assert twice.k <= max(choice.k, 1)
    assert choice.k == 0 if texts >= 16 else choice.k > 0


def test_a_draft_is_paid_by_those_who_share_it() -> None:
    """A pass of the draft takes a quarter of the target's: it pays for eight texts, and not for one of them alone."""
    batch_costs = BatchCosts(machine(64, draft=0.25), 8)
    assert best_joint_draft(known(0.9), batch_costs, 8, 15).gain > 1.1
    assert best_joint_draft(known(0.9), batch_costs, 1, 15).k == 0


def test_passes_of_many_rows_that_nobody_measured() -> None:
    """They are taken to be bound by arithmetic: no draft hopes for rows that cost nothing."""
    batch_costs = BatchCosts(Costs((1.0,) * 16, 0.1, (0.1,) * 16, 0.1), 16)
    assert best_joint_draft(Acceptance(), batch_costs, 16, 15).k == 0


def test_the_likeliest_tokens_are_verified() -> None:
    """Of all drafts together, up to the step behind which rows cost more than they bring."""
    step = Costs((*(1.0,) * 8, *(1.8,) * 8, *(4.0,) * 48))
    batch_costs = BatchCosts(step, 4)
    assert worth_verifying([[0.9, 0.8, 0.1], [0.9], [0.2], []], batch_costs, 4.0) == [2, 1, 1, 0]
    assert worth_verifying([[0.9] * 8, [0.9], [0.9], [0.9]], batch_costs, 4.0) == [8, 1, 1, 1], "a step that pays"
    assert worth_verifying([], batch_costs, 4.0) == []
    assert worth_verifying([[0.01], []], BatchCosts(machine(1), 2), 2.0) == [0, 0]


class Texts:
    """Texts that share passes by one schedule, on a machine whose costs are known.

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
    ) -> None:
        self.true, self.right = true or costs, right
        self.joint = JointSchedule(costs, model or Acceptance(), Acceptance())
        self.schedules = [
            AdaptiveSchedule(costs, 128, shared=self.joint.live, adapter=adapters[i % len(adapters)])
            for i in range(count)
        ]
        self.wrong: set[str] = set()  # adapters whose drafts are always wrong
        self.seconds, self.tokens, self.drafted = 0.0, 0, 0
        self.unread, self.length = [prompt] * count, prompt
        self.partial: set[int] = set()  # texts whose source started from a part

    def round(self, sure: float = 0.5) -> list[int]:
        """Run a round in which every draft is right with the given share; returns what was drafted."""
        drafts = [
            JointDraft(text, RoundState(self.length, 100, unread))
            for text, unread in zip(self.schedules, self.unread, strict=True)
        ]
        self.joint.plan(drafts, len(drafts), 0)
        draft_s, batch_costs = 0.0, BatchCosts(self.true, len(drafts))
        for i, draft in enumerate(drafts):
            if draft.plan.k:
                read = self._read(i, draft.plan.context)
                draft.proposal = Proposal([1] * draft.plan.k, [sure] * draft.plan.k, read)
                draft_s += self.true.reading(read)
        depths = [len(draft.proposal.tokens) for draft in drafts]
        draft_s += sum(float(batch_costs.draft_s(sum(d > depth for d in depths))) for depth in range(max(depths)))
        self.joint.trim()
        for i, draft in enumerate(drafts):
            self.drafted += len(draft.proposal.tokens)
            right = 0.0 if i in self.partial or draft.schedule.adapter in self.wrong else self.right
            draft.accepted = int(len(draft.proposal.tokens) * right)
            self.tokens += 1 + draft.accepted
            self.unread[i] = 1 if draft.plan.k else self.unread[i] + 1
        self.length += 1
        rows = len(drafts) + sum(len(draft.proposal.tokens) for draft in drafts)
        target_s = float(batch_costs.pass_s(rows))
        self.joint.observe(rows, 0, target_s, draft_s)
        self.seconds += target_s + draft_s
        return [len(draft.proposal.tokens) for draft in drafts]

    def _read(self, i: int, context: int | None) -> int:
        """Return the tokens that text i's source reads; one that has started from a part is always wrong."""
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
    texts = Texts(Costs(machine(64).verify, 0.1, machine(64).rows, 0.005), count)
    for _ in range(128):
        texts.round(sure)
    assert texts.drafted > 0
    assert texts.seconds <= 1.03 * 128


@pytest.mark.parametrize("count", [2, 4, 8])
def test_drafts_that_are_right_soon_pay(count: int) -> None:
    """Prompts are read as soon as a few drafts were right, and then all texts draft."""
    texts = Texts(Costs(machine(64).verify, 0.1, machine(64).rows, 0.005), count, right=1.0)
    for _ in range(40):
        last = texts.round(0.9)
    assert min(last) > 0
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
    assert wrong <= 1.03 * 128


@pytest.mark.parametrize("count", [2, 4, 8])
def test_texts_of_a_source_that_was_never_right_stake_less(count: int) -> None:
    """Catches texts that share passes and lose their whole stakes, whatever was learnt before."""
    costs, wrong = Costs(machine(64).verify, 0.1, machine(64).rows, 0.005), known(0.0).for_next_text()
    lost = []
    for model in (None, wrong):
        texts = Texts(costs, count, model=model)
        if model is not None:
            texts.schedules = [
                AdaptiveSchedule(costs, 128, model_acceptance=model.for_next_text(), shared=texts.joint.live)
                for _ in range(count)
            ]
        for _ in range(128):
            texts.round(0.99)
        assert texts.drafted > 0
        lost.append(texts.seconds - 128)
    assert lost[1] < 0.6 * lost[0]


def test_a_text_stakes_once() -> None:
    """What it lost alone is not staked again where it then shares passes."""
    texts = Texts(Costs(machine(64).verify, 0.1, machine(64).rows, 0.005), 4)
    for text in texts.schedules[1:]:
        text.budget.account.balance = -10.0
    texts.joint.plan([JointDraft(text, RoundState(100, 100, 1)) for text in texts.schedules], 4, 0)
    assert texts.joint._credit == pytest.approx(texts.schedules[0].budget.stake * 128 / 4)


def test_what_would_not_pay_if_all_of_it_were_right_is_not_tried() -> None:
    """Sixteen texts fill the pass of a machine that is bound by arithmetic."""
    texts = Texts(machine(16), 16, right=1.0)
    for _ in range(300):
        texts.round(0.9)
    assert texts.drafted == 0
    assert texts.seconds == 300


def test_a_known_pair_reads_prompts_at_once() -> None:
    """As far as what it should win is more than the reading."""
    true = Costs(machine(64).verify, 0.1, machine(64).rows, 0.005)
    assert min(Texts(true, 4, model=known(0.9)).round()) > 0
    slow = Costs(true.verify, true.draft, true.rows, 10.0)
    assert sum(Texts(slow, 4, model=known(0.9)).round()) <= 1, "a probe of what reading takes"


def test_texts_share_what_they_learn() -> None:
    """A text that goes on alone keeps what all of them taught."""
    texts = Texts(Costs(machine(64).verify, 0.1, machine(64).rows, 0.005), 4, right=1.0)
    for _ in range(10):
        texts.round(0.9)
    seen = {id(text.model_acceptance) for text in texts.schedules}
    assert len(seen) == 1
    assert texts.schedules[0].model_acceptance.seen > 16


CHEAP = Costs(machine(64).verify, 0.1, machine(64).rows, 0.005)


def test_texts_with_equal_adapters_are_drafted_for_together() -> None:
    """Eight adapters under which drafts are right: one of them alone would not pay the draft's pass."""
    dear = replace(CHEAP, draft=0.25, rows=tuple(0.25 * (1 + rows / 10) for rows in range(16)))
    assert best_joint_draft(known(0.9), BatchCosts(dear, 8), 1, 15).k == 0
    texts = Texts(dear, 8, right=1.0, model=known(0.9), adapters=[f"a{i}" for i in range(8)])
    for _ in range(40):
        last = texts.round(0.9)
    assert min(last) > 0
    assert len({id(text.model_acceptance) for text in texts.schedules}) == 8


def test_an_adapter_whose_drafts_become_right_is_noticed() -> None:
    """Finds texts that are left out of the others' drafts for ever, and rates that another adapter's texts change."""
    texts = Texts(CHEAP, 8, right=1.0, adapters=("good", "bad"))
    texts.wrong = {"bad"}
    for _ in range(60):
        last = texts.round(0.9)
    assert min(last[::2]) > 0
    assert max(last[1::2]) == 0
    good, bad = (texts.schedules[i].model_acceptance for i in (0, 1))
    assert good.first_rate > 0.95 > 0.05 > bad.first_rate
    texts.wrong = set()
    rounds = 0
    while min(texts.round(0.9)[1::2]) == 0:
        rounds += 1
        assert rounds < 1000, "its texts are never drafted for again"


@pytest.mark.parametrize("count", [2, 8, 32])
def test_adapters_whose_drafts_are_always_wrong_cost_little(count: int) -> None:
    """Beside each other, and as many as there are texts: they have one budget, and one turn of trials."""
    texts = Texts(CHEAP, count, adapters=[f"a{i}" for i in range(count)])
    for _ in range(128):
        texts.round(0.3)
    assert texts.drafted > 0
    assert texts.seconds <= 1.03 * 128


def test_what_passes_take_is_learnt() -> None:
    """On a machine that became slower, and of whose wide passes calibration knew too little."""
    texts = Texts(machine(64), 8)
    for i in range(60):
        count = 3 * (i % 2)
        drafts = [JointDraft(text, RoundState(200, 100, 1)) for text in texts.schedules]
        texts.joint.plan(drafts, 8, 0)
        for draft in drafts:
            draft.proposal = Proposal([1] * count, [0.9] * count, 1)
        texts.joint._trial = True
        texts.joint.trim()
        texts.joint.observe(8 + 8 * count, 0, 3.0 if count else 2.0, count * 0.17 * 2)
    assert texts.joint.pass_s(8) == pytest.approx(2.0, rel=0.1)
    assert texts.joint.live.costs.verifying(32) == pytest.approx(3.0, rel=0.1)
    assert texts.joint.live.costs.draft == pytest.approx(0.2, rel=0.15)


def test_what_a_draft_reads_is_no_price_of_drafting() -> None:
    """Eight texts whose prompts the draft reads before its first tokens, and copies that no model drafts."""
    costs = machine(64)
    texts = Texts(costs, 8)
    for i in range(20):
        read = 100 if i % 2 else 0
        drafts = [JointDraft(text, RoundState(200, 100, read)) for text in texts.schedules]
        texts.joint.plan(drafts, 8, 0)
        for draft in drafts:
            draft.proposal = Proposal([1], [0.9], read)
        texts.joint.trim()
        texts.joint.observe(16, 0, 1.0, 8 * 100 * costs.read + 0.17 if read else 0.0)
    assert texts.joint.live.costs.draft == pytest.approx(0.1, rel=0.01)
