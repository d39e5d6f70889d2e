"""Chunks of prompts that other texts wait for."""

from __future__ import annotations

import pytest

from ipex_assist.engine.chunk_sizes import FEWEST_ROWS, ChunkSizes, EngineLimits

pytestmark = pytest.mark.one_stack


def test_a_chunk_keeps_to_the_limit() -> None:
    """A machine of 1 ms a row on top of 20 ms: a chunk of 60 rows makes a pass four times as long as one without."""
    chunks = ChunkSizes(EngineLimits())
    assert chunks.seconds(4) == 0, "a pass without a chunk comes first"
    for _ in range(20):
        chunks.observe(0, 4, 0.020)
        rows = rows_of(chunks)
        chunks.observe(rows, 4, 0.020 + rows * 0.001)
    assert rows_of(chunks) in (59, 60)
    assert (chunks.seconds(0), chunks.most_rows(0)) == (None, 512)
    assert chunks.seconds(0, company=True) == pytest.approx(0.060)
    slow = ChunkSizes(EngineLimits(max_pass_s=1e-6))
    slow.observe(0, 4, 0.010)
    assert 0 < (slow.seconds(4) or 0) < 1e-6, "its rows are few, and some"


def test_texts_that_nobody_reads_as_they_come() -> None:
    """A chunk beside them is as large as in a pass for which nobody waits; passes without one are timed as ever."""
    chunks = ChunkSizes(EngineLimits())
    assert chunks.seconds(4, streamed=False) == 0
    chunks.observe(0, 4, 0.020)
    chunks.observe(512, 4, 0.020 + 0.512)
    assert chunks.seconds(4, streamed=False) is None
    assert chunks.seconds(4) == pytest.approx(0.060)


def test_passes_of_a_small_model_are_not_short() -> None:
    """Four passes of 4 ms hold a few rows, and a few rows cost more each: there are 50 ms, in which nobody reads."""
    chunks = ChunkSizes(EngineLimits())
    chunks.observe(0, 1, 0.004)
    assert chunks.seconds(1) == pytest.approx(0.046)


def test_nobody_waits_for_a_pass_of_half_a_second() -> None:
    """Where nobody came for long: a dense model's rows are as cheap in a pass of a tenth of a second, or of 128 rows;
    a mixture reads its experts anew in each."""
    chunks = ChunkSizes(EngineLimits())
    assert chunks.rows_alone(0) == 512
    chunks.observe(512, 0, 0.256)
    assert (chunks.rows_alone(0), chunks.rows_alone(100_000)) == (200, 200)
    slow = ChunkSizes(EngineLimits())
    slow.observe(512, 0, 5.12)
    seconds_of_row = {4: 0.02, 5: 0.016, 6: 0.013, 7: 0.012, 8: 0.0102}  # by the bit length of a chunk's rows
    while (rows := slow.rows_alone(0)).bit_length() != 8:
        slow.observe(rows, 0, rows * seconds_of_row[rows.bit_length()])
        assert rows < 128, "it tries larger ones until their rows are nearly as fast"
    slow.observe(rows, 0, rows * 0.0102)
    assert slow.rows_alone(0) == 128
    chunks.observe(512, 0, 5.12, experts=100.0)
    assert chunks.rows_alone(0) == 512


def rows_of(chunks: ChunkSizes) -> int:
    return chunks.rows_within(chunks.seconds(4) or 0, 0)


def test_rows_take_longer_behind_more_tokens() -> None:
    """A chunk of a long prompt has fewer rows than one of a short prompt in the same time."""
    chunks = ChunkSizes(EngineLimits())
    for position in (0, 100, 20_000, 21_000, 300, 22_000, 23_000) * 4:
        chunks.observe(100, 0, 100 * (0.001 + position * 1e-7), 100 * position)
    assert chunks.row_s(0) == pytest.approx(0.001, rel=0.05)
    assert chunks.row_s(20_000) == pytest.approx(0.003, rel=0.05)
    assert chunks.rows_within(0.03, 0) > 2 * chunks.rows_within(0.03, 20_000)


def test_a_machine_that_became_slower_is_noticed() -> None:
    """Every pass has a chunk: now and then one without must tell what chunks are measured by."""
    chunks = ChunkSizes(EngineLimits())
    chunks.observe(0, 4, 0.010)
    chunks.observe(32, 4, 0.042)
    for _ in range(100):
        rows = rows_of(chunks)
        chunks.observe(rows, 4, 5 * (0.010 + rows * 0.001))
    assert 25 <= rows_of(chunks) <= 35 or chunks.seconds(4) == 0


def test_a_chunk_that_nobody_measured_takes_no_longer_than_it_may() -> None:
    """Rows of a mixture in passes of thousands: a chunk of 27 rows would fit by them, and reads nearly all experts."""

    def seconds(rows: int) -> float:
        return 0.8 * min(1.0, rows / 40) + 0.002 * rows

    chunks = ChunkSizes(EngineLimits(), 4096)
    assert chunks.rows_alone(0) == 4096
    chunks.observe(4096, 0, seconds(4096), experts=128.0)
    chunks.observe(0, 4, 0.020, experts=8.0)
    assert rows_of(chunks) < FEWEST_ROWS
    chunks.observe(0, 4, 0.300, experts=8.0)
    for _ in range(30):
        chunks.observe(0, 4, 0.300, experts=8.0)
        room = chunks.seconds(4)
        assert room is not None
        rows = max(FEWEST_ROWS, chunks.rows_within(room, 0))
        assert seconds(rows) <= room
        chunks.observe(rows, 4, 0.300 + seconds(rows), experts=100.0)
    assert rows > 32, "what fits is found by larger and larger chunks"


def test_streams_wait_for_no_longer_chunks_than_are_worth_it() -> None:
    """A machine whose rows are as fast in chunks of 6 ms: 50 ms, which two cores need for as many, gain nothing."""
    chunks = ChunkSizes(EngineLimits())
    chunks.observe(0, 4, 0.002)
    chunks.observe(500, 4, 0.002 + 500 * 0.0001)
    for _ in range(20):
        rows = rows_of(chunks)
        chunks.observe(rows, 4, 0.002 + rows * (0.0001 if rows >= 64 else 0.0002))
        chunks.observe(0, 4, 0.002)
    assert 0.006 <= (chunks.seconds(4) or 0) <= 0.012
