"""What each thread gets of a prompt's pass on big machines, counted: how busy all are, and what each reads.

    python benchmarks/prompt_shares.py [--threads 56,112,256] [--nodes 1,2,8] [--rows 256,1024,4096] [--precision int8]
    python benchmarks/prompt_shares.py --texts 4,8,16,32 [--drafted 4] [--positions 1000,4000,16000]
    python benchmarks/prompt_shares.py --models meta-llama/Llama-2-7b-hf,Qwen/Qwen3-30B-A3B

Of the linears and the attention of a model of 8 billion parameters (hidden 4096, 32 heads and 8 of keys and values,
intermediate 14336), by the core's own partition (native/shares.py); nothing runs. "busy" is the mean thread's work ÷
the busiest one's. "columns alone" is a partition by panels of columns, where each thread reads all rows. MB are those
of weights and rows that the busiest thread reads of a layer. Attention is of a prompt's first rows. With --texts,
attention of so many texts in a pass, each with its last token and --drafted more: with query tiles alone, and as the
pass is planned, by tiles or by blocks of keys and values; times are those of the last thread ÷ an even share.
With --models, how many rows of a prompt a pass of each has where memory allows it, on cores with AMX (modelled).
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence

import measure

from ipex_assist.bench.pairs import published_config
from ipex_assist.executors.native.pass_rows import useful_rows
from ipex_assist.models import find
from ipex_assist.native.rows import DECODE_ROWS
from ipex_assist.native.shares import linear_shares, row_shares, text_shares, tile_shares
from ipex_assist.quantization.precision import LINEAR_BYTES
from ipex_assist.workers.division import BALANCE_AMX

# Columns, depth and panels that stay together: qkv, output, up, down.
LINEARS = ((6144, 4096, 1), (4096, 4096, 1), (28672, 4096, 2), (4096, 14336, 1))
HEADS, KV_HEADS, HEAD_DIM, LANES = 32, 8, 128, 16


def line(threads: int, nodes: int, rows: int, precision: str) -> dict[str, str]:
    """A line of the table."""
    places = [thread * nodes // threads for thread in range(threads)]
    before = after = work = most_before = most_after = 0.0
    row_bytes = {"fp32": 4, "bf16": 2}.get(precision, 1)
    for columns, depth, unit in LINEARS:
        panels = max(linear_shares(columns // LANES, threads, unit))
        shares = row_shares(columns, depth, precision, rows, places, unit)
        before += panels * LANES * depth * LINEAR_BYTES[precision] + rows * depth * row_bytes
        after += max(each.weight_bytes + each.row_bytes for each in shares)
        work += columns * depth * rows / threads
        most_before += panels * LANES * depth * rows
        most_after += max(each.products for each in shares)
    ends = tile_shares(HEADS, KV_HEADS, HEAD_DIM, 0, rows, places)
    return {
        "threads": str(threads),
        "nodes": str(nodes),
        "rows": str(rows),
        "columns alone, % busy": f"{100 * work / most_before:.0f}",
        "% busy": f"{100 * work / most_after:.0f}",
        "columns alone, MB": f"{before / 1e6:.1f}",
        "MB": f"{after / 1e6:.1f}",
        "attention, % busy": f"{100 * sum(ends) / len(ends) / max(ends):.0f}",
    }


def text_line(threads: int, nodes: int, texts: int, drafted: int, position: int) -> dict[str, str]:
    """A line of the table of texts."""
    places = [thread * nodes // threads for thread in range(threads)]
    found = text_shares(HEADS, KV_HEADS, HEAD_DIM, position, 1 + drafted, texts, places)
    return {
        "threads": str(threads),
        "nodes": str(nodes),
        "texts": str(texts),
        "rows": str(texts * (1 + drafted)),
        "positions": str(position),
        "tiles alone, % busy": f"{100 * found.even / found.tiles:.0f}",
        "% busy": f"{100 * found.even / found.chosen:.0f}",
        "shared by": "blocks" if found.splits_kv else "tiles",
        "× earlier": f"{found.tiles / found.chosen:.2f}",
    }


def model_line(model: str, precision: str, threads: Sequence[int]) -> dict[str, str]:
    """A line of the table of models."""
    config = published_config(model)
    architecture = find(config["architectures"][0])
    assert architecture is not None, model
    rows = [useful_rows(architecture.spec(config), each, BALANCE_AMX[precision]) for each in threads]
    named = {f"rows, {each} threads": str(count) for each, count in zip(threads, rows, strict=True)}
    return {"model": model.split("/")[-1], "weights": precision, **named}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    numbers = {"type": lambda text: [int(part) for part in text.split(",")]}
    parser.add_argument("--threads", default="56,112,256", **numbers)
    parser.add_argument("--nodes", default="1,2,8", **numbers, help="memory nodes of each of these")
    parser.add_argument("--rows", default="256,1024,4096", **numbers, help="of a pass")
    parser.add_argument("--precision", default="int8", choices=sorted(LINEAR_BYTES))
    parser.add_argument("--texts", **numbers, help="attention of so many texts in a pass, and nothing else")
    parser.add_argument("--drafted", type=int, default=4, help="tokens of each text behind its last")
    parser.add_argument("--positions", default="1000,4000,16000", **numbers, help="tokens before them")
    parser.add_argument("--models", type=lambda text: text.split(","), help="rows of a pass of these, and nothing else")
    args = parser.parse_args(argv)
    if args.models:
        cases = itertools.product(args.models, BALANCE_AMX)
        return measure.report([model_line(*each, args.threads) for each in cases], {})
    if len(args.threads) != len(args.nodes):
        parser.error(f"{len(args.threads)} numbers of threads and {len(args.nodes)} of nodes: give one for each")
    machines = list(zip(args.threads, args.nodes, strict=True))
    if args.texts:
        cases = itertools.product(machines, args.texts, args.positions)
        lines = [text_line(*each, texts, args.drafted, position) for each, texts, position in cases]
        return measure.report([line for line in lines if int(line["rows"]) > DECODE_ROWS], {})
    return measure.report([line(*each, rows, args.precision) for each in machines for rows in args.rows], {})


if __name__ == "__main__":
    main()
