"""Drafts of a mixture of experts, priced by the experts that their rows read."""

from __future__ import annotations

import random
from collections import abc
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from model_specs import fake_spec
from planned import PlannedText, RoundResult, observe, state_of

from ipex_assist.executors.interface import Model, Rows
from ipex_assist.models.mlp_spec import Experts
from ipex_assist.speculative.costs.acceptance import Acceptance
from ipex_assist.speculative.costs.batch_costs import BatchCosts
from ipex_assist.speculative.costs.calibration import calibrate
from ipex_assist.speculative.costs.expert_costs import ExpertCosts, ExpertSpread
from ipex_assist.speculative.costs.live_costs import LiveCosts
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.costs.pass_times import PassTimes
from ipex_assist.speculative.costs.stored_costs import StoredCosts
from ipex_assist.speculative.draft_lengths import best_length

pytestmark = pytest.mark.one_stack

COUNT, PER_TOKEN, FIXED, EACH = 64, 4, 0.4, 0.15  # seconds of a pass: FIXED, and EACH for an expert a layer


def distinct(rows: float) -> float:
    """Experts a layer that rows read which choose independently."""
    return COUNT * (1 - (1 - PER_TOKEN / COUNT) ** rows)


def costs(spread: float = 1.0) -> Costs:
    """Calibrated on tokens that choose independently."""
    read = tuple(distinct(rows) for rows in range(1, 17))
    experts = ExpertCosts(COUNT, PER_TOKEN, read, EACH, spread, 0.85)
    return Costs(tuple(FIXED + EACH * each for each in read), 0.1, (0.1,) * 16, 0.01, experts)


def round_of(drafted: int, spread: float, accepted: int = 0) -> RoundResult:
    """A round of a text whose drafted rows choose for themselves by `spread`."""
    read = distinct(1 + spread * drafted)
    return RoundResult(drafted, accepted, [0.9] * drafted, 0.1 * drafted, FIXED + EACH * read, read)


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
def test_a_text_tells_how_many_experts_its_drafts_read(spread: float) -> None:
    """Rows of any number are then priced rightly, those that were never drafted, too."""
    live = LiveCosts(costs())
    for drafted in (1, 2, 3, 2, 1) * 8:
        observe(live, round_of(drafted, spread), 1)
    for rows in (1, 3, 8, 12):
        assert live.costs.verifying(rows) == pytest.approx(FIXED + EACH * distinct(1 + spread * (rows - 1)), rel=0.15)


def test_other_experts_are_not_taken_for_a_slower_machine() -> None:
    """Passes of one row read what they always read: their price must not move where drafts read more or fewer."""
    live = LiveCosts(costs())
    for _ in range(20):
        observe(live, round_of(6, 0.1), 1)
    assert live.costs.verifying(1) == pytest.approx(costs().verifying(1), rel=0.02)


def test_texts_that_share_a_pass_choose_independently() -> None:
    """Eight texts of one row each read what eight independent rows do; what they draft behind counts by its spread."""
    live = LiveCosts(costs())
    for _ in range(30):
        read = distinct(4 + 0.25 * 4)
        live.observe_pass(PassTimes(8, FIXED + EACH * read, experts=read), requests=4)
    assert live.costs_from(8).verifying(8) == pytest.approx(FIXED + EACH * distinct(8), rel=0.05)
    assert live.costs_from(4).verifying(12) == pytest.approx(FIXED + EACH * distinct(4 + 0.25 * 8), rel=0.06)


def test_where_all_experts_are_read_nothing_is_learnt() -> None:
    """A pass of very many rows reads everything, whatever they choose; it must not make rows look alike."""
    experts = costs().experts
    assert experts is not None
    spread = ExpertSpread(experts)
    for _ in range(50):
        spread.observe(200, 1, COUNT)
    assert (spread.spread, spread.growth) == pytest.approx((1.0, 0.85))


def test_a_mixture_of_which_a_row_reads_all() -> None:
    """No division by the logarithm of nothing."""
    experts = ExpertCosts(2, 2, (2.0,) * 4, 0.1)
    spread = ExpertSpread(experts)
    spread.observe(3, 1, 1.9)
    assert experts.distinct(3) == 2.0
    assert spread.distinct(4, 1) == 2.0


def decode(spread: float, by_experts: bool, right: float, seed: int) -> float:
    """Return tokens per second of a text of 200, whose drafts are right with so much chance a token."""
    known = costs() if by_experts else Costs(*[getattr(costs(), name) for name in ("verify", "draft", "rows", "read")])
    acceptance, chance = Acceptance(), random.Random(seed)
    seconds = 0.0
    for _ in range(3):  # what a text taught is known to the next
        schedule = PlannedText(known, 200, model_acceptance=acceptance)
        new = 1
        while new < 200:
            plan = schedule.plan(state_of(new, 200 - new, 1))
            drafted = max(0, min(plan.k, 199 - new))
            accepted = next((i for i in range(drafted) if chance.random() > right), drafted)
            outcome = round_of(drafted, spread, accepted)
            schedule.observe(outcome)
            seconds += outcome.draft_s + outcome.target_s
            new += accepted + 1
        known, acceptance = schedule.findings().costs, schedule.acceptance
    return 3 * 199 / seconds


def test_rows_that_choose_alike_are_drafted_and_others_are_not() -> None:
    """Calibrated on tokens of no text, drafts look dear: where a text's rows share experts, a price by rows alone tries
    too little, and where they do not it is as good."""
    alike = [decode(0.1, by_experts, 0.75, seed) for by_experts in (True, False) for seed in range(4)]
    assert np.mean(alike[:4]) > 1.02 * np.mean(alike[4:])
    apart = [decode(1.0, by_experts, 0.75, seed) for by_experts in (True, False) for seed in range(4)]
    assert np.mean(apart[:4]) > 0.98 * np.mean(apart[4:])


def test_choices_follow_the_spread() -> None:
    """The same chances promise longer drafts where rows share experts."""
    acceptance = Acceptance()
    for _ in range(60):
        acceptance.observe([0.95] * 4, 4, 3)
    alike, apart = (LiveCosts(costs(spread)).costs for spread in (0.05, 1.0))
    lengths = [best_length(acceptance, BatchCosts(each, 1), 1, 12).k for each in (alike, apart)]
    assert lengths[0] > lengths[1]


class Kept:
    """A file in memory."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def read(self) -> Any:
        return self.content

    def write(self, content: Any) -> None:
        self.content = content


def test_what_was_learnt_is_kept() -> None:
    """The next process begins with the last text's spread, and with calibration's own passes, not that text's."""
    schedule = PlannedText(costs(), 500)
    for _ in range(60):
        schedule.plan(state_of(9, 400, 1))
        observe(schedule.planner.live, round_of(4, 0.2), 1)
    file = Kept({**asdict(costs()), "took_s": 1.0, "doubt_s": 0.0, "repeats": 0})
    kept = StoredCosts(file, lambda: 0.0)
    began = kept.costs(pytest.fail)
    assert began == costs()
    kept.correct(schedule.findings())
    again = StoredCosts(file, lambda: 0.0).costs(pytest.fail)
    assert again.experts is not None
    assert ExpertSpread(again.experts).distinct(5, 1) == pytest.approx(distinct(1 + 0.2 * 4), rel=0.05)
    assert again.verifying(8) == pytest.approx(costs().verifying(8), rel=0.1)


@pytest.mark.parametrize(
    "damaged", [{"count": 0}, {"read": []}, {"spread": float("nan")}, {"seconds": -1}, {"read": "x"}]
)
def test_a_damaged_file_is_measured_anew(damaged: dict[str, Any]) -> None:
    """A number of a file somebody touched must not become a price."""
    content = asdict(costs())
    content["experts"] |= damaged
    assert StoredCosts(Kept(content), lambda: 0.0).costs(lambda: Costs((9.0,))).verify == (9.0,)


class Mixture(Model):
    """A mixture without weights: tokens that are equal choose equal experts, others choose independently."""

    experts_read = 0  # type: ignore[assignment]

    def __init__(self) -> None:
        self.spec = fake_spec(50, layers=3, experts=Experts(COUNT, PER_TOKEN, 16))
        self.now = 0.0

    @property
    def exact_rows(self) -> int:
        return 16

    def new_sequence(self, capacity: int) -> Any:
        return Held(capacity)

    def forward(self, rows: abc.Sequence[Rows], vocabulary: int | None = None) -> torch.Tensor:
        tokens = [token for each in rows for token in each.tokens]
        for each in rows:
            each.sequence.length += len(each.tokens)  # type: ignore[misc]
        read = distinct(len(set(tokens)))
        self.experts_read = round(3 * read)
        self.now += FIXED / 1e3 + EACH / 1e3 * read
        return torch.zeros(sum(each.last for each in rows), 50)


class Held:
    """A sequence that holds nothing."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0

    def truncate(self, length: int) -> None:
        self.length = length


def test_calibration_tells_rows_from_experts() -> None:
    """The cost of an expert is found by passes of as many rows that read fewer of them."""
    model = Mixture()
    found = calibrate(model, None, clock=lambda: model.now).experts
    assert found is not None
    assert (found.count, found.per_token) == (COUNT, PER_TOKEN)
    assert found.seconds == pytest.approx(EACH / 1e3, rel=0.05)
    assert found.read[0] == pytest.approx(PER_TOKEN, rel=0.1)
    assert found.read[4] == pytest.approx(distinct(5), rel=0.03)
