"""Instructions of the core's hot loops for each 64 bytes of weights, by kernel, rows and instruction set.

    python benchmarks/instructions.py [--core ipex_assist/native/_core.so] | tee out.txt
    python benchmarks/results.py keep out.txt

Needs objdump (it comes with g++) and nothing of the processor: what AMX would run is counted on a machine without it.

How. Every hot loop is a function that is never inlined (HOT_LOOP in multiply_add.h), so that it has a symbol by its
template's arguments. kernels.cpp is compiled once for each instruction set; the symbol table lists symbols by file, and
which set a file is for is known by the instructions that no lesser one has. In a function, a loop is what lies between
a backward branch and its target. Of those that prefetch weights and multiply, the shortest is the innermost; each line
of weights is prefetched once, so that prefetches say how many lines a turn of it takes. What the loop around it adds (a
span of 128 columns of integers, with the scales) is shared among the span's lines. The multiplications are counted as
well: a loop that has not exactly those of its lines and rows was not understood, and ends in an error.

Where this errs. Instructions are not micro-operations: those of a tile take many cycles, and a load inside another
instruction counts nothing. Code that a compiler moved after the loop counts nothing either (with what gcc makes of the
loops here, that is the last turn), and a branch within it counts both ways. The start and the end of a block are
outside of the loops, and so are those of a chunk of 1024 columns in fp32 and bf16. Loops of integers on tiles are not
counted yet: of int8 and int4, "amx" has the loops on vectors, which it runs for one row (groups of 32: for all).
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tabulate import tabulate

from ipex_assist.native import library

FILE = "kernels.cpp"
# Instruction sets, and what only they and later ones have.
LEVELS = {
    "avx512": re.compile("zmm"),
    "avx512_vnni": re.compile("^vpdpbusd .*zmm"),
    "avx512_bf16": re.compile("^vdpbf16ps .*zmm"),
    "amx": re.compile("^tdpb"),
}
FUNCTION = re.compile(r"^([0-9a-f]+) <(.*)>:$")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$")
SYMBOL = re.compile(r"^([0-9a-f]+) (.{7}) (\S+)\s+[0-9a-f]+\s+(.*)$")
# Multiplications of weights with rows; not those by scales (vfmadd in the loops of integers) and by zeros (vpmaddwd).
DOTS = {
    "integer": re.compile(r"^(\{evex\}|\{vex\})?(vpdpbusd|vpmaddubsw|tdpb[us][us]d)$"),
    "float": re.compile(r"^(vfmadd\d+ps|vdpbf16ps|tdpbf16ps)$"),
}
FAR_ROWS = 4  # from which on lines are prefetched into L2: IPEX_ASSIST_FAR_ROWS
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 16)


class NotUnderstoodError(Exception):
    """A loop was not found, or does not multiply as often as its kernel must."""


@dataclass(frozen=True)
class Kernel:
    """What is known of a loop by its name.

    rows: with which it is called. lines: of 64 bytes of weights in a turn of the outer loop, 0 where that is of no
    account; group: lines that share a scale, whose own line is prefetched as well (int4). dots: multiplications a line
    of weights, by `kind` of DOTS.
    """

    name: str
    rows: range
    kind: str
    lines: int
    group: int
    dots: float


@dataclass(frozen=True)
class Count:
    """Instructions for each 64 bytes of weights."""

    level: str
    kernel: str
    rows: range
    instructions: float


@dataclass(frozen=True)
class Loop:
    """Instructions first … last of a function."""

    first: int
    last: int

    def within(self, other: Loop) -> bool:
        return self != other and other.first <= self.first and self.last <= other.last


def kernel(function: str, level: str) -> Kernel | None:
    """What a demangled function is to be counted as, None if nothing."""
    if not streams(function):
        return None
    if found := re.search(r"::int8_tile<(\d+)", function):
        rows = int(found[1])
        return Kernel("int8", range(rows, rows + 1), "integer", 32, 0, rows * (1 if has_vnni(level) else 2))
    if found := re.search(r"::int4_tile<(\d+), (\d+)", function):
        rows, group = int(found[1]), int(found[2])
        return Kernel(f"int4, groups of {group}", range(rows, rows + 1), "integer", 16, group // 8, rows * 2)
    if found := re.search(r"::float_tile<.*::(Bf16|Fp32), (\d+)", function):
        rows = int(found[2])
        halves = 2 if found[1] == "Bf16" and not has_bf16(level) else 1
        return Kernel(found[1].lower(), range(rows, rows + 1), "float", 0, 0, rows * halves)
    if "::amx_bf16_strip<4>" in function:
        return Kernel("bf16", range(1, 17), "float", 0, 0, 1 / 16)
    return None


def streams(function: str) -> bool:
    """Whether a tile prefetches each line, as Streaming of native/kernels/prefetch.h does; others take turns."""
    found = re.search(r"_tile<(?:[^,]*:[^,]*, )?(\d+)(?:, \d+)?, .*Prefetch\)(\d)>", function)
    return found is None or int(found[2]) == (int(found[1]) >= FAR_ROWS)


def has_vnni(level: str) -> bool:
    return level in ("avx512_vnni", "avx512_bf16", "amx")


def has_bf16(level: str) -> bool:
    return level in ("avx512_bf16", "amx")


def on_paper(name: str, level: str, rows: int) -> float | None:
    """The instructions a line needs, without those that count turns and move pointers; None for loops on tiles.

    A prefetch, a load or what makes bytes of nibbles or floats of halves, then for each row a multiplication with a
    broadcast operand, or without VNNI a broadcast, a multiplication and an addition. For each group of integers: where
    the sums start, and their conversion and scaling.
    """
    if level == "amx" and name == "bf16":
        return None
    if name in ("fp32", "bf16"):
        return 2 + rows if name == "fp32" or has_bf16(level) else 3 + 2 * rows
    if name == "int8":
        each = rows if has_vnni(level) else 2 + rows * (5 + 2 / 8)
        return 2 + each + 4 * rows / 32
    lines = int(name.split()[-1]) / 8
    if not has_vnni(level):
        return 4 + rows * (6 + 1 / 4) + (4 + 5 * rows) / lines
    if rows <= 4:  # two sums a row, and no shift
        return 3 + 2 * rows + (4 + 8 * rows) / lines
    return 4 + 2 * rows + (4 + 5 * rows) / lines


Instructions = list[tuple[int, str, str]]  # address, mnemonic, operands


def functions(core: Path) -> Iterator[tuple[str, str, Instructions]]:
    """The level, name and instructions of each function of kernels.cpp.

    Raises NotUnderstoodError where the core has no symbols, and FileNotFoundError without objdump.
    """
    files = _files(core)
    if not files:
        raise NotUnderstoodError(f"{core} has no symbols of {FILE}: it was stripped")
    found: dict[int, list[tuple[str, Instructions]]] = {}
    here: Instructions | None = None
    for text in _objdump("--disassemble", "--no-show-raw-insn", core).splitlines():
        if head := FUNCTION.match(text):
            file = files.get(int(head[1], 16))
            here = [] if file is not None else None
            if file is not None and here is not None:
                found.setdefault(file, []).append((head[2], here))
        elif here is not None and (line := INSTRUCTION.match(text)):
            here.append((int(line[1], 16), line[2], line[3]))
    for of_file in found.values():
        level = _level(f"{name} {operands}" for _, lines in of_file for _, name, operands in lines)
        if level:
            yield from ((level, name, lines) for name, lines in of_file)


def _files(core: Path) -> dict[int, int]:
    """Which of the compilations of kernels.cpp the function at an address is from."""
    files: dict[int, int] = {}
    count, of_kernels = 0, False
    for text in _objdump("--syms", core).splitlines():
        found = SYMBOL.match(text)
        if found is None:
            continue
        if "f" in found[2]:  # of a source file: what follows lies in it
            of_kernels = found[4] == FILE
            count += of_kernels
        elif of_kernels and found[3] == ".text":
            files[int(found[1], 16)] = count
    return files


def _level(lines: Iterable[str]) -> str:
    """The instruction set that some instructions are for; empty for none of LEVELS."""
    text, level = list(lines), ""
    for name, mark in LEVELS.items():
        if not any(mark.search(line) for line in text):
            break
        level = name
    return level


def _objdump(*arguments: str | Path) -> str:
    command = ["objdump", "--demangle", "--wide", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def count(function: Kernel, instructions: Instructions) -> float:
    """Return the instructions for each line of weights. Raises NotUnderstoodError."""
    place = {address: index for index, (address, _, _) in enumerate(instructions)}
    loops = []
    for index, (_, name, operands) in enumerate(instructions):
        target = re.match(r"([0-9a-f]+)\b", operands)
        if name.startswith("j") and target and place.get(int(target[1], 16), index + 1) <= index:
            loops.append(Loop(place[int(target[1], 16)], index))
    dots, prefetches = DOTS[function.kind], re.compile("^prefetch")

    def found(loop: Loop, what: re.Pattern[str]) -> int:
        return sum(bool(what.match(name)) for _, name, _ in instructions[loop.first : loop.last + 1])

    def size(loop: Loop) -> int:
        return loop.last - loop.first + 1

    hot = sorted((loop for loop in loops if found(loop, dots) and found(loop, prefetches)), key=size)
    if not hot:
        raise NotUnderstoodError(f"{function.name}, {function.rows}: no loop that prefetches and multiplies")
    inner = hot[0]
    lines = found(inner, prefetches)
    if function.group and lines % (function.group + 1) == 0:  # whole groups, with a line of scales each
        lines = lines // (function.group + 1) * function.group
    if abs(found(inner, dots) - lines * function.dots) > 1e-6:
        raise NotUnderstoodError(
            f"{function.name}, {function.rows}: {found(inner, dots)} multiplications in a loop over {lines} lines, "
            f"not {lines * function.dots:g}"
        )
    outer = next((loop for loop in hot[1:] if inner.within(loop)), inner)
    around = size(outer) - size(inner)
    if function.lines in (0, lines) or not around:
        return size(inner) / lines
    return size(inner) / lines + around / function.lines


def counts(core: Path) -> list[Count]:
    """All loops of the core at `core`. Raises as `functions` and `count`."""
    result = []
    for level, name, instructions in functions(core):
        if (found := kernel(name, level)) is not None:
            result.append(Count(level, found.name, found.rows, count(found, instructions)))
    return _called(result)


def _called(found: list[Count]) -> list[Count]:
    """Without loops that are never called: on AMX the tiles have all of bf16."""
    tiled = {(each.level, each.kernel) for each in found if len(each.rows) > 1}
    return [each for each in found if len(each.rows) > 1 or (each.level, each.kernel) not in tiled]


def compiler_of(core: Path) -> str:
    """The version of g++ that built a core, as it says itself; empty where it does not."""
    versions = re.findall(rb"GCC: \([^)]*\) ([\d.]+)", core.read_bytes())
    return max((version.decode() for version in versions), default="")


def table(found: list[Count], compiler: str) -> list[dict[str, Any]]:
    """Return a row for each kernel and instruction set, a column for each number of rows, and 8 rows on paper."""
    rows = []
    for name in sorted({each.kernel for each in found}, key=lambda name: (name.split(",")[0], len(name), name)):
        for level in LEVELS:
            here = [each for each in found if (each.kernel, each.level) == (name, level)]
            if not here:
                continue
            cells = {str(n): next((f"{each.instructions:.1f}" for each in here if n in each.rows), "") for n in ROWS}
            paper = on_paper(name, level, 8)
            last = {"8 on paper": "" if paper is None else f"{paper:.1f}"}
            rows.append({"g++": compiler, "kernel": name, "instructions": level, **cells, **last})
    return rows


def report_counts(
    description: str | None,
    table_of: Callable[[Path], list[dict[str, Any]]],
    options: Mapping[str, Any] = MappingProxyType({}),
    *,
    missing: str = "has no kernels",
) -> None:
    """The command of a benchmark that counts in a compiled core, whose rows are `table_of`.

    options: reported beside them. missing: what is said of a core without rows.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", type=Path, default=library.PATH, help="the library (default: this package's own)")
    parser.add_argument("--plain", action="store_true", help="the table alone: imports no torch")
    args = parser.parse_args()
    rows = table_of(args.core)
    if not rows:
        parser.error(f"{args.core} {missing}")
    if args.plain:
        print(tabulate([list(row.values()) for row in rows], headers=list(rows[0]), disable_numparse=True))
        return
    import measure

    measure.report(rows, dict(options))


def main() -> None:
    report_counts(__doc__, lambda core: table(counts(core), compiler_of(core)))


if __name__ == "__main__":
    main()
