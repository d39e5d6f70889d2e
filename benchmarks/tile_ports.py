"""What the loops of prompts ask of each port on AMX, and the share of the tiles' peak that this leaves: counted.

    python benchmarks/tile_ports.py [--core ipex_assist/native/_core.so] | tee out.txt
    python benchmarks/results.py keep out.txt

Needs objdump and nothing of the processor. Of each format it is the loop that multiplies 32 rows with two panels whose
weights are tiles already; the first 32 rows unpack them, which is not counted.

A turn's products take 16 cycles each on the tiles; the other ports work beside them. A share is the products' cycles
÷ those of the busiest port: no loop can be faster, and it is reached where everything overlaps. Cycles are those of
Intel's Optimization Reference Manual (248966, "Intel AMX": TDP 16, TILELOADD 8, TILESTORED 16), of a core that in a
cycle loads two vectors of 64 bytes, stores one, computes with two and renames six operations. Groups of 32 columns fill
half a tile, whose product takes as long as that of a whole one: so they have two shares, of the products' time and of
the peak.

Caches are not in it, but for one thing: where the 16 lines of a tile of rows lie in the first cache (`l1_sets`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import instructions

TILE_ROWS, LINE, L1_SETS = 16, 64, 64
DOT = re.compile(r"^tdp")
VECTOR_STORE = re.compile(r"^v(mov\S*|extract\S*) %[xyz]mm\d+,.*\(")
PASSES = ("vmov", "vbroadcast", "vpbroadcast")  # a load alone, where they read memory


@dataclass(frozen=True)
class Ports:
    """Cycles that some instructions keep each port busy, at best."""

    tiles: float = 0
    loads: float = 0
    stores: float = 0
    vectors: float = 0
    renamed: float = 0

    @property
    def busiest(self) -> float:
        return max(getattr(self, name) for name in self.__dataclass_fields__)


@dataclass(frozen=True)
class Loop:
    """A loop's instructions by kind, a turn of it."""

    format: str
    depth: int  # columns of a group; 32 fill half a tile of 8-bit values
    dots: int
    tile_loads: int
    tile_stores: int
    vectors: int
    ports: Ports

    @property
    def of_products(self) -> float:
        return self.ports.tiles / self.ports.busiest

    @property
    def of_peak(self) -> float:
        return self.of_products * min(1.0, self.depth / 64)


def ports(lines: Sequence[tuple[str, str]], group: int = 128) -> Ports:
    """Return what instructions (name, operands) ask of the ports; `group`: columns of a group of weights."""
    dots = loads = stores = vectors = renamed = 0.0
    for name, operands in lines:
        memory = "(" in operands
        renamed += 1
        if DOT.match(name):
            dots += TILE_ROWS
        elif name == "tileloadd":
            # Tiles 6 and 7 are weights: groups of 32 have 8 lines of them.
            rows = TILE_ROWS // 2 if group == 32 and operands.endswith(("%tmm6", "%tmm7")) else TILE_ROWS
            loads += rows / 2
            renamed += rows - 1
        elif name == "tilestored":
            stores += TILE_ROWS
            renamed += TILE_ROWS - 1
        elif name.startswith("prefetch"):
            loads += 1 / 2
        elif name.startswith("v"):
            if VECTOR_STORE.match(f"{name} {operands}"):
                stores += 1
            elif memory:
                loads += 1 / 2
                vectors += 0 if name.startswith(PASSES) else 1 / 2
            elif not name.startswith("vmov") or "%r" in operands or "%e" in operands:
                vectors += 1 / 2  # moves between registers are renamed away
    return Ports(dots, loads, stores, vectors, renamed / 6)


def l1_sets(stride: int) -> int:
    """Return in how many of its places, of 12 lines each, the first cache has the 16 lines of a tile at a stride."""
    return len({row * stride // LINE % L1_SETS for row in range(TILE_ROWS)})


def turn(function: instructions.Instructions) -> list[tuple[str, str]]:
    """Return the shortest loop with as many tile products as any has. Raises NotUnderstoodError where there is none."""
    place = {address: index for index, (address, _, _) in enumerate(function)}
    best: tuple[int, int, int] = (0, 0, 0)
    for index, (_, name, operands) in enumerate(function):
        target = re.match(r"([0-9a-f]+)\b", operands)
        if name.startswith("j") and target and place.get(int(target[1], 16), index + 1) <= index:
            first = place[int(target[1], 16)]
            dots = sum(bool(DOT.match(each)) for _, each, _ in function[first : index + 1])
            if dots > best[0] or (dots == best[0] and dots and index - first < best[2] - best[1]):
                best = (dots, first, index)
    if not best[0]:
        raise instructions.NotUnderstoodError("no loop of tile products")
    return [(name, operands) for _, name, operands in function[best[1] : best[2] + 1]]


SQUARE = re.compile(r"amx_square<.*::(Int8|Int4|Mx|MxGroup|Fp8)Squares(?:<(\d+)>|<.*::Fp8Lookup>)?, 2, false>")
BF16 = re.compile(r"amx_bf16_square<true, true>")
# Exponents of mxfp4 that lie too far apart for one scale a span are the last.
DOTS = {"bf16": 4, "int8": 16, "fp8": 32, "int4/128": 16, "int4/64": 16, "int4/32": 16, "mxfp4": 16, "mxfp4/32": 16}


def format_of(function: str) -> tuple[str, int] | None:
    """The format of a loop of prompts, and the columns of a group; None of another function."""
    if BF16.search(function):
        return "bf16", 128
    found = SQUARE.search(function)
    if not found:
        return None
    if found[1] == "Fp8" and "Fp8Lookup" not in function:
        return None  # of processors without VBMI, none of which has AMX
    group = int(found[2]) if found[2] else 32 if found[1] == "MxGroup" else 128
    names = {"Int8": "int8", "Mx": "mxfp4", "MxGroup": "mxfp4/32", "Fp8": "fp8"}
    return names.get(found[1], f"int4/{group}"), group


def loops(core: Path) -> list[Loop]:
    """All loops of prompts of the core at `core`. Raises as instructions.functions, and where one is not understood."""
    found = []
    for level, name, function in instructions.functions(core):
        known = format_of(name)
        if level != "amx" or known is None:
            continue
        lines = turn(function)
        counts = Counter(kind for kind, _ in lines)
        dots = sum(count for kind, count in counts.items() if DOT.match(kind))
        if dots != DOTS[known[0]]:
            raise instructions.NotUnderstoodError(f"{known[0]}: {dots} products in a turn, not {DOTS[known[0]]}")
        made = ports(lines, known[1])
        found.append(Loop(*known, dots, counts["tileloadd"], counts["tilestored"], round(made.vectors * 2), made))
    return sorted(found, key=lambda each: list(DOTS).index(each.format))


def table(found: Sequence[Loop]) -> list[dict[str, Any]]:
    """Return a row for each format: a turn's instructions, the cycles of each port, and the share."""
    return [
        {
            "format": each.format,
            "products": each.dots,
            "tile loads": each.tile_loads,
            "tile stores": each.tile_stores,
            "vector operations": each.vectors,
            "cycles: products": f"{each.ports.tiles:.0f}",
            "loads": f"{each.ports.loads:.0f}",
            "stores": f"{each.ports.stores:.0f}",
            "vectors": f"{each.ports.vectors:.0f}",
            "renamed": f"{each.ports.renamed:.0f}",
            "% of products": f"{100 * each.of_products:.0f}",
            "% of the peak": f"{100 * each.of_peak:.0f}",
        }
        for each in found
    ]


def main() -> None:
    sets = {depth: l1_sets(2 * depth) for depth in (2048, 4096, 8192, 14336)}
    missing = "was built by a compiler without AMX"
    instructions.report_counts(__doc__, lambda core: table(loops(core)), {"l1_sets": sets}, missing=missing)


if __name__ == "__main__":
    main()
