"""Prompts on the native core: tokens a second, and the share of what the cores can multiply at most.

    ipex-launch -- python benchmarks/prompts.py [--models qwen2.5-1.5b] [--precisions …] [--tokens 512,4096]
        [--kv-precision bf16]

Models have the published shapes and random weights. "peak" is what the same threads multiply with nothing to read, by
the instructions of a precision, measured between the samples (int4 is multiplied as int8, attention as bf16). A
prompt's floor is its products ÷ that: of linears, tokens · weights; of attention, what each token sees, scores and
values. Lengths take turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import forward
import measure
import torch

from ipex_assist.executors.native.loading import planned_pool
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.models import find
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import weight_shape
from ipex_assist.native.library import instruction_set, peak


def linear_weights(name: str, spec: DecoderSpec) -> int:
    """Return how many weights the linears of all layers have; the head has one row, and counts as nothing."""
    architecture = find(forward.CONFIGS[name][0])
    assert architecture is not None
    shapes = [weight_shape(spec, weight) for weight in architecture.weights(spec) if weight.startswith("layers.")]
    return sum(shape[0] * shape[1] for shape in shapes if len(shape) == 2)


def attention_products(spec: DecoderSpec, tokens: int) -> int:
    """Return the products of scores and of values, of what each token of a prompt sees."""
    return sum(layer.attention.query_size for layer in spec.layers) * tokens * (tokens + 1)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="qwen2.5-1.5b")
    parser.add_argument("--precisions", default=",".join(forward.PRECISIONS))
    parser.add_argument("--tokens", default="512,4096")
    parser.add_argument("--kv-precision", default="bf16")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    lengths = [int(text) for text in args.tokens.split(",")]
    pool = planned_pool()
    torch.set_num_threads(1)

    table: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for name in args.models.split(","):
        for precision in args.precisions.split(","):
            packed = forward.load(name, precision)
            model = NativeModel(packed, kv_precision=args.kv_precision)
            weights = linear_weights(name, packed.spec)
            samples: dict[int, list[float]] = {length: [] for length in lengths}
            shares: dict[int, list[float]] = {length: [] for length in lengths}
            peaks: dict[str, list[float]] = {precision: [], "bf16": []}
            for repeat in range(args.repeats + 1):
                for each, found in peaks.items():
                    found.append(peak(pool, each))
                for length in lengths:
                    sequence = model.new_sequence(length + 16)
                    packed.cycles()
                    started = time.perf_counter()
                    model.extend(sequence, [1 + i % 1000 for i in range(length)], last=1)
                    seconds = time.perf_counter() - started
                    _linear, attention, total = packed.cycles()
                    if repeat:
                        samples[length].append(seconds)
                        shares[length].append(attention / total)
            fastest = {each: max(found) for each, found in peaks.items()}
            for length in lengths:
                attention_floor = attention_products(packed.spec, length) / fastest["bf16"]
                floor = length * weights / fastest[precision] + attention_floor
                figures = measure.summary(samples[length])
                table.append(
                    {
                        "model": name,
                        "precision": precision,
                        "tokens": length,
                        "seconds": f"{figures['median']:.2f}",
                        "spread": f"{figures['min']:.2f} to {figures['max']:.2f}",
                        "tokens/s": f"{length / figures['median']:.0f}",
                        "peak, G/s": f"{fastest[precision] / 1e9:.0f}",
                        "of bf16": f"{fastest['bf16'] / 1e9:.0f}",
                        "% of peak": f"{100 * floor / figures['median']:.0f}",
                        "attention %": f"{100 * measure.summary(shares[length])['median']:.0f}",
                    }
                )
                print(table[-1], flush=True)
                results.append({**table[-1], "seconds": figures, "floor_s": floor, "peaks": peaks})
            del model, packed, sequence
    measure.report(table, {"instruction_set": instruction_set(), "threads": pool.threads, "results": results})


if __name__ == "__main__":
    main()
