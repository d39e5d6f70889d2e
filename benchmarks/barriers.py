"""Barriers of a pass of the native core: how many there are, what they cost here, and on paper with many threads.

    ipex-launch -- python benchmarks/barriers.py [--models qwen2.5-0.5b] [--rows 1,5] [--threads 56] [--bandwidth 250]
    python benchmarks/barriers.py --published 2,56,112,256

Counted: the core's own count of one pass, by rows and threads; a layer's is the difference between models of three
layers and of two. Those for `--threads` are of a pool of that many threads, also of more than there are CPUs here.
Measured: with the threads of this machine, what a barrier takes where all come at once, and passes of the whole model
(random weights, 256 cached positions), by turns.
Modelled, and never measured: a barrier of `--threads` threads on `--sockets` sockets, and a pass that reads its weights
and keys at `--bandwidth` GB/s and then waits at its barriers. Threads count in groups of at most eight, the groups of a
socket, and then the sockets; each in turn needs the line that it counts in, which takes `--line-ns` from one core's
cache to another's, and `--socket-ns` from another socket's. The last lets each socket go by a line of its own, one
after the other, which its threads read `--spread-ns` after each other. Beside it the barrier that knows no sockets: at
its root anyone may follow anyone, and all threads read one line, which those of other sockets fetch one after the
other. That threads come at different times is in no figure.

--published: counted by the phases of a pass of one row through models of published shapes, for these numbers of
threads, and nothing else.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import company
import forward
import measure
import torch
from sockets_model import add_line_options
from sockets_shapes import SHAPES, decode_pass

from ipex_assist.executors.native.loading import planned_pool
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.native.library import Pool, instruction_set

GROUP = 8  # threads that count at one line at most: Barrier::GROUP
CONTEXT = company.CONTEXT


@dataclass(frozen=True)
class Machine:
    """A machine on paper: threads, GB/s of its memory, and nanoseconds of a cache line on its way."""

    threads: int
    bandwidth: float
    line_ns: float
    spread_ns: float
    sockets: int = 1
    socket_ns: float = 0.0

    def barrier_us(self) -> float:
        """Microseconds of a barrier where all threads come at once, and each socket has a line to wait at."""
        own = -(-self.threads // self.sockets)
        counting = self._counting(own) * self.line_ns + (self.sockets * self.socket_ns if self.sockets > 1 else 0)
        telling = self.line_ns + (self.sockets - 1) * self.socket_ns
        return (counting + telling + (own - 1) * self.spread_ns) / 1000

    def one_level_us(self) -> float:
        """Microseconds of a barrier that knows no sockets."""
        own = -(-self.threads // self.sockets)
        groups = -(-self.threads // GROUP)
        crossings = (groups if groups > 1 else self.threads) * (self.sockets - 1) / self.sockets
        counting = self._counting(self.threads) * self.line_ns + crossings * (self.socket_ns - self.line_ns)
        telling = self.line_ns + (own - 1) * self.spread_ns + (self.threads - own) * self.socket_ns
        return (counting + telling) / 1000

    def _counting(self, threads: int) -> int:
        """How often a line goes from one to the next while the threads of a group count, and then the groups."""
        groups = -(-threads // GROUP)
        return -(-threads // groups) + (groups if groups > 1 else 0)

    def pass_ms(self, size: int, barriers: int) -> tuple[float, float]:
        """Milliseconds of a pass that reads `size` bytes, and those of its barriers among them."""
        waiting = barriers * self.barrier_us() / 1000
        return size / self.bandwidth / 1e6 + waiting, waiting


def barriers_of(model: NativeModel, rows: int) -> int:
    """How many barriers the core counts in one pass."""
    run, pool = company.passes(model, rows), model.packed.pool
    before = pool.statistics()
    run()
    return (pool.statistics() - before).barriers


def counted(name: str, precision: str, rows: int, pool: Pool) -> tuple[int, int]:
    """Barriers of a layer, and of a pass of the whole model, with the threads of `pool`."""
    layers = forward.CONFIGS[name][1]["num_hidden_layers"]
    two, three = (
        barriers_of(NativeModel(forward.load(name, precision, pool, num_hidden_layers=count, vocab_size=256)), rows)
        for count in (2, 3)
    )
    return three - two, two + (layers - 2) * (three - two)


def count_published(args: argparse.Namespace) -> None:
    """Print the barriers of a pass of one row, of published shapes; a test compares the phases with the core's."""
    table = []
    for shape in SHAPES:
        row = {"model": shape.name}
        for threads in map(int, args.published.split(",")):
            nodes = [thread * args.sockets // threads for thread in range(threads)]
            phases = decode_pass(shape, CONTEXT, nodes)
            row[f"{threads} threads"] = str(round(sum(n * sum(each.barriers for each in parts) for n, parts in phases)))
        table.append(row)
    measure.report(table, {"sockets": args.sockets})


def measured(
    model: NativeModel, rows: Sequence[int], repeats: int, count: int
) -> tuple[list[float], dict[int, list[float]]]:
    """Microseconds of a barrier, of `count` of them, and milliseconds of a pass for each number of rows, by turns."""
    pool = model.packed.pool
    runs = {number: company.passes(model, number) for number in rows}
    barriers: list[float] = []
    passes: dict[int, list[float]] = {number: [] for number in rows}
    for repeat in range(repeats + 1):
        barrier = 1e6 * pool.barrier_seconds(count)
        for number, run in runs.items():
            started = time.perf_counter()
            run()
            if repeat:
                passes[number].append(1000 * (time.perf_counter() - started))
        if repeat:
            barriers.append(barrier)
    return barriers, passes


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="qwen2.5-0.5b,qwen2.5-1.5b")
    parser.add_argument("--precisions", default="int4")
    parser.add_argument("--rows", default="1,5")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--count", type=int, default=10_000, help="barriers that are timed together")
    parser.add_argument("--threads", type=int, default=56, help="of the machine on paper")
    parser.add_argument("--bandwidth", type=float, default=250, help="GB/s, of the machine on paper")
    parser.add_argument(
        "--published", metavar="THREADS", help="count barriers of published models, and measure nothing"
    )
    parser.add_argument("--sockets", type=int, default=1, help="that these threads are on, as many on each")
    add_line_options(parser)
    args = parser.parse_args(argv)
    if not 1 <= args.sockets <= args.threads:
        parser.error(f"{args.threads} threads on {args.sockets} sockets: give each socket one at least")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    if args.published:
        count_published(args)
        return
    here, many = planned_pool(), Pool(args.threads)
    torch.set_num_threads(1)
    paper = Machine(args.threads, args.bandwidth, args.line_ns, args.spread_ns, args.sockets, args.socket_ns)
    pair = Machine(here.threads, args.bandwidth, args.line_ns, args.spread_ns)
    table: list[dict[str, str]] = []
    results: list[dict[str, Any]] = []
    wanted = [int(text) for text in args.rows.split(",")]
    for name in args.models.split(","):
        for precision in args.precisions.split(","):
            model = NativeModel(forward.load(name, precision))
            barriers, passes = measured(model, wanted, args.repeats, args.count)
            size = forward.read_per_pass(model.packed, model.packed.spec, CONTEXT, model.kv_precision)
            for rows in wanted:
                of_layer, of_pass = counted(name, precision, rows, here)
                of_layer_many, of_pass_many = counted(name, precision, rows, many)
                each, ms = statistics.median(barriers), statistics.median(passes[rows])
                whole, waiting = paper.pass_ms(size, of_pass_many)
                table.append(
                    {
                        "model": name,
                        "precision": precision,
                        "rows": str(rows),
                        f"{here.threads} threads: a layer": str(of_layer),
                        "a pass": str(of_pass),
                        "µs each, measured": f"{each:.2f}",
                        "spread": f"{min(barriers):.2f} to {max(barriers):.2f}",
                        "(modelled)": f"{pair.barrier_us():.2f}",
                        "ms a pass, measured": f"{ms:.2f}",
                        "% at barriers": f"{of_pass * each / ms / 10:.1f}",
                        f"{args.threads} threads: a layer ": str(of_layer_many),
                        "a pass ": str(of_pass_many),
                        "µs each, modelled": f"{paper.barrier_us():.2f}",
                        "(one level)": f"{paper.one_level_us():.2f}",
                        "ms a pass, modelled": f"{whole:.2f}",
                        "% at barriers, modelled": f"{100 * waiting / whole:.0f}",
                    }
                )
                print(table[-1], flush=True)
                results.append({"model": name, "rows": rows, "barrier_us": barriers, "pass_ms": passes[rows]})
    many.close()
    measure.report(table, {"instruction_set": instruction_set(), "paper": vars(args), "results": results})


if __name__ == "__main__":
    main()
