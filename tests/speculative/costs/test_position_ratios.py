"""Acceptance by position: what a draft's later tokens are worth beyond what their confidence says."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from planned import PlannedText, RoundResult, state_of

from ipex_assist.speculative.costs.acceptance import Acceptance
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.costs.position_ratios import POSITIONS, PositionRatios
from ipex_assist.speculative.schedule import LONGEST_DRAFT
from ipex_assist.speculative.sources.proposal import Proposal

pytestmark = pytest.mark.one_stack

FALLING = (0.9, 0.85, 0.75, 0.6, 0.4, 0.25, 0.15)  # of a block's tokens, equally sure of themselves
# A block takes a quarter of a pass, each row that it adds to one 15 %.
BLOCK = Costs(tuple(1 + 0.15 * i for i in range(64)), 0.0, (0.1,) * 16, 0.01, block=(0.25,) * 8)


def observed(rates: tuple[float, ...], rounds: int = 400, drafted: int = 7, confidence: float = 0.97) -> Acceptance:
    """Statistics after drafts whose tokens are right with these probabilities, by position."""
    known, chance = Acceptance(memory=0.998, by_position=True), random.Random(2)
    for _ in range(rounds):
        accepted = 0
        while accepted < drafted and chance.random() < rates[min(accepted, len(rates) - 1)]:
            accepted += 1
        known.observe([confidence] * drafted, drafted, accepted)
    return known


def test_a_position_that_is_worse_than_its_confidence() -> None:
    """Where all later positions had one rate, the second would be thought worse than it is, and the seventh better."""
    known = observed(FALLING)
    [chances] = known.chances([[0.97] * 7], [7])
    rates = [after / before for before, after in zip([1.0, *chances], chances, strict=False)]
    assert rates[:5] == pytest.approx(FALLING[:5], abs=0.12)
    assert rates[1] - rates[5] > 0.3
    assert np.all(np.diff(known.positions.ratios(known.later.rates(1.0))[1:7]) <= 0)


def test_chance_is_no_difference() -> None:
    """Positions that are alike stay so: what is left of a few rounds' luck would make drafts too short, or too long."""
    known = observed((0.8,), rounds=60)
    ratios = known.positions.ratios(known.later.rates(known._confidence_scale))
    assert ratios == pytest.approx([1.0] * POSITIONS, abs=0.08)


def test_a_small_model_has_none() -> None:
    """Its tokens are alike at all positions, so that differences would be chance."""
    known = observed(FALLING)
    known.by_position = False
    [chances] = known.chances([[0.97] * 7], [7])
    assert chances[2] / chances[1] == pytest.approx(chances[6] / chances[5])


def test_expected_tokens_are_the_sum_of_chances() -> None:
    """The schedule's table, without a threshold, says the same as the drafts' own confidences."""
    known = observed(FALLING, confidence=0.99)
    drafted, tokens = known.expected_tokens(20)
    assert drafted[0] == pytest.approx(1.0)
    [chances] = known.chances([[0.99] * 20], [20])
    assert tokens[0, 6] == pytest.approx(sum(chances[:7]), rel=0.1)
    assert np.all(np.diff(tokens[0]) > 0)


def test_kept_as_json() -> None:
    known = observed(FALLING)
    again = Acceptance.from_counts(json.loads(json.dumps(known.as_counts())))
    again.by_position = True
    assert again.chances([[0.9] * 7], [7]) == known.chances([[0.9] * 7], [7])
    older = {name: counts for name, counts in known.as_counts().items() if name != "positions"}
    assert not Acceptance.from_counts(older).positions.drafted.any()


@pytest.mark.parametrize(
    "damage",
    [
        {"drafted": [[1.0]], "accepted": [0.0]},
        {"drafted": [[-1.0] * 12] * POSITIONS, "accepted": [0.0] * POSITIONS},
        {"drafted": [[0.0] * 12] * POSITIONS, "accepted": [1.0] * POSITIONS},
        {"drafted": [["x"] * 12] * POSITIONS, "accepted": [0.0] * POSITIONS},
        {"accepted": [0.0] * POSITIONS},
    ],
)
def test_damaged_counts(damage: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        PositionRatios.from_counts(damage)


def speed(seed: int, by_position: bool) -> float:
    """Tokens a second of three texts in a row, by blocks whose tokens become worse. Equal seeds: equal drafts."""
    known, seconds, total = Acceptance(by_position=by_position), 0.0, 0
    for text in range(3):
        drawn = np.random.default_rng((seed, text))
        sure = drawn.choice((0.75, 0.85, 0.92, 0.97, 0.99), size=(300, LONGEST_DRAFT))
        luck = drawn.random((300, LONGEST_DRAFT))
        schedule, tokens = PlannedText(BLOCK, 256, model_acceptance=known), 0
        while tokens < 256:
            k = schedule.plan(state_of(100 + tokens, 256 - tokens, 1, rereads=False)).k
            confidence = sure[tokens, :k].tolist()
            draft_s = BLOCK.drafting(k)
            kept = len(schedule.trim(Proposal([1] * k, confidence, 1)).tokens) if k else 0
            accepted = 0
            while accepted < kept and luck[tokens, accepted] < FALLING[min(accepted, len(FALLING) - 1)]:
                accepted += 1
            schedule.observe(RoundResult(kept, accepted, confidence, draft_s, BLOCK.verifying(kept + 1)))
            seconds, tokens = seconds + draft_s + BLOCK.verifying(kept + 1), tokens + accepted + 1
        total, known = total + tokens, schedule.acceptance
    return total / seconds


def test_blocks_gain_by_it() -> None:
    """Beside the same schedule that goes by confidence alone: 1.3 % over 120 texts."""
    gained = [speed(seed, by_position=True) / speed(seed, by_position=False) for seed in range(12)]
    assert sum(gained) / len(gained) > 1.003
