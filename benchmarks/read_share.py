"""How near linears of few rows come to the speed at which the same threads read the same weights.

    ipex-launch -- python benchmarks/read_share.py [--precisions Q4_K,…] [--rows 1,2,5] [--shape 4096x4096]
        [--turns 60] [--megabytes 256] | tee out.txt
    python benchmarks/results.py keep out.txt

A layer has copies, together of so many megabytes, which is more than caches hold. By turns of a few milliseconds all of
them are read, without prefetches and with them, and multiplied by each number of rows: so memory is as fast in the one
as in the other, also where others use it and it changes from second to second. Each turn's share is the time of the
faster way of reading, by medians over the run, in this turn and the next, whose mean it is, ÷ the time of the linear
between them. The table has the median of these shares and between what the middle half of them lies, a layer's time in
µs, and GB/s of packed bytes with scales. "÷ 1 row" is the median of times in a turn.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import kernels
import measure
import torch

from ipex_assist.executors.native.loading import planned_pool
from ipex_assist.native.library import instruction_set, library

PRECISIONS = "int4,Q4_0,Q4_1,Q4_K,IQ4_NL,IQ4_XS,MXFP4,NVFP4"
AHEAD = (0, 4096)  # bytes that reading prefetches
UP = 2  # the linear's number in the core
WARM_UP = 2  # turns


def seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def turns(model: Any, width: int, rows: list[int], count: int) -> dict[str, list[float]]:
    """Seconds of each turn, by what was done: "read 0", "read 4096", and the numbers of rows."""
    inputs = {n: torch.randn(n, width) for n in rows}
    read = library().ia_read_linears
    calls: dict[str, Callable[[], Any]] = {
        f"read {ahead}": lambda ahead=ahead: read(model.handle, model.pool.handle, UP, ahead) for ahead in AHEAD
    }
    calls |= {str(n): lambda x=x: model.linears("up", x) for n, x in inputs.items()}
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(WARM_UP + count):
        for name, call in calls.items():
            took = seconds(call)
            if turn >= WARM_UP:
                found[name].append(took)
    return found


def shares(found: dict[str, list[float]], name: str) -> list[float]:
    """Of each turn but the last: the time of reading around a linear ÷ that of the linear."""
    reads = min((found[f"read {ahead}"] for ahead in AHEAD), key=statistics.median)
    return [(reads[i] + reads[i + 1]) / 2 / found[name][i] for i in range(len(reads) - 1)]


def rows_of(
    precision: str, size: int, copies: int, found: dict[str, list[float]], rows: list[int]
) -> list[dict[str, str]]:
    """The lines of a precision. size: bytes of all copies."""
    lines = []
    best = min(statistics.median(found[f"read {ahead}"]) for ahead in AHEAD)
    for n in rows:
        part = shares(found, str(n))
        low, middle, high = statistics.quantiles(part, n=4)
        against = statistics.median(own / one for own, one in zip(found[str(n)], found[str(rows[0])], strict=True))
        lines.append(
            {
                "precision": precision,
                "rows": str(n),
                "µs": f"{1e6 * statistics.median(found[str(n)]) / copies:.0f}",
                "GB/s": f"{size / statistics.median(found[str(n)]) / 1e9:.1f}",
                "read GB/s": f"{size / best / 1e9:.1f}",
                "share": f"{middle:.3f}",
                "middle half": f"{low:.3f} to {high:.3f}",
                f"÷ {rows[0]} row": f"{against:.2f}",
            }
        )
    return lines


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precisions", default=PRECISIONS, help="as those of kernels.py")
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2, 5])
    parser.add_argument("--shape", default="4096x4096", help="input × output columns")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--megabytes", type=int, default=256)
    return parser.parse_args()


def main() -> None:
    args = parse()
    width, columns = (int(size) for size in args.shape.split("x"))
    pool = planned_pool()
    torch.set_num_threads(1)
    table, results = [], []
    with torch.inference_mode():
        for precision in args.precisions.split(","):
            copies = -(-args.megabytes * 1_000_000 // kernels.packed_bytes(width, columns, precision))
            model = kernels.native_model(width, columns, precision, copies)
            size = library().ia_read_linears(model.handle, pool.handle, UP, 0)
            found = turns(model, width, args.rows, args.turns)
            table += rows_of(precision, size, copies, found, args.rows)
            samples = {name: [round(1000 * took, 4) for took in each] for name, each in found.items()}
            results.append({"precision": precision, "bytes": size, "ms": samples})
            print(measure.table(table[-len(args.rows) :]), flush=True)
            del model
            gc.collect()
    facts = {"instruction_set": instruction_set(), "threads": pool.threads, "shape": args.shape}
    measure.report(table, {**facts, "results": results})


if __name__ == "__main__":
    main()
