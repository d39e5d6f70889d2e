"""Costs as rounds correct them: a wrong calibration, a machine that slows down, pauses, and rows never seen."""

from __future__ import annotations

import pytest
from planned import RoundResult, observe

from ipex_assist.speculative.costs.live_costs import LiveCosts
from ipex_assist.speculative.costs.pair_costs import Costs

pytestmark = pytest.mark.one_stack

FLAT = Costs((0.1,) * 9, 0.02, tuple(0.02 + 0.001 * i for i in range(16)), 0.002)


def outcome(drafted: int, target_s: float, draft_s: float = 0.0) -> RoundResult:
    """A round without an accepted token."""
    return RoundResult(drafted, 0, [0.9] * drafted, draft_s, target_s)


def test_a_calibration_that_was_disturbed_is_found_out() -> None:
    """One row was timed in peace and several were not: drafting looked dear, though every pass takes the same."""
    wrong = Costs((0.1, *(0.145,) * 8), FLAT.draft, FLAT.rows, FLAT.read)
    live = LiveCosts(wrong)
    for drafted in (1, 0, 1, 0, 1):
        observe(live, outcome(drafted, 0.1), 0)
    assert live.costs.verifying(2) == pytest.approx(live.costs.verifying(1), rel=0.1)
    assert live.costs.verifying(5) == pytest.approx(live.costs.verifying(1), rel=0.16)  # never seen, but alike


def test_a_slower_machine_changes_no_relation() -> None:
    """Others take half of the memory's speed, while only plain passes are run: a draft is as worth while as before."""
    live = LiveCosts(FLAT)
    for _ in range(5):
        observe(live, outcome(4, 0.1, 0.08), 1)
        observe(live, outcome(0, 0.1), 1)
    for _ in range(60):
        observe(live, outcome(0, 0.2), 1)
    costs = live.costs
    assert costs.verifying(1) == pytest.approx(0.2, rel=0.05)
    assert costs.verifying(5) == pytest.approx(0.2, rel=0.15)
    assert costs.draft / costs.verifying(1) == pytest.approx(0.2, rel=0.2)


def test_a_pause_counts_little() -> None:
    """One pass of ten seconds among others."""
    live = LiveCosts(FLAT)
    for seconds in (0.1, 0.1, 10.0, 0.1, 0.1):
        observe(live, outcome(2, seconds, 0.04), 1)
    assert live.costs.verifying(3) < 0.125


def test_a_draft_slower_than_measured() -> None:
    """Three times the step: known after a few rounds; reading is part of what is expected."""
    live = LiveCosts(FLAT)
    for _ in range(10):
        observe(live, outcome(4, 0.1, 3 * (4 * 0.02 + FLAT.reading(3))), 3)
    assert live.costs.draft == pytest.approx(0.06, rel=0.05)
    assert live.costs.reading(100) == pytest.approx(3 * FLAT.reading(100), rel=0.05)


@pytest.mark.parametrize("factor", [4, 10, 40])
def test_reading_that_was_calibrated_beside_others(factor: float) -> None:
    """One draft after eight tokens tells what reading takes, and leaves the steps and the target's passes alone."""
    rows = tuple(0.02 + factor * (row - 0.02) for row in FLAT.rows)
    live = LiveCosts(Costs(FLAT.verify, FLAT.draft, rows, factor * FLAT.read))
    observe(live, outcome(1, 0.1, 0.02 + FLAT.reading(8)), 8)
    assert live.costs.reading(100) <= 2.5 * FLAT.reading(100)
    assert live.costs.draft == pytest.approx(0.02, rel=0.2)
    assert live.costs.verifying(1) == pytest.approx(0.1)


def test_a_draft_in_no_time_says_little() -> None:
    """Tokens that a grammar forces are drafted without a pass: the steps of others are not free for that."""
    live = LiveCosts(FLAT)
    observe(live, outcome(6, 0.1, 1e-5), 1)
    assert live.costs.draft > 0.4 * FLAT.draft


def test_passes_never_become_cheaper_with_rows() -> None:
    """Whatever single passes were measured, and for numbers of rows beyond those calibrated."""
    live = LiveCosts(Costs((0.1, 0.11, 0.12, 0.13)))
    for drafted, seconds in ((3, 0.05), (1, 0.2), (2, 0.1), (7, 0.2), (0, 0.1)):
        observe(live, outcome(drafted, seconds), 0)
    verify = [live.costs.verifying(rows) for rows in range(1, 12)]
    assert verify == sorted(verify)
