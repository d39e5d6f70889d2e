"""Ports of AMX's loops of prompts (benchmarks/tile_ports.py): no change may leave the tiles waiting unseen."""

from __future__ import annotations

import shutil

import instructions
import pytest
import tile_ports

from ipex_assist.native import library

pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.skipif(not library.PATH.exists(), reason="the native core was not built"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed (it comes with g++)"),
]
# The least share of the products' time that each must leave them. Groups of 64 and 32 are scaled too often for more:
# their sums are stored, loaded, converted and added for each 64 and 32 columns.
LEAST = {"bf16": 0.95, "int8": 0.9, "fp8": 0.95, "int4/128": 0.9, "mxfp4": 0.9}
LEAST |= {"int4/64": 0.75, "int4/32": 0.75, "mxfp4/32": 0.75}


@pytest.fixture(scope="module")
def loops() -> list[tile_ports.Loop]:
    """Return the loops of the core that is installed."""
    found = tile_ports.loops(library.PATH)
    if not found:
        pytest.skip("the core was built by a compiler without AMX")
    return found


def test_shares(loops: list[tile_ports.Loop]) -> None:
    """Sums that are stored more often, a scale that is loaded twice, or spilled registers are seen here."""
    assert {loop.format for loop in loops} == set(LEAST)
    low = {loop.format: loop.of_products for loop in loops if loop.of_products < LEAST[loop.format]}
    assert not low, tile_ports.table([loop for loop in loops if loop.format in low])


def test_rows_as_tiles_lie_in_all_places_of_a_cache() -> None:
    """At the strides of rows of 2048, 4096 and 14336 values in bf16, a tile's 16 lines have one place for 12."""
    assert [tile_ports.l1_sets(2 * depth) for depth in (2048, 4096, 14336)] == [1, 1, 1]
    assert tile_ports.l1_sets(tile_ports.LINE) == 16


def test_bf16_reads_rows_as_it_reads_weights() -> None:
    """All tiles of its loop have one stride: the 64 bytes of tiles."""
    for level, name, function in instructions.functions(library.PATH):
        if level == "amx" and tile_ports.BF16.search(name):
            loads = [operands for kind, operands in tile_ports.turn(function) if kind == "tileloadd"]
            assert len(loads) == 4
            assert len({operands.split(",")[1] for operands in loads}) == 1, loads
            break
    else:
        pytest.skip("the core was built by a compiler without AMX")


# ---- the counting


def test_cycles_of_each_port() -> None:
    """Loads inside of other instructions are loads, too; moves of registers are free, those of scalars are not."""
    lines = [
        ("tdpbssd", "%tmm6,%tmm4,%tmm0"),
        ("tileloadd", "(%rax,%rcx,1),%tmm4"),
        ("tilestored", "%tmm0,(%rdx,%rcx,1)"),
        ("vcvtdq2ps", "(%rdx),%zmm1"),
        ("vfmadd213ps", "0x40(%rdx),%zmm1,%zmm2"),
        ("vbroadcastss", "(%rsi),%zmm3"),
        ("vmovaps", "%zmm3,0x80(%rdx)"),
        ("vmovaps", "%zmm3,%zmm4"),
        ("vmulps", "%zmm3,%zmm4,%zmm5"),
        ("vmovq", "%rax,%xmm6"),
        ("prefetcht0", "(%rsi)"),
        ("add", "$0x40,%rsi"),
    ]
    made = tile_ports.ports(lines)
    assert (made.tiles, made.loads, made.stores, made.vectors) == (16, 8 + 4 / 2, 16 + 1, 4 / 2)
    assert made.renamed == (12 + 15 + 15) / 6
    assert made.busiest == 17


def test_half_tiles() -> None:
    """Groups of 32 columns: 8 lines of weights, but 16 rows; and half of the peak at best."""
    rows, weights = ("tileloadd", "(%rax,%rcx,1),%tmm4"), ("tileloadd", "(%rax,%rcx,1),%tmm6")
    assert tile_ports.ports([rows, weights], 32).loads == 8 + 4
    assert tile_ports.ports([rows, weights], 64).loads == 16
    loop = tile_ports.Loop("mxfp4", 32, 1, 0, 0, 0, tile_ports.Ports(tiles=16))
    assert (loop.of_products, loop.of_peak) == (1, 0.5)


def test_the_loop_of_a_function() -> None:
    """The one with all products, not what is peeled off before it nor a short one within."""
    names = ("tdpbssd x", "push x", "tdpbssd x", "add x", "jne c <f>", "tdpbssd x", "jne 8 <f>", "ret ")
    parts = [line.partition(" ") for line in names]
    function = [(4 * i, name, operands) for i, (name, _, operands) in enumerate(parts)]
    assert [name for name, _ in tile_ports.turn(function)] == ["tdpbssd", "add", "jne", "tdpbssd", "jne"]
    with pytest.raises(instructions.NotUnderstoodError, match="no loop of tile products"):
        tile_ports.turn(function[:2])
