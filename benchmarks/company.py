"""Speed beside other work: whole passes of the native core alone, and with a busy loop on each of its CPUs.

    ipex-launch -- python benchmarks/company.py [--models qwen2.5-1.5b] [--precisions int4] [--rows 1,5] [--seconds 5]

Models have the published shapes and random weights (forward.py). Turns alternate within one run: alone, in company, in
company, alone, … A loop is a process of this one's own priority, bound to one CPU: whoever is fair gets half. "÷ alone"
is the median of the turns' ratios. "processor %" is what share of its CPUs' time this process used in company, spinning
included; "parks a pass" is how often its threads gave their CPUs away at a barrier. The exit code is 1 where a ratio is
below `--least`.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import forward
import measure
import torch

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import Rows
from ipex_assist.executors.native.loading import planned_pool
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.launch.plan import MASK_AT_START
from ipex_assist.native.library import Pool, instruction_set

CONTEXT = 256
# Says that it runs, then runs as long as whoever started it.
LOOP = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
parent = os.getppid()
print(flush=True)
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


@dataclass(frozen=True)
class Sample:
    """One measurement: passes a second, this process's share of its CPUs, and parks a pass."""

    passes_per_s: float
    processor: float
    parks: float


@contextlib.contextmanager
def company(cpus: Sequence[int]) -> Iterator[list[subprocess.Popen[str]]]:
    """A busy loop on each of the CPUs, already running."""
    loops: list[subprocess.Popen[str]] = []
    try:
        for cpu in cpus:
            command = [sys.executable, "-c", LOOP, str(cpu)]
            loops.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        for loop in loops:
            assert loop.stdout is not None
            if not loop.stdout.readline():
                raise IpexAssistError("a busy loop did not start; its own message is above")
        yield loops
    finally:
        for loop in loops:
            loop.kill()
            loop.communicate()


def sample(run: Callable[[], object], pool: Pool, seconds: float) -> Sample:
    """Passes for this many seconds, after one that is not counted."""
    run()
    before, used, started = pool.statistics(), time.process_time(), time.perf_counter()
    count = 0
    while (passed := time.perf_counter() - started) < seconds:
        run()
        count += 1
    parks = (pool.statistics() - before).parks
    return Sample(count / passed, (time.process_time() - used) / passed / pool.threads, parks / count)


def turns(
    run: Callable[[], object], pool: Pool, cpus: Sequence[int], seconds: float, number: int
) -> tuple[list[Sample], list[Sample]]:
    """Samples alone and in company, by turns."""
    alone: list[Sample] = []
    together: list[Sample] = []
    for turn in range(number):
        for busy in (False, True) if turn % 2 == 0 else (True, False):
            with company(cpus if busy else ()):
                (together if busy else alone).append(sample(run, pool, seconds))
    return alone, together


def row_of(names: dict[str, Any], alone: Sequence[Sample], together: Sequence[Sample]) -> dict[str, str]:
    """A line of the table."""
    ratios = [after.passes_per_s / before.passes_per_s for before, after in zip(alone, together, strict=True)]

    def median(samples: Sequence[Sample], name: str) -> float:
        return statistics.median(getattr(each, name) for each in samples)

    return {
        **{key: str(value) for key, value in names.items()},
        "alone, passes/s": f"{median(alone, 'passes_per_s'):.1f}",
        "in company": f"{median(together, 'passes_per_s'):.1f}",
        "÷ alone": f"{statistics.median(ratios):.2f}",
        "spread": f"{min(ratios):.2f} to {max(ratios):.2f}",
        "processor %": f"{100 * median(together, 'processor'):.0f}",
        "parks a pass, alone": f"{median(alone, 'parks'):.1f}",
        "parks in company": f"{median(together, 'parks'):.1f}",
    }


def passes(model: NativeModel, rows: int) -> Callable[[], object]:
    """A function that runs a pass of `rows` rows with logits, after the same context each time."""
    sequence = forward.filled(model, CONTEXT)

    def run() -> None:
        sequence.truncate(CONTEXT)
        model.choose([Rows(sequence, [1] * rows, rows)])

    return run


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="qwen2.5-1.5b,qwen2.5-0.5b")
    parser.add_argument("--precisions", default="int4")
    parser.add_argument("--rows", default="1,5")
    parser.add_argument("--seconds", type=float, default=5, help="of a sample")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--least", type=float, default=0.4, help="that a ratio may be")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    pool = planned_pool()
    cpus = pool.cpus or tuple(sorted(MASK_AT_START))
    torch.set_num_threads(1)
    table: list[dict[str, str]] = []
    results: list[dict[str, Any]] = []
    for name in args.models.split(","):
        for precision in args.precisions.split(","):
            model = NativeModel(forward.load(name, precision))
            for rows in (int(text) for text in args.rows.split(",")):
                names = {"model": name, "precision": precision, "rows": rows}
                alone, together = turns(passes(model, rows), pool, cpus, args.seconds, args.turns)
                table.append(row_of(names, alone, together))
                print(table[-1], flush=True)
                samples = {"alone": [asdict(each) for each in alone], "company": [asdict(each) for each in together]}
                results.append({**names, **samples})
    measure.report(table, {"instruction_set": instruction_set(), "cpus": list(cpus), "results": results})
    slow = [row for row in table if float(row["÷ alone"]) < args.least]
    for row in slow:
        what = f"{row['model']} {row['precision']}, {row['rows']} rows"
        print(f"{what}: {row['÷ alone']} of the speed alone, {args.least} is wanted", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
