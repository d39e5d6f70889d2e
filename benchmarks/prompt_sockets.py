"""Prompts on big and double sockets, on paper: seconds to the first token by how threads share rows and columns.

    python benchmarks/prompt_sockets.py [--prompt 4096] [--cores 64,128] [--sockets 1,2] [--precisions int4,bf16]
        [--rows 512,1024,2048,4096] [--products 1.6 | here]

A model, which nobody has measured on such machines, like sockets.py, whose machines and models it has. "today" is 256
rows a pass, whose threads share columns alone, as the core does on few cores. Beside it: the rows of a pass cut into
parts, each of which a socket's threads share by columns as before ("parts"; the best number is shown); more rows a
pass; and both. Sockets share columns. A thread's blocks are those of the core's own partition (native/shares.py).

In a phase, products, memory, last-level cache and the link between sockets overlap, and the longest limits; then all
wait at a barrier. A thread reads its rows from the last-level cache once, or for each panel of columns where its own
cache does not hold them, and writes its outputs there. Weights come from memory once a pass; if rows are in parts, the
others that need them have them from a cache. What caches do not hold goes through memory. Experts are chosen uniformly,
and their blocks are shared as today, whatever the parts. "limits" is what takes most of the time: "norms" are the
values between linears, "attention" its products, in bf16, and the rest of a score. "% of peak" is what the products
alone would take ÷ the time.

Assumed, and options: `--products` of a core with AMX, 10^12 a second in int8, half of it in bf16 ("here": what the
core's own instructions do on one core of this machine). Kernels of 256 rows had 0.49 in int8 on two AMX cores
(results/xeon-amx-2c/kernels). `--score-ns`: the seconds of attention in results/zen4-2c/prompts less its products at
their peak. `--value-ns`: measured on Zen 4 by sockets.py. And GB/s of a core from the last-level cache, from memory
alone, and of the link of two sockets; and how long a cache line is on its way.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import measure
from prompt_sockets_model import LAST_LEVEL, WEIGHT_BYTES, PaperPrompt, Rates, Spent, Split, parts_of
from sockets import BANDWIDTH
from sockets_model import Core, Paper, add_line_options, line_times
from sockets_shapes import SHAPES, Shape

from ipex_assist.executors.native.loading import planned_pool
from ipex_assist.native.library import peak

TODAY = 256  # rows a pass: native/rows.py, PASS_ROWS


def candidates(paper: Paper, rows: Sequence[int]) -> list[Split]:
    """Each number of rows a pass with each number of parts."""
    return [Split(number, parts) for number in (TODAY, *rows) for parts in parts_of(paper, number)]


def line(shape: Shape, precision: str, paper: Paper, rates: Rates, args: argparse.Namespace) -> dict[str, str]:
    """A line of the table: today, with parts of the rows, with more rows, and with both."""

    def prompt(split: Split) -> PaperPrompt:
        return PaperPrompt(shape, precision, paper, rates, split, LAST_LEVEL[paper.cores] * 1e6)

    found = {split: prompt(split).spent(args.prompt) for split in candidates(paper, args.rows)}

    def best(splits: Iterator[Split]) -> tuple[Split, Spent]:
        # Of those within a hundredth of the fastest the one with the fewest rows and parts.
        some = sorted(splits, key=lambda split: (split.rows, split.parts))
        limit = 1.01 * min(found[split].seconds for split in some)
        return next((split, found[split]) for split in some if found[split].seconds <= limit)

    today = found[Split(TODAY)]
    parts, in_parts = best(split for split in found if split.rows == TODAY)
    more, by_rows = best(split for split in found if split.parts == 1)
    both, fastest = best(iter(found))
    return {
        "model": shape.name,
        "weights": precision,
        "cores": f"{paper.sockets} x {paper.cores}" if paper.sockets > 1 else str(paper.cores),
        "today, s": f"{today.seconds:.3f}",
        "limits": today.limits(),
        "rows in parts": f"{in_parts.seconds:.3f} ({parts.parts})",
        "more rows": f"{by_rows.seconds:.3f} ({more.rows})",
        "both": f"{fastest.seconds:.3f} ({both.rows}, {both.parts})",
        "faster by": f"{today.seconds / fastest.seconds:.2f}",
        "then limits": fastest.limits(),
        "% of peak": f"{100 * prompt(both).peak_seconds(args.prompt) / fastest.seconds:.0f}",
    }


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = {"type": lambda text: [int(part) for part in text.split(",")]}
    parser.add_argument("--prompt", type=int, default=4096, help="tokens")
    parser.add_argument("--cores", default="64,128", **numbers, help=f"of a socket, among {[*BANDWIDTH]}")
    parser.add_argument("--sockets", default="1,2", **numbers)
    parser.add_argument("--precisions", default="int4,bf16", help=f"of the weights: {', '.join(WEIGHT_BYTES)}")
    parser.add_argument("--rows", default="512,1024,2048,4096", **numbers, help="of a pass, beside 256")
    parser.add_argument("--products", default="1.6", help='10^12 int8 products a second and core (AMX), or "here"')
    parser.add_argument("--score-ns", type=float, default=0.8, help="of attention for a score, beside its products")
    parser.add_argument("--value-ns", type=float, default=0.41, help="of a value that is added, normed and quantized")
    parser.add_argument("--cache-bandwidth", type=float, default=12, help="GB/s of a core from the last-level cache")
    parser.add_argument("--core-bandwidth", type=float, default=12, help="GB/s of memory that one core has alone")
    parser.add_argument("--link", type=float, default=100, help="GB/s from one socket to another")
    add_line_options(parser)
    args = parser.parse_args(argv)
    args.precisions = args.precisions.split(",")
    if unknown := set(args.cores) - set(BANDWIDTH):
        parser.error(f"--cores {sorted(unknown)}: no bandwidth is known of these; there are {[*BANDWIDTH]}")
    if wrong := set(args.precisions) - set(WEIGHT_BYTES):
        parser.error(f"--precisions {', '.join(sorted(wrong))}: there are {', '.join(WEIGHT_BYTES)}")
    if args.prompt < 1 or min(args.rows) < 16:
        parser.error(f"--prompt {args.prompt}, --rows {min(args.rows)}: at least 1 token, and 16 rows of a pass")
    if args.products != "here":
        try:
            args.products = float(args.products)
        except ValueError:
            parser.error(f'--products {args.products}: give a number, 10^12 a second, or "here"')
    return args


def products_here() -> float:
    """10^12 int8 products a second of one core of this machine, with nothing to read."""
    pool = planned_pool()
    return peak(pool, "int8") / pool.threads / 1e12


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    products = products_here() if args.products == "here" else args.products
    rates = Rates(products, args.score_ns, args.cache_bandwidth, args.link)
    core = Core(0, 0, args.core_bandwidth, args.value_ns)
    lines = line_times(args)
    papers = [Paper(n, sockets, BANDWIDTH[n], core, **lines) for n in args.cores for sockets in args.sockets]
    table = [
        line(shape, precision, paper, rates, args)
        for shape, precision, paper in itertools.product(SHAPES, args.precisions, papers)
    ]
    facts: dict[str, Any] = {"assumed": vars(args) | {"bandwidth": BANDWIDTH, "last_level": LAST_LEVEL}}
    measure.report(table, facts | {"products_of_a_core": products})


if __name__ == "__main__":
    main()
