"""Ports of steps on GGUF's blocks (benchmarks/block_ports.py): no change makes unpacking slower than memory unseen."""

from __future__ import annotations

import shutil

import block_ports
import instructions
import pytest

from ipex_assist.native import library

pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.skipif(not library.PATH.exists(), reason="the native core was not built"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed (it comes with g++)"),
]
# Cycles for each 64 bytes that formats of 4 bits and more may take: with one row, and with five.
MOST = {1: 6, 5: 14}


@pytest.fixture(scope="module")
def counts() -> list[block_ports.BlockCount]:
    """Return the counts of the core that is installed."""
    found = list(block_ports.counts(library.PATH))
    if not found:
        pytest.skip(f"the core was built by a compiler without {block_ports.LEVEL}")
    return found


def test_every_format_is_counted(counts: list[block_ports.BlockCount]) -> None:
    """A loop that is inlined, or that loses its name, would be watched by nobody."""
    found = {(each.unit.name, each.rows) for each in counts}
    for unit in block_ports.UNITS.values():
        assert (unit.name, 0) in found or {(unit.name, rows) for rows in block_ports.ROWS} <= found, unit.name


def test_blocks_of_four_bits_wait_for_memory(counts: list[block_ports.BlockCount]) -> None:
    """A table that is made anew in the loop, totals that are spilled, codes that go through memory."""
    for each in counts:
        if each.rows and each.unit.lines * 64 / 16 / each.unit.columns >= 0.5:
            busiest = each.ports.busiest / each.unit.lines
            assert busiest < MOST[each.rows], f"{each.unit.name}, {each.rows} rows: {busiest:.1f} cycles a line"


def test_a_loop_without_products_is_an_error() -> None:
    """A count of nothing would pass every bound."""
    function = [(0, "vmovdqu64", "(%rax),%zmm0"), (8, "jne", "0 <f>")]
    with pytest.raises(instructions.NotUnderstoodError, match="no loop that multiplies"):
        block_ports.loops(block_ports.UNITS["Q4K"], 1, function)
