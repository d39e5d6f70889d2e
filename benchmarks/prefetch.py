"""How far ahead linears should ask for their weights, by rows: kernels with other distances, on the same memory.

    python benchmarks/prefetch.py [--rows 1,2,3,4,5,8,12,16] [--precisions bf16,int8,int4] [--near 2048,6144]
        [--far 8192,16384,32768]

kernels.cpp is compiled once for each candidate, and all of them multiply the same weights, 512 MB of them, in turns:
where memory lies makes a difference of 10 % between processes, and none here. "near N" asks for all lines N bytes
ahead, into L1; "far N" into L2 (native/kernels/prefetch.h). Every thread multiplies blocks of its
own; nothing waits in between. Figures are nanoseconds for 64 bytes of weights and thread, medians, beside what reading
takes without multiplying.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import measure
import numpy as np

from ipex_assist.launch.plan import MASK_AT_START
from ipex_assist.native import build, library

HARNESS = """
#include "kernels/kernels.h"
using namespace ipex_assist;
constexpr int64_t CALL = 64;  // blocks
extern "C" void multiply(int precision, int group, int64_t depth, int64_t last, const uint8_t* weights,
                         float* scales, int64_t count, uint8_t* values, float* row_scales, int32_t* sums, float* out) {
    const Linear w{Precision(precision), group, depth, last, weights, scales, nullptr, nullptr};
    const LinearRows in{values, row_scales, sums, depth};
    for (int64_t b = 0; b < last; b += CALL) {
        IPEX_ASSIST_KERNELS()->linear(w, in, count, b, b + CALL < last ? b + CALL : last, out, CALL * LANES);
    }
}
extern "C" void read_all(const uint8_t* data, int64_t size) {
    static volatile uint64_t result;
    result = IPEX_ASSIST_KERNELS()->read(data, size, 2048);
}
"""
DEPTH, GROUP, LANES = 4096, 64, 16
MOST_ROWS, CALL_BLOCKS = 32, 64  # of a call of the kernel
ROW_BYTES = MOST_ROWS * DEPTH * 4
WEIGHTS = 512 << 20  # bytes
CODES = {"fp32": 0, "bf16": 1, "int8": 2, "int4": 3}
BLOCK_BYTES = {"fp32": DEPTH * 64, "bf16": DEPTH * 32, "int8": DEPTH * 16, "int4": DEPTH * 8 + DEPTH // GROUP * 64}
NEVER = 99  # rows


def compiled(folder: Path, name: str, isa: str, defines: dict[str, int]) -> ctypes.CDLL:
    """The kernels of one instruction set with these constants, and the functions of HARNESS."""
    flags = [*build.FLAGS, "-fvisibility=default", "-O3", *build.INSTRUCTION_SETS[isa], "-Wno-ignored-attributes"]
    flags += [f"-I{build.HERE}", "-DIPEX_ASSIST_KERNELS=kernels_here", f'-DIPEX_ASSIST_ISA_NAME="{isa}"']
    flags += [f"-DIPEX_ASSIST_{key}={value}" for key, value in defines.items()]
    source, output = folder / f"{name}.cpp", folder / f"{name}.so"
    declared = "namespace ipex_assist { struct KernelTable; const KernelTable* kernels_here(); }\n"
    source.write_text(f'{declared}#include "kernels/kernels.cpp"\n{HARNESS}')
    subprocess.run([build.compiler(), "-shared", *flags, str(source), "-o", str(output)], check=True)
    return ctypes.CDLL(str(output))


class Work:
    """Threads on processors of their own, weights that they share, and rows and results."""

    def __init__(self, threads: int, weights: int = WEIGHTS) -> None:
        cpus = sorted(MASK_AT_START)[:threads]
        self.threads, self.bytes = threads, weights
        self._pool = ThreadPoolExecutor(threads, initializer=lambda: os.sched_setaffinity(0, {cpus.pop()}))
        # Numbers of ordinary size in every format.
        self.weights, self.rows = (np.full(size // 4 + 64, 0x3C233C23, np.uint32) for size in (weights, ROW_BYTES))
        self.out = np.zeros((threads, MOST_ROWS * CALL_BLOCKS * LANES), np.float32)

    def seconds(self, call: Callable[[int], Any]) -> float:
        """The time that all threads take for call(thread)."""
        started = time.perf_counter()
        list(self._pool.map(call, range(self.threads)))
        return time.perf_counter() - started

    def multiply(self, kernels: ctypes.CDLL, precision: str, rows: int) -> Callable[[int], Any]:
        """A call that multiplies a thread's share of the weights with some rows."""
        blocks = self.bytes // BLOCK_BYTES[precision] // self.threads

        def run(thread: int) -> None:
            share = self.weights.ctypes.data + thread * blocks * BLOCK_BYTES[precision]
            values = ctypes.c_void_p(self.rows.ctypes.data)
            size = [ctypes.c_int64(n) for n in (DEPTH, blocks)]
            out = ctypes.c_void_p(self.out[thread].ctypes.data)
            kernels.multiply(
                CODES[precision], GROUP, *size, ctypes.c_void_p(share), values, ctypes.c_int64(rows), *[values] * 3, out
            )

        return run

    def read(self, kernels: ctypes.CDLL) -> Callable[[int], Any]:
        """A call that reads a thread's share of the weights."""
        share = self.bytes // self.threads

        def run(thread: int) -> None:
            kernels.read_all(ctypes.c_void_p(self.weights.ctypes.data + thread * share), ctypes.c_int64(share))

        return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,2,3,4,5,8,12,16")
    parser.add_argument("--precisions", default="bf16,int8,int4")
    parser.add_argument("--near", default="2048,6144", help="bytes")
    parser.add_argument("--far", default="8192,16384,32768", help="bytes")
    parser.add_argument("--isa", default=library.instruction_set())
    parser.add_argument("--threads", type=int, default=len(MASK_AT_START))
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    candidates = {f"near {near}": {"FAR_ROWS": NEVER, "NEAR_BYTES": int(near)} for near in args.near.split(",")}
    candidates |= {f"far {far}": {"FAR_ROWS": 1, "FAR_BYTES": int(far)} for far in args.far.split(",")}
    work = Work(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        kernels = {name: compiled(Path(folder), name, args.isa, defines) for name, defines in candidates.items()}
    table = []
    for precision in args.precisions.split(","):
        for rows in map(int, args.rows.split(",")):
            calls = {name: work.multiply(each, precision, rows) for name, each in kernels.items()}
            calls["read"] = work.read(next(iter(kernels.values())))
            samples: dict[str, list[float]] = {name: [] for name in calls}
            for _ in range(args.repeats):
                for name, call in calls.items():
                    samples[name].append(work.seconds(call) / (WEIGHTS / 64 / args.threads / 1e9))
            figures = {name: f"{measure.summary(each)['median']:.2f}" for name, each in samples.items()}
            table.append({"precision": precision, "rows": rows} | figures)
    measure.report(table, {"instruction_set": args.isa, "threads": args.threads})


if __name__ == "__main__":
    main()
