"""Chunks of prompts that other texts wait for."""

from __future__ import annotations

import pytest

from ipex_assist.engine.chunk_sizes import FEWEST_ROWS, ChunkSizes, EngineLimits

pytestmark = pytest.mark.one_stack


def test_a_chunk_keeps_to_the_limit() -> None:
    """A machine of 1 ms a row on top of 10 ms: a chunk of 30 rows makes a pass four times as long as one without."""
    chunks = ChunkSizes(EngineLimits())
    assert chunks.rows(4) == 0, "a pass without a chunk comes first"
    for _ in range(20):
        chunks.observe(0, 4, 0.010)
        rows = chunks.rows(4)
        chunks.observe(rows, 4, 0.010 + rows * 0.001)
    assert chunks.rows(4) in (29, 30)
    assert chunks.rows(0) == 512
    slow = ChunkSizes(EngineLimits(max_pass_s=1e-6))
    slow.observe(0, 4, 0.010)
    assert slow.rows(4) >= FEWEST_ROWS


def test_a_machine_that_became_slower_is_noticed() -> None:
    """Every pass has a chunk: now and then one without must tell what chunks are measured by."""
    chunks = ChunkSizes(EngineLimits())
    chunks.observe(0, 4, 0.010)
    chunks.observe(32, 4, 0.042)
    for _ in range(100):
        rows = chunks.rows(4)
        chunks.observe(rows, 4, 5 * (0.010 + rows * 0.001))
    assert 25 <= chunks.rows(4) <= 35 or chunks.rows(4) == 0
