"""Big and double sockets, on paper: what share of the memory's speed a pass of one row would have, by model and cores.

    python benchmarks/sockets.py [--cores 32,56,64,86,128] [--sockets 1,2] [--context 2048] [--core-bandwidth 12]

A model, which nobody has measured on such machines. What each thread reads in each phase of a pass is asked of the
core's own partition (native/shares.py). What one core does is measured here, on one: int4 weights that it multiplies
with a row, and int8 keys and values, in its cache, and values that it adds, norms and quantizes. The rest are
assumptions, which are options: GB/s of a socket's memory, what one core can have of it (`--core-bandwidth`), and how
long a cache line is on its way (as in barriers.py). Threads of a socket that read at the same time share its memory;
who is done leaves more to the others. Then all wait at a barrier.

"% of memory" is what reading would take at the full speed of all sockets ÷ what the pass takes. "reading" is the same
for reading alone, without barriers and rows: what the partition costs. "in halves" is "% of memory" if blocks of 16
columns could be cut in two, "same start" if all threads read a row that others wrote from its first line on. "worst
load" is the most keys and values that a thread reads ÷ the mean. prompt_sockets.py models prompts on these machines.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Sequence
from typing import Any

import forward
import kernels
import measure
import torch
from sockets_model import Core, Paper, add_line_options, line_times, pass_time, worst_load
from sockets_shapes import SHAPES

from ipex_assist.executors.native.loading import planned_pool
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.native.library import instruction_set, read_bandwidth, row_seconds

# GB/s of a socket by its cores: eight channels of DDR5-4800, the last two twelve of DDR5-6400; four fifths of the peak.
BANDWIDTH = {32: 245, 56: 245, 64: 285, 86: 490, 128: 490}
LONG = 32768  # positions of a context, for what the fullest thread has of it
VALUES = 4096  # of a row
WIDTH, COLUMNS = 4096, 4096  # of a linear
PASSES = 200
# A model of one layer whose keys and values stay in the cache: 512 bytes of a position, in int8.
CACHED = {
    "hidden_size": 1024,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}


def measured_core(memory: float) -> Core:
    """What one core of this machine does, and may have of its memory on paper."""
    threads = planned_pool().threads
    seconds = kernels.in_cache(WIDTH, COLUMNS, "int4", [1], threads)[1]
    linear = kernels.packed_bytes(WIDTH, COLUMNS, "int4") / threads / seconds / 1e9
    rows = [row_seconds(VALUES) for _ in range(9)]
    return Core(linear, attention_rate(), memory, 1e9 * statistics.median(rows) / VALUES)


def attention_rate() -> float:
    """GB/s of int8 keys and values in the cache, of one core: by the cycles of passes after two contexts."""
    pool = planned_pool()
    model = NativeModel(forward.load("llama-2-7b", "int4", pool, **CACHED), kv_precision="int8")
    cycles, clock = {}, 0.0
    for context in (256 * pool.threads, 1024 * pool.threads):
        sequence = forward.filled(model, context)
        samples = []
        for _ in range(PASSES):
            sequence.truncate(context)
            model.packed.cycles()
            model.extend(sequence, [1])
            samples.append(model.packed.cycles().attention)
        cycles[context] = statistics.median(samples)
        clock = clock or cycles_per_second(model)
    (less, few), (more, many) = sorted(cycles.items())
    return (more - less) * 2 * 2 * (128 + 4) / pool.threads / ((many - few) / clock) / 1e9


def cycles_per_second(model: NativeModel) -> float:
    """Of the processor's counter, by a pass of many rows."""
    sequence = model.new_sequence(2048)
    model.packed.cycles()
    started = time.perf_counter()
    model.extend(sequence, [1] * 2000)
    return model.packed.cycles().total / (time.perf_counter() - started)


def papers(args: argparse.Namespace, core: Core) -> list[Paper]:
    """The machines that are asked for."""
    lines = line_times(args)
    return [Paper(cores, sockets, BANDWIDTH[cores], core, **lines) for cores in args.cores for sockets in args.sockets]


def decode_rows(papers: Sequence[Paper], context: int) -> list[dict[str, str]]:
    """A line of the table for each model and machine."""
    rows = []
    for shape in SHAPES:
        for paper in papers:
            found = pass_time(shape, context, paper)
            halves = pass_time(shape, context, paper, 2)
            same_start = dataclasses.replace(paper, staggered=False)
            limit = found.size / paper.bandwidth / paper.sockets / 1e6
            rows.append(
                {
                    "model": shape.name,
                    "cores": f"{paper.sockets} x {paper.cores}" if paper.sockets > 1 else str(paper.cores),
                    "GB/s": f"{paper.bandwidth * paper.sockets:.0f}",
                    "GB a pass": f"{found.size / 1e9:.2f}",
                    "ms a pass": f"{found.ms:.2f}",
                    "tokens/s": f"{1000 / found.ms:.0f}",
                    "% of memory": f"{100 * found.share(paper):.0f}",
                    "reading": f"{100 * limit / found.reading_ms:.0f}",
                    "% at barriers": f"{100 * found.barrier_ms / found.ms:.0f}",
                    "in halves": f"{100 * halves.share(paper):.0f}",
                    "same start": f"{100 * pass_time(shape, context, same_start).share(same_start):.0f}",
                    "worst load at 32,768": f"{worst_load(shape, LONG, paper):.2f}",
                }
            )
    return rows


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = {"type": lambda text: [int(part) for part in text.split(",")]}
    parser.add_argument("--cores", default="32,56,64,86,128", **numbers, help=f"of a socket, among {[*BANDWIDTH]}")
    parser.add_argument("--sockets", default="1,2", **numbers)
    parser.add_argument("--context", type=int, default=2048, help="positions before the row")
    parser.add_argument("--core-bandwidth", type=float, default=12, help="GB/s of memory that one core has alone")
    add_line_options(parser)
    args = parser.parse_args(argv)
    if unknown := set(args.cores) - set(BANDWIDTH):
        parser.error(f"--cores {sorted(unknown)}: no bandwidth is known of these; there are {[*BANDWIDTH]}")
    return args


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    torch.set_num_threads(1)
    core = measured_core(args.core_bandwidth)
    reading = read_bandwidth(planned_pool()) / planned_pool().threads
    print(f"one core here: {core}; reads {reading:.1f} GB/s of memory")
    table = decode_rows(papers(args, core), args.context)
    facts: dict[str, Any] = {"core": dataclasses.asdict(core), "read_GB_per_s_core": reading}
    facts |= {"instruction_set": instruction_set(), "assumed": vars(args) | {"bandwidth": BANDWIDTH}}
    measure.report(table, facts)


if __name__ == "__main__":
    main()
