"""What adapters cost: passes of 8 rows, of the model alone and with several adapters beside each other, in turns.

    python benchmarks/adapters.py MODEL --precision int8

Adapters are random, of all linears of attention and plain MLPs. Ends with JSON: medians in milliseconds, all samples.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator

import torch

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.executors.adapters import ADAPTABLE, AdapterChoice, AdapterMatrices, TakesAdapters
from ipex_assist.executors.interface import Rows
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.models.weights import weight_shape


def matrices(request: LoadRequest, rank: int, seed: int) -> Iterator[AdapterMatrices]:
    """A random adapter."""
    made = torch.Generator().manual_seed(seed)
    for name in request.sources:
        if name.split(".")[-2] in ADAPTABLE and name.count(".") == 3 and name.endswith(".weight"):
            columns, width = weight_shape(request.spec, name)
            a, b = torch.randn(rank, width, generator=made), torch.randn(columns, rank, generator=made)
            yield AdapterMatrices(name, a, b * 1e-3, 1.0)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--adapters", type=int, default=3)
    parser.add_argument("--turns", type=int, default=40)
    args = parser.parse_args()
    request = LoadRequest(open_checkpoint(args.model), args.precision, "native", cache_packed=None)
    model = load_model(request)
    assert isinstance(model, TakesAdapters)
    for seed in range(args.adapters):
        model.add_adapter(str(seed), matrices(request, args.rank, seed))
    mixes = {
        "without": [None] * args.rows,
        "with": [AdapterChoice(str(row % args.adapters)) for row in range(args.rows)],
    }
    sequences = {
        name: [model.new_sequence(args.turns + 80, adapter=choice) for choice in choices]
        for name, choices in mixes.items()
    }
    samples: dict[str, list[float]] = {name: [] for name in mixes}
    for turn in range(args.turns + 5):
        for name, own in sequences.items():
            started = time.perf_counter()
            model.forward([Rows(sequence, [turn + 5]) for sequence in own])
            if turn >= 5:  # warm
                samples[name].append(1e3 * (time.perf_counter() - started))
    medians = {name: statistics.median(each) for name, each in samples.items()}
    cost = medians["with"] / medians["without"] - 1
    facts = {key: vars(args)[key] for key in ("model", "precision", "rank", "rows", "adapters")}
    print(json.dumps({**facts, "medians": medians, "cost": cost, "samples": samples}))


if __name__ == "__main__":
    main()
