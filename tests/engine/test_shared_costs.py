"""What drafting costs one of several texts: by costs that are easy to add up."""

from __future__ import annotations

import pytest

from ipex_assist.engine.chunks import FEWEST_ROWS, ChunkSizes
from ipex_assist.engine.limits import EngineLimits
from ipex_assist.engine.shared_costs import SharedCosts
from ipex_assist.speculative.acceptance import Acceptance
from ipex_assist.speculative.adaptive import best_choice
from ipex_assist.speculative.costs import Costs

ROWS = 64


def machine(free: int) -> Costs:
    """A machine on which a pass takes 1 s, of up to `free` rows, and beyond these the same for each row."""
    verify = tuple(max(1.0, rows / free) for rows in range(1, ROWS + 1))
    return Costs(verify, 0.1, tuple(0.1 + 0.01 * rows for rows in range(16)), 0.1)


def test_a_text_alone_has_the_pairs_own_costs() -> None:
    """The schedule of a single request is what it was without an engine."""
    costs = machine(16)
    shared = SharedCosts(costs)
    shared.share(1, 1)
    assert shared.costs == costs
    assert shared.pass_s == 1.0


def test_the_parts_of_a_pass_are_the_whole() -> None:
    """Four texts that draft three tokens each: 16 rows, of which each text pays a quarter."""
    shared = SharedCosts(machine(8))
    shared.share(4, 4)
    assert shared.pass_s == 1.0
    assert 4 * shared.costs.verifying(1) == pytest.approx(1.0)
    assert 4 * shared.costs.verifying(4) == pytest.approx(16 / 8)
    assert 4 * shared.costs.draft == pytest.approx(0.13)
    shared.share(4, 2)  # two of them cannot draft
    assert 2 * shared.costs.verifying(1) + 2 * shared.costs.verifying(4) == pytest.approx(10 / 8)


@pytest.mark.parametrize("texts", [1, 2, 4, 8, 16, 32])
def test_drafts_shrink_as_passes_are_bound_by_arithmetic(texts: int) -> None:
    """Where all rows of the pass are paid for anyway, nothing is drafted; and where they are free, as much as pays."""
    shared = SharedCosts(machine(16))
    shared.share(texts, texts)
    choice = best_choice(Acceptance(), shared.costs, 15)
    shared.share(2 * texts, 2 * texts)
    assert best_choice(Acceptance(), shared.costs, 15).k <= max(choice.k, 1)
    assert choice.k == 0 if texts >= 16 else choice.k > 0


def test_passes_of_many_rows_that_nobody_measured() -> None:
    """They are taken to be bound by arithmetic: no draft hopes for rows that cost nothing."""
    shared = SharedCosts(Costs((1.0,) * 16, 0.1, (0.1,) * 16, 0.1))
    shared.share(16, 16)
    assert best_choice(Acceptance(), shared.costs, 15).k == 0


def test_what_passes_take_is_learnt() -> None:
    """On a machine that became slower, and of whose wide passes calibration knew too little."""
    shared = SharedCosts(machine(64))
    for _ in range(60):
        shared.share(8, 8)
        shared.observe_pass(8, 2.0, [0] * 8, 0.0)
        shared.observe_pass(32, 3.0, [3] * 8, 3 * 0.17 * 2)
    shared.share(8, 8)
    assert shared.pass_s == pytest.approx(2.0, rel=0.1)
    assert 8 * shared.costs.verifying(4) == pytest.approx(3.0, rel=0.1)


def test_a_chunk_keeps_to_the_limit() -> None:
    """A machine of 1 ms a row on top of 10 ms: a chunk of 30 rows makes a pass four times as long as one without."""
    chunks = ChunkSizes(EngineLimits())
    for _ in range(20):
        chunks.observe(0, 4, 0.010, 0.010)
        rows = chunks.rows(4, 0.010)
        chunks.observe(rows, 4, 0.010 + rows * 0.001, 0.010)
    assert chunks.rows(4, 0.010) == 30
    assert chunks.rows(0, 0.010) == 512
    assert ChunkSizes(EngineLimits(max_pass_s=1e-6)).rows(4, 0.010) >= FEWEST_ROWS
