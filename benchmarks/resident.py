"""A mixture that is larger than memory: tokens/s where experts are read from its GGUF file as they are needed.

    python benchmarks/mixture_gguf.py --layers 16 --output FILE
    python benchmarks/resident.py FILE --resident 3G,2G [--context 64] [--new-tokens 64] [--requests 1,8] [--turns 3]

Texts are random tokens, a row of each request in a pass, so that experts are drawn nearly uniformly: the share of them
that is in memory is about that of the slots. A trained mixture uses some more than others. To compare with a program
that maps the file, start both in the same control group, whose limit is below the file's size; without --resident all
is in memory. The reads are those of the new tokens.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import measure

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.commands.shared.load import leave_cores_to_native
from ipex_assist.env.errors import UsageError
from ipex_assist.env.memory import read_memory, resident_bytes
from ipex_assist.env.options import Size
from ipex_assist.executors.interface import Rows
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.native.expert_reads import ExpertCounts, expert_reads


def loaded(args: argparse.Namespace, resident: int | None) -> NativeModel:
    """The model with its cache of experts empty."""
    request = LoadRequest(
        open_checkpoint(args.file), "stored", "native", resident=resident, kv_memory=KvMemory(64 << 20)
    )
    model = load_model(request)
    if not isinstance(model, NativeModel):
        raise UsageError(f"{args.file} does not run on the native core")
    return model


def turn(model: NativeModel, args: argparse.Namespace, requests: int, seed: int) -> tuple[float, float, ExpertCounts]:
    """Tokens/s of prompts and of new tokens, of all requests together, and what the latter read."""
    draw = random.Random(seed)
    tokens = lambda count: [draw.randrange(model.spec.vocab_size) for _ in range(count)]  # noqa: E731
    sequences = [model.new_sequence(args.context + args.new_tokens) for _ in range(requests)]
    started = time.perf_counter()
    model.choose([Rows(each, tokens(args.context), 1) for each in sequences])
    prompt_s, before = time.perf_counter() - started, expert_reads(model.packed)
    started = time.perf_counter()
    for _ in range(args.new_tokens):
        model.choose([Rows(each, tokens(1), 1) for each in sequences])
    decode_s, after = time.perf_counter() - started, expert_reads(model.packed)
    reads = ExpertCounts(*(b - a for a, b in zip(before, after, strict=True)))
    return requests * args.context / prompt_s, requests * args.new_tokens / decode_s, reads


def measured(args: argparse.Namespace, resident: int | None) -> list[dict[str, Any]]:
    """A row for each number of requests; the first turn, which fills the cache, is in none."""
    model, rows = loaded(args, resident), []
    for requests in args.requests:
        turns = [turn(model, args, requests, seed) for seed in range(args.turns + 1)][1:]
        speeds = measure.summary([decode for _, decode, _ in turns])
        reads = [sum(counts) for counts in zip(*(each for _, _, each in turns), strict=True)]
        wanted, found, ahead, size, waited = reads
        new = args.turns * args.new_tokens * requests
        seconds = sum(args.new_tokens * requests / decode for _, decode, _ in turns)
        rows.append(
            {
                "resident": "all" if resident is None else f"{model.packed.resident_bytes / 2**30:.2f} GiB",
                "requests": requests,
                "tokens/s": f"{speeds['median']:.2f}",
                "spread": f"{speeds['min']:.2f} to {speeds['max']:.2f}",
                "prompt tokens/s": f"{measure.summary([prompt for prompt, _, _ in turns])['median']:.1f}",
                "found": f"{found / wanted:.1%}" if wanted else "-",
                "expected": f"{ahead / wanted:.1%}" if wanted else "-",
                "MiB a token": f"{size / new / 2**20:.1f}",
                "read GB/s": f"{size / seconds / 1e9:.2f}",
                "waited": f"{waited / seconds:.0%}",
                "process": f"{resident_bytes() / 2**30:.2f} GiB",
            }
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--resident", default="", help="bytes of weights in memory, as 3G; several with commas between")
    parser.add_argument("--context", type=int, default=64, help="tokens before those that are timed")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--requests", type=lambda text: [int(each) for each in text.split(",")], default=[1])
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    leave_cores_to_native()
    sizes = [Size().read(each) for each in args.resident.split(",") if each] or [None]
    rows = [row for resident in sizes for row in measured(args, resident)]
    measure.report(rows, {"file": args.file, "memory": read_memory().total})
    return 0


if __name__ == "__main__":
    raise SystemExit(measure.exit_code(main, print))
