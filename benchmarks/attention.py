"""Attention to blocks of keys and values by itself, in cache and from memory, beside reading; two checkouts in turns.

    python benchmarks/attention.py [--base CHECKOUT] [--dims 64,128] [--precisions bf16,int8] [--queries 7,35]

kernels.cpp of this checkout, and of another one (--base), is compiled for one instruction set. Every thread attends
with some queries of one KV head (its group's, for each row of a pass) to full blocks of 256 positions of its own, one
after another: to the same ones again and again, which its second-level cache holds, and to 256 MB of them. Figures are
microseconds a block, medians; "read" is what reading the block from memory takes without computing, and "% of read" is
its share of what this checkout takes. Turns alternate between all of them.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import numpy as np
from prefetch import Work

from ipex_assist.launch.plan import MASK_AT_START
from ipex_assist.native import build, library

HARNESS = """
#include <vector>
#include "kernels/kernels.h"
using namespace ipex_assist;
// Attends with `queries` (queries, dim) to `count` blocks, of which `stored` are there, `turns` times.
extern "C" void attend_all(int precision, int64_t dim, int64_t queries, const float* query, uint8_t* blocks,
                           int64_t stored, int64_t count, float* out) {
    const KernelTable& k = *IPEX_ASSIST_KERNELS();
    const bool integers = precision == INT8;
    const int64_t size = dim * BLOCK_POSITIONS * (integers ? 1 : 2), groups = dim / ATTENTION_GROUP;
    const int64_t bytes = 2 * size + (integers ? BLOCK_POSITIONS * 8 : 0);
    std::vector<uint8_t> rows(size_t(queries * dim * 4 + 64), 0), widened(size_t(widened_bytes(dim)), 0);
    std::vector<uint8_t> probabilities(size_t(queries * BLOCK_POSITIONS * 4 + 64), 0);
    std::vector<float> scales(size_t(queries * groups), 0.0f), scores(size_t(queries * BLOCK_POSITIONS), 0.0f);
    std::vector<float> weight_scales(size_t(queries * BLOCK_POSITIONS / ATTENTION_GROUP), 0.0f);
    std::vector<float> distances(size_t(queries), 0.0f);
    std::vector<int32_t> offsets(size_t(queries * groups), 0), first(size_t(queries), 0);
    std::vector<int32_t> end(size_t(queries), BLOCK_POSITIONS);
    std::vector<AttentionPartial> partials(size_t(queries), AttentionPartial{});
    AttentionTile t{};
    t.precision = BF16, t.queries = int32_t(queries), t.value_dim = int32_t(dim), t.key_depth = dim;
    t.scale = 1 / std::sqrt(float(dim));
    t.query = rows.data(), t.query_scales = scales.data(), t.query_offsets = offsets.data();
    t.first = first.data(), t.end = end.data(), t.scores = scores.data(), t.probabilities = probabilities.data();
    t.weight_scales = weight_scales.data(), t.widened = widened.data(), t.distances = distances.data();
    for (int64_t q = 0; q < queries; q++) {
        if (integers) {
            k.store_query(query + q * dim, int32_t(dim), dim, rows.data() + q * dim * 2, scales.data() + q * groups,
                          offsets.data() + q * groups);
        } else {
            k.convert(BF16, query + q * dim, dim, dim, rows.data() + q * dim * k.bf16_row_bytes);
        }
        partials[size_t(q)] = {0, 0, out + q * dim};
    }
    const auto at = [&](int64_t i) {
        uint8_t* start = blocks + i % stored * bytes;
        float* each = integers ? reinterpret_cast<float*>(start + 2 * size) : nullptr;  // position's scale
        return KeyValueBlock{start, start + size, each, each ? each + BLOCK_POSITIONS : nullptr};
    };
    for (int64_t i = 0; i < count; i++) {
#ifdef IPEX_ASSIST_NEXT_BLOCK
        const KeyValueBlock next = at(i + 1);
        k.attend(t, at(i), &next, partials.data());
#else
        k.attend(t, at(i), partials.data());
#endif
    }
}
extern "C" void read_all(const uint8_t* data, int64_t size) {
    static volatile uint64_t result;
    result = IPEX_ASSIST_KERNELS()->read(data, size, 2048);
}
"""
MEMORY = 256 << 20
CODES = {"bf16": 1, "int8": 2}
CACHED = 8  # blocks


def compiled(folder: Path, name: str, checkout: Path, isa: str) -> ctypes.CDLL:
    """The kernels of a checkout for an instruction set, and the functions of HARNESS."""
    native = checkout / "ipex_assist" / "native"
    flags = [*build.FLAGS, "-fvisibility=default", "-O3", *build.INSTRUCTION_SETS[isa], "-Wno-ignored-attributes"]
    flags += [f"-I{native}", "-DIPEX_ASSIST_KERNELS=kernels_here", f'-DIPEX_ASSIST_ISA_NAME="{isa}"']
    if "KeyValueBlock* next" in (native / "kernels" / "kernels.h").read_text():
        flags.append("-DIPEX_ASSIST_NEXT_BLOCK")
    source, output = folder / f"{name}-{isa}.cpp", folder / f"{name}-{isa}.so"
    if output.exists():
        return ctypes.CDLL(str(output))
    declared = "#include <cmath>\nnamespace ipex_assist { struct KernelTable; const KernelTable* kernels_here(); }\n"
    source.write_text(f'{declared}#include "kernels/kernels.cpp"\n{HARNESS}')
    subprocess.run([build.compiler(), "-shared", *flags, str(source), "-o", str(output)], check=True)
    return ctypes.CDLL(str(output))


def fill(work: Work, precision: str, dim: int) -> int:
    """Random keys and values of ordinary size all over the memory of `work`; the bytes of a block."""
    generator = np.random.default_rng(1)
    positions, size = 256, dim * 256 * (1 if precision == "int8" else 2)
    if precision == "int8":
        block = generator.integers(1, 255, 2 * size, dtype=np.uint8)
        block = np.concatenate([block, np.full(2 * positions, 0.01, np.float32).view(np.uint8)])
    else:
        values = generator.standard_normal(size, dtype=np.float32)
        block = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    memory = work.weights.view(np.uint8)
    for start in range(0, work.bytes - block.size, block.size):
        memory[start : start + block.size] = block
    return int(block.size)


def attending(
    work: Work, kernels: ctypes.CDLL, precision: str, dim: int, queries: np.ndarray, stored: int, count: int
) -> Callable[[int], Any]:
    """A call that attends to `count` blocks, of which a thread has `stored`."""
    out = np.zeros((work.threads, queries.shape[0] * dim + 64), np.float32)
    share = work.bytes // work.threads // 4096 * 4096

    def run(thread: int) -> None:
        kernels.attend_all(
            CODES[precision],
            *(ctypes.c_int64(n) for n in (dim, len(queries))),
            ctypes.c_void_p(queries.ctypes.data),
            ctypes.c_void_p(work.weights.ctypes.data + thread * share),
            *(ctypes.c_int64(n) for n in (stored, count)),
            ctypes.c_void_p(out[thread].ctypes.data),
        )

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, help="another checkout")
    parser.add_argument("--dims", default="64,128")
    parser.add_argument("--precisions", default="bf16,int8")
    parser.add_argument("--queries", default="7,35")
    parser.add_argument("--isa", default=library.instruction_set())
    parser.add_argument("--kernels", type=Path, help="a folder for the compiled kernels, which are used again")
    parser.add_argument("--compile", action="store_true", help="compile them and end")
    parser.add_argument("--threads", type=int, default=len(MASK_AT_START))
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    checkouts = {"base": args.base} if args.base else {}
    checkouts["this"] = Path(__file__).resolve().parents[1]
    work = Work(args.threads, MEMORY)
    with tempfile.TemporaryDirectory() as own:
        folder = args.kernels or Path(own)
        kernels = {name: compiled(folder, name, each, args.isa) for name, each in checkouts.items()}
    if args.compile:
        return
    rows = []
    for precision in args.precisions.split(","):
        for dim in map(int, args.dims.split(",")):
            size = fill(work, precision, dim)
            stored = work.bytes // work.threads // size - 1
            for count in map(int, args.queries.split(",")):
                queries = np.random.default_rng(2).standard_normal((count, dim), dtype=np.float32)
                calls: dict[str, tuple[Callable[[int], Any], int]] = {}
                for name, each in kernels.items():
                    for where, blocks in (("cache", CACHED), ("memory", stored)):
                        number = min(stored, 1000)
                        call = attending(work, each, precision, dim, queries, blocks, number)
                        calls[f"{name} {where}"] = call, number
                calls["read"] = work.read(kernels["this"]), work.bytes // work.threads // size
                samples: dict[str, list[float]] = {name: [] for name in calls}
                for turn in range(args.repeats + 1):
                    for name, (call, number) in calls.items():
                        seconds = work.seconds(call) / number * 1e6
                        if turn:
                            samples[name].append(seconds)
                medians = {name: measure.summary(each)["median"] for name, each in samples.items()}
                row: dict[str, Any] = {"keys and values": precision, "head_dim": dim, "queries": count}
                row |= {name: f"{median:.2f}" for name, median in medians.items()}
                row["% of read"] = f"{100 * medians['read'] / medians['this memory']:.0f}"
                rows.append(row)
                print(row, flush=True)
    measure.report(rows, {"instruction_set": args.isa, "threads": args.threads})


if __name__ == "__main__":
    main()
