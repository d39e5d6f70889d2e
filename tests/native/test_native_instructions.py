"""Instructions of the hot loops (benchmarks/instructions.py): not more than the committed table says."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import instructions
import pytest
import results

from ipex_assist.native import library

GROWTH = 1.02  # of a count; the same compiler gives the same code for the same sources
LOOSE = 1.8  # times what is needed on paper, by any compiler

pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.skipif(not library.PATH.exists(), reason="the native core was not built"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed (it comes with g++)"),
]


@pytest.fixture(scope="module")
def counts() -> list[instructions.Count]:
    """Return the counts of the core that is installed."""
    return instructions.counts(library.PATH)


def committed(compiler: str, folder: Path = results.RESULTS) -> dict[tuple[str, str, int], float]:
    """The newest table of a compiler by kernel, instruction set and rows; empty where there is none."""
    tables = [
        run for run in results.load(folder) if run["question"] == "instructions" and run["rows"][0][0] == compiler
    ]
    cells = [dict(zip(run["columns"], row, strict=True)) for run in tables[-1:] for row in run["rows"]]
    return {
        (cell["kernel"], cell["instructions"], rows): float(cell[str(rows)])
        for cell in cells
        for rows in instructions.ROWS
        if cell[str(rows)]
    }


def test_every_loop_is_counted(counts: list[instructions.Count]) -> None:
    """A loop that is inlined or renamed would leave the table, and be watched by nobody."""
    kernels = {"fp32", "bf16", "int8", *(f"int4, groups of {group}" for group in (32, 64, 128))}
    for level in instructions.LEVELS:
        for kernel in kernels:
            rows = [n for each in counts if (each.level, each.kernel) == (level, kernel) for n in each.rows if n <= 8]
            assert sorted(rows) == list(range(1, 9)), f"{kernel}, {level}"


def test_counts_do_not_grow(counts: list[instructions.Count]) -> None:
    """An unroll that is not honoured, a broadcast that is not folded, or too few registers are seen here."""
    compiler = instructions.compiler_of(library.PATH)
    known = committed(compiler)
    if not known:
        pytest.skip(f"the core was built by g++ {compiler}, of which no table is kept in benchmarks/results")
    grown = [
        f"{each.kernel}, {each.level}, {rows} rows: {each.instructions:.1f} a line, was {before}"
        for each in counts
        for rows in each.rows
        if (before := known.get((each.kernel, each.level, rows))) and each.instructions > before * GROWTH + 0.05
    ]
    assert not grown, "\n".join([*grown, "Where it must be so, keep what benchmarks/instructions.py prints"])


def test_counts_are_near_those_on_paper(counts: list[instructions.Count]) -> None:
    """Whichever compiler it was: not twice as many, for turns, pointers and loads that are not folded."""
    for each in counts:
        paper = instructions.on_paper(each.kernel, each.level, each.rows[0])
        if paper is not None:
            assert each.instructions <= LOOSE * paper, f"{each.kernel}, {each.level}, {each.rows}"


# ---- the counting


def disassembled(*lines: str) -> list[tuple[int, str, str]]:
    """Instructions as objdump names them, 4 bytes each: "name operands"."""
    parts = [line.partition(" ") for line in lines]
    return [(4 * i, name, operands) for i, (name, _, operands) in enumerate(parts)]


TWO_LINES = ("prefetcht0 (%rax)", "vmovdqu64 (%rax),%zmm0", "vpdpbusd (%rcx){1to16},%zmm0,%zmm1") * 2
INT8 = instructions.Kernel("int8", range(1, 2), "integer", 32, 0, 1)


def test_a_loop_within_a_loop() -> None:
    """The span's own instructions are shared by its 32 lines; what lies before and behind both loops counts nothing."""
    inner = [*TWO_LINES, "cmp %rax,%rdx", "jne 8 <f+0x8>"]
    body = ["push %rbx", "vpxor %zmm1", *inner, "vcvtdq2ps %zmm1", "jmp 4 <f+0x4>", "ret"]
    assert instructions.count(INT8, disassembled(*body)) == (6 + 2) / 2 + 3 / 32


def test_a_loop_that_is_not_the_kernel_s() -> None:
    """A loop of two rows where one was named, or none at all: better no figure than a wrong one."""
    twice = [*TWO_LINES, "vpdpbusd (%rcx){1to16},%zmm0,%zmm1", "jne 0 <f>"]
    with pytest.raises(instructions.NotUnderstoodError, match="3 multiplications in a loop over 2 lines, not 2"):
        instructions.count(INT8, disassembled(*twice))
    with pytest.raises(instructions.NotUnderstoodError, match="no loop that prefetches and multiplies"):
        instructions.count(INT8, disassembled(*TWO_LINES, "ret"))


def test_a_core_without_symbols(tmp_path: Path) -> None:
    """A stripped core is said to be one."""
    stripped = tmp_path / "core.so"
    strip = shutil.which("strip")
    if strip is None:
        pytest.skip("strip is not installed")
    subprocess.run([strip, str(library.PATH), "-o", str(stripped)], check=True)
    with pytest.raises(instructions.NotUnderstoodError, match=r"has no symbols of kernels\.cpp: it was stripped"):
        instructions.counts(stripped)


def test_the_table_of_a_compiler(tmp_path: Path) -> None:
    """What is kept is what is printed: the newest table of that compiler, none of another."""
    rows = instructions.table([instructions.Count("avx512_vnni", "int8", range(1, 2), 3.4375)], "12.2.0")
    run = {
        "question": "instructions",
        "machine": "any",
        "commit": "0123abc",
        "commands": [],
        "columns": list(rows[0]),
        "rows": [list(row.values()) for row in rows],
    }
    (tmp_path / "any").mkdir()
    (tmp_path / "any" / "instructions-0123abc.json").write_text(json.dumps(run))
    assert committed("12.2.0", tmp_path) == {("int8", "avx512_vnni", 1): 3.4}
    assert committed("13.1.0", tmp_path) == {}
