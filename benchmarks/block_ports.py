"""What a step asks of each port where weights are GGUF's blocks: counted in the core's hot loops.

    python benchmarks/block_ports.py [--core ipex_assist/native/_core.so] | tee out.txt
    python benchmarks/results.py keep out.txt

Needs objdump and nothing of the processor. Of each format it is the loop of one row, and of five, over a unit of a
panel: 16 output columns and 256 inputs, or 128 of blocks. Cycles are those of tile_ports.py: of a core that in a cycle
loads two vectors of 64 bytes, stores one, computes with two and renames six operations. A gather is 16 loads. They are
given for each 64 bytes of weights: a core that gets such a line in fewer cycles waits for its ports, not for memory.

Lattices (IQ1 to IQ3) and TQ1_0 are unpacked to the cache before they are multiplied; of them it is the unpacking alone
(0 rows). Unpacked codes are then multiplied as those of Q8_0 are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import instructions
import tile_ports

LEVEL = "avx512_bf16"
ROWS = (1, 5)
FEW = re.compile(r"::few_rows<ipex_assist::(\w+)Format, (\d+)>")
UNPACK = re.compile(r"::unpack_(?:lattice<ipex_assist::(\w+)Format>|trits)\(")
TRITS = "Tq1_0"
STORE = re.compile(r"%zmm\d+,[^%]*\(")
DOT = "vpdpbusd"
GATHER_LOADS = 16


@dataclass(frozen=True)
class BlockUnit:
    """What a unit of a format takes: lines of 64 bytes, and columns."""

    name: str
    lines: float
    columns: int = 256


# By the names of formats/blocks/format.h.
UNITS = {
    "Q4_0": BlockUnit("Q4_0", 18, 128),
    "Q4_1": BlockUnit("Q4_1", 20, 128),
    "Q5_0": BlockUnit("Q5_0", 22, 128),
    "Q5_1": BlockUnit("Q5_1", 24, 128),
    "Iq4Nl": BlockUnit("IQ4_NL", 18, 128),
    "GgufMxfp4": BlockUnit("MXFP4", 17, 128),
    "Nvfp4": BlockUnit("NVFP4", 18, 128),
    "Iq4Xs": BlockUnit("IQ4_XS", 35),
    "Q6K": BlockUnit("Q6_K", 53),
    "Q5K": BlockUnit("Q5_K", 44),
    "Q4K": BlockUnit("Q4_K", 36),
    "Q3K": BlockUnit("Q3_K", 28),
    "Q2K": BlockUnit("Q2_K", 21),
    "Tq2_0": BlockUnit("TQ2_0", 16.5),
    "Iq3S": BlockUnit("IQ3_S", 27.5),
    "Iq3Xxs": BlockUnit("IQ3_XXS", 24.5),
    "Iq2S": BlockUnit("IQ2_S", 20.5),
    "Iq2Xs": BlockUnit("IQ2_XS", 18.5),
    "Iq2Xxs": BlockUnit("IQ2_XXS", 16.5),
    "Iq1M": BlockUnit("IQ1_M", 14),
    "Iq1S": BlockUnit("IQ1_S", 12.5),
    TRITS: BlockUnit("TQ1_0", 13.5),
}


@dataclass(frozen=True)
class BlockCount:
    """Instructions of a unit of a format for some rows, gathers among them, and what they ask of the ports."""

    unit: BlockUnit
    rows: int
    instructions: float
    gathers: float
    ports: tile_ports.Ports


def times(ports: tile_ports.Ports, by: float) -> tile_ports.Ports:
    return tile_ports.Ports(*(getattr(ports, each.name) * by for each in fields(ports)))


def total(*parts: tile_ports.Ports) -> tile_ports.Ports:
    return tile_ports.Ports(*(sum(getattr(part, each.name) for part in parts) for each in fields(tile_ports.Ports)))


def counted(unit: BlockUnit, rows: int, lines: instructions.Instructions, by: float = 1) -> BlockCount:
    """Instructions that a unit has so many times."""
    gathers = sum("gather" in name for _, name, _ in lines)
    ports = tile_ports.ports([(name, operands) for _, name, operands in lines])
    more = tile_ports.Ports(loads=(GATHER_LOADS - 1) * gathers / 2, renamed=(GATHER_LOADS - 1) * gathers / 6)
    return BlockCount(unit, rows, len(lines) * by, gathers * by, times(total(ports, more), by))


def added(*parts: BlockCount) -> BlockCount:
    first = parts[0]
    instructions_, gathers = sum(each.instructions for each in parts), sum(each.gathers for each in parts)
    return BlockCount(first.unit, first.rows, instructions_, gathers, total(*(each.ports for each in parts)))


def unpacking(unit: BlockUnit, function: instructions.Instructions) -> BlockCount:
    """A function that makes each line of codes once, some in a loop, if it has one.

    Raises NotUnderstoodError where the loop cannot make what the rest does not.
    """
    place = {address: index for index, (address, _, _) in enumerate(function)}
    targets = [re.match(r"([0-9a-f]+)\b", operands) if name[0] == "j" else None for _, name, operands in function]
    back = [(first, i) for i, to in enumerate(targets) if to and (first := place.get(int(to[1], 16), i)) < i]
    if not back:
        return counted(unit, 0, function)
    first, last = max(back, key=lambda loop: loop[1] - loop[0])
    within, rest = function[first : last + 1], function[:first] + function[last + 1 :]
    made, others = (sum(bool(STORE.search(operands)) for _, _, operands in part) for part in (within, rest))
    turns = (unit.columns / 4 - others) / made if made else 0.5
    if turns != int(turns):
        raise instructions.NotUnderstoodError(f"{unit.name}: {made} lines in a loop and {others} beside it")
    return added(counted(unit, 0, within, turns), counted(unit, 0, rest))


def loops(unit: BlockUnit, rows: int, function: instructions.Instructions) -> BlockCount:
    """A function whose outermost loop turns once for a unit.

    The loop within it that multiplies turns as often as its multiplications say; one between them does for each 128
    columns. Raises NotUnderstoodError where there is no such loop.
    """
    place = {address: index for index, (address, _, _) in enumerate(function)}
    dots = [index for index, (_, name, _) in enumerate(function) if DOT in name]
    found = []
    for index, (_, name, operands) in enumerate(function):
        target = re.match(r"([0-9a-f]+)\b", operands)
        first = place.get(int(target[1], 16), index + 1) if name.startswith("j") and target else index + 1
        if dots and first <= dots[0] and dots[-1] <= index:
            found.append((first, index))
    if not found:
        raise instructions.NotUnderstoodError(f"{unit.name}, {rows} rows: no loop that multiplies")
    nest = sorted(found, key=lambda loop: loop[1] - loop[0])
    inner, outer = nest[0], nest[-1]
    turns = unit.columns / 4 * rows / len(dots)
    if turns != int(turns):
        raise instructions.NotUnderstoodError(f"{unit.name}, {rows} rows: {len(dots)} multiplications in a loop")
    between = nest[-2] if len(nest) > 2 else inner

    def part(loop: tuple[int, int], but: tuple[int, int] | None, by: float) -> BlockCount:
        kept = [i for i in range(loop[0], loop[1] + 1) if but is None or not but[0] <= i <= but[1]]
        return counted(unit, rows, [function[i] for i in kept], by)

    return added(part(inner, None, turns), part(between, inner, unit.columns / 128), part(outer, between, 1))


def counts(core: Path) -> Iterator[BlockCount]:
    """Each format's units, by rows. Raises as instructions.functions, and where a loop is not understood."""
    for level, name, function in instructions.functions(core):
        if level != LEVEL:
            continue
        if (found := FEW.search(name)) and int(found[2]) in ROWS:
            yield loops(UNITS[found[1]], int(found[2]), function)
        elif found := UNPACK.search(name):
            yield unpacking(UNITS[found[1] or TRITS], function)


def table(found: list[BlockCount]) -> list[dict[str, Any]]:
    """Return a row for each format and number of rows."""
    order = [unit.name for unit in UNITS.values()]
    rows = []
    for each in sorted(found, key=lambda count: (order.index(count.unit.name), count.rows)):
        by_line = times(each.ports, 1 / each.unit.lines)
        rows.append(
            {
                "format": each.unit.name,
                "bytes for 256": f"{each.unit.lines * 64 / 16 * 256 / each.unit.columns:.0f}",
                "rows": each.rows,
                "instructions for 256": f"{each.instructions * 256 / each.unit.columns:.0f}",
                "gathers": f"{each.gathers * 256 / each.unit.columns:.0f}",
                "cycles a line: loads": f"{by_line.loads:.1f}",
                "stores": f"{by_line.stores:.1f}",
                "vectors": f"{by_line.vectors:.1f}",
                "renamed": f"{by_line.renamed:.1f}",
                "busiest": f"{by_line.busiest:.1f}",
                "cycles for 256": f"{each.ports.busiest * 256 / each.unit.columns:.0f}",
            }
        )
    return rows


def main() -> None:
    instructions.report_counts(__doc__, lambda core: table(list(counts(core))))


if __name__ == "__main__":
    main()
