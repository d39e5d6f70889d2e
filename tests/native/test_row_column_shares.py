"""What threads of big machines get of a prompt's pass, counted by the core's own partition."""

from __future__ import annotations

import pytest
from conftest import HAS_NATIVE

from ipex_assist.native.library import unavailable
from ipex_assist.native.shares import LinearShare, linear_shares, row_shares, text_shares, tile_shares

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]

# Columns, depth and panels that stay together, of a model of 8 billion parameters: qkv, output, up, down.
LINEARS = ((6144, 4096, 1), (4096, 4096, 1), (28672, 4096, 2), (4096, 14336, 1))


def spread(threads: int, nodes: int) -> list[int]:
    return [thread * nodes // threads for thread in range(threads)]


def by_columns(columns: int, depth: int, unit: int, rows: int, threads: int) -> list[LinearShare]:
    """Panels of columns alone, int8: each thread reads all rows."""
    panels = linear_shares(columns // 16, threads, unit)
    return [LinearShare(rows * 16 * each * depth, 16 * each * depth, rows * depth if each else 0) for each in panels]


def busy(ends: list[int]) -> float:
    return sum(ends) / len(ends) / max(ends)


@pytest.mark.parametrize("rows", [129, 256, 1000, 4096])
@pytest.mark.parametrize(("threads", "nodes"), [(1, 1), (2, 1), (2, 2), (43, 1), (56, 1), (112, 2), (129, 3), (256, 8)])
def test_every_product_is_one_thread_s(threads: int, nodes: int, rows: int) -> None:
    """Rows at a border that two threads compute, or none; a node that reads panels of another."""
    for columns, depth, unit in LINEARS:
        works = row_shares(columns, depth, "int8", rows, spread(threads, nodes), unit)
        assert sum(each.products for each in works) == rows * columns * depth
        for node in range(nodes):
            own = [number for number, each in enumerate(spread(threads, nodes)) if each == node]
            panels = sum(linear_shares(columns // 16, threads, unit)[own[0] : own[-1] + 1])
            assert sum(works[number].products for number in own) == rows * panels * 16 * depth


@pytest.mark.parametrize("rows", [256, 1024, 4096])
@pytest.mark.parametrize(("threads", "nodes"), [(56, 1), (112, 2), (256, 8)])
def test_many_threads_share_rows_and_columns(threads: int, nodes: int, rows: int) -> None:
    """Every core streams all rows, and some have three panels where others have two."""
    read_before = read_after = 0
    for columns, depth, unit in LINEARS:
        before = by_columns(columns, depth, unit, rows, threads)
        after = row_shares(columns, depth, "int8", rows, spread(threads, nodes), unit)
        read_before += max(each.weight_bytes + each.row_bytes for each in before)
        read_after += max(each.weight_bytes + each.row_bytes for each in after)
        assert max(each.products for each in after) <= max(each.products for each in before)
        assert busy([each.products for each in after]) > (0.9 if rows == 256 else 0.95)
    assert read_after <= read_before
    if rows > 256:
        assert (1.5 if threads == 56 else 2) * read_after < read_before


@pytest.mark.parametrize("rows", [1, 16, 128, 256])
def test_two_threads_have_their_columns(rows: int) -> None:
    """Weights that both cores read from memory, where each had a half of them."""
    for columns, depth, unit in LINEARS:
        assert row_shares(columns, depth, "int8", rows, [0, 0], unit) == by_columns(columns, depth, unit, rows, 2)


@pytest.mark.parametrize("threads", [56, 112, 256])
@pytest.mark.parametrize("position", [0, 4096, 30_000])
def test_query_tiles_are_enough_for_all_threads(threads: int, position: int) -> None:
    """128 tiles of 256 rows for 112 cores, of which the half waits for the last."""
    for heads, kv_heads in ((32, 8), (32, 4), (64, 8), (32, 32)):
        for rows, least in ((256, 0.75), (1024, 0.9), (4096, 0.95)):
            ends = tile_shares(heads, kv_heads, 128, position, rows, spread(threads, 1))
            assert busy(ends) > least, (heads, kv_heads, rows, busy(ends))


@pytest.mark.parametrize(("threads", "nodes"), [(56, 1), (112, 2), (256, 8)])
def test_texts_with_drafts_keep_threads_busy(threads: int, nodes: int) -> None:
    """Four texts with four drafts each, 32 query tiles: most of the threads of a big machine had nothing to do."""
    found = text_shares(32, 8, 128, 8000, 5, 4, spread(threads, nodes))
    assert found.splits_kv
    assert found.even / found.chosen > 0.7
    assert found.tiles > 1.1 * found.chosen
    single = text_shares(32, 8, 128, 8000, 5, 4, [0])
    assert not single.splits_kv
    assert single.even == single.tiles == single.chosen
