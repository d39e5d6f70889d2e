"""Chunks of prompts that other texts wait for."""

from __future__ import annotations

from ipex_assist.engine.chunks import FEWEST_ROWS, ChunkSizes
from ipex_assist.engine.limits import EngineLimits


def test_a_chunk_keeps_to_the_limit() -> None:
    """A machine of 1 ms a row on top of 10 ms: a chunk of 30 rows makes a pass four times as long as one without."""
    chunks = ChunkSizes(EngineLimits())
    assert chunks.rows(4, None) == 0, "a pass without a chunk comes first"
    for _ in range(20):
        chunks.observe(0, 4, 0.010, 0.010)
        rows = chunks.rows(4, 0.010)
        chunks.observe(rows, 4, 0.010 + rows * 0.001, 0.010)
    assert chunks.rows(4, 0.010) == 30
    assert chunks.rows(0, 0.010) == 512
    assert ChunkSizes(EngineLimits(max_pass_s=1e-6)).rows(4, 0.010) >= FEWEST_ROWS
