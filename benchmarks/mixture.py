"""Passes of a model of published shapes with random weights: tokens/s, distinct experts, and bytes read a pass.

    ipex-launch -- python benchmarks/mixture.py [--model Qwen/Qwen3-30B-A3B] [--layers N] [--precision int4]
        [--rows 1,2,4,8] [--requests 8] [--context 64] [--repeats 7]

The model has its published shapes (`--layers` of them), and is packed expert by expert. Cases are N rows of one
sequence, and a row each of N requests; they take turns, with new random tokens each time. Routing is what random
routers give: rows of different requests draw their experts nearly uniformly, rows of one text share more of them. A
trained one differs. "uniform" is what independent draws would read, count · (1 − (1 − used / count)^rows) a layer.
Bytes are those of the weights outside of experts, of the experts that the core counted, of keys and values, and of the
states of recurrent layers. Models without experts are measured in the same way.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import measure

from ipex_assist.bench.pairs import first_layers, published_config
from ipex_assist.bench.random_checkpoint import RandomCheckpoint
from ipex_assist.commands.shared.load import leave_cores_to_native
from ipex_assist.executors.interface import Rows
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.traffic import traffic_of
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.native.library import instruction_set, read_bandwidth
from ipex_assist.quantization.precision import LINEAR_BYTES

MODEL = "Qwen/Qwen3-30B-A3B"


def load(source: str, layers: int | None, precision: str) -> Any:
    """The model of these shapes on the native core. Raises UsageError where they are not known."""
    config = published_config(source)
    if layers is not None:
        config = first_layers(config, layers)
    return load_model(LoadRequest(RandomCheckpoint(source, config), precision, "native"))


def expert_bytes(spec: DecoderSpec, precision: str) -> float:
    """Of the three linears of one expert; 0 where there are none."""
    if not spec.expert_layers:
        return 0.0
    experts = spec.expert_layers[0]
    return 3 * spec.hidden_size * experts.intermediate_size * LINEAR_BYTES[precision]


def read_bytes(model: Any, precision: str, experts: int, tokens: int, sequences: int = 1) -> float:
    """Bytes of a pass that reads `experts` experts of all layers, with `tokens` tokens in all its sequences."""
    spec, traffic = model.spec, traffic_of(model, precision)
    outside = traffic.weight_bytes - chosen(spec, 1) * expert_bytes(spec, precision)
    return (
        outside
        + experts * expert_bytes(spec, precision)
        + (tokens * traffic.kv_bytes_per_token + sequences * traffic.state_bytes)
    )


def chosen(spec: DecoderSpec, rows: int) -> float:
    """Distinct experts of all layers that `rows` rows choose, if each chooses uniformly."""
    return sum(each.count * (1 - (1 - each.per_token / each.count) ** rows) for each in spec.expert_layers)


def cases_of(model: Any, args: argparse.Namespace, chance: random.Random) -> dict[str, tuple[list[Any], int]]:
    """Sequences of a case with their context, and the rows of each."""
    count = max(1, args.requests)
    sequences = [model.new_sequence(args.context + 64) for _ in range(count)]
    for sequence in sequences:
        model.extend(sequence, tokens_of(model, args.context, chance))
    cases = {f"{rows} rows": (sequences[:1], rows) for rows in args.rows}
    if args.requests:
        cases[f"{count} requests"] = (sequences, 1)
    return cases


def tokens_of(model: Any, count: int, chance: random.Random) -> list[int]:
    """Any tokens."""
    return [chance.randrange(model.spec.vocab_size) for _ in range(count)]


def one_pass(model: Any, sequences: list[Any], rows: int, chance: random.Random) -> tuple[float, int]:
    """Seconds of a pass that is taken back, and the experts it read."""
    parts = [Rows(sequence, tokens_of(model, rows, chance), rows) for sequence in sequences]
    started = time.perf_counter()
    model.forward(parts)
    seconds = time.perf_counter() - started
    for sequence in sequences:
        sequence.truncate(sequence.length - rows)
    return seconds, model.packed.experts_read


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options; sizes are at least 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--precision", default="int4", choices=sorted(LINEAR_BYTES))
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2, 4, 8])
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    """Measure, print a table and JSON."""
    leave_cores_to_native()
    model, chance = load(args.model, args.layers, args.precision), random.Random(0)
    cases = cases_of(model, args, chance)
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    experts: dict[str, list[float]] = {name: [] for name in cases}
    bandwidths: list[float] = []
    for repeat in range(args.repeats + 1):  # the first is the warm-up
        bandwidth = read_bandwidth(model.packed.pool, repeats=2)
        for name, (sequences, rows) in cases.items():
            took, read = one_pass(model, sequences, rows, chance)
            if repeat:
                seconds[name].append(took)
                experts[name].append(read)
        bandwidths += [bandwidth] if repeat else []
    speed = measure.summary(bandwidths)["median"]
    table, results = [], []
    for name, (sequences, rows) in cases.items():
        row, result = _figures(model, args, len(sequences), rows, seconds[name], experts[name], speed)
        table.append({"case": name, **row})
        results.append({"case": name, **result})
    facts = {"instruction_set": instruction_set(), "threads": model.packed.pool.threads}
    shape = {"model": args.model, "layers": model.spec.num_hidden_layers, "precision": args.precision}
    measure.report(
        table, {**facts, **shape, "read_GB_per_s": measure.summary(bandwidths), "routing": "random", "results": results}
    )
    return 0


def _figures(
    model: Any,
    args: argparse.Namespace,
    requests: int,
    rows: int,
    seconds: list[float],
    read: list[float],
    speed: float,
) -> tuple[dict[str, str], dict[str, Any]]:
    """A case's line of the table, and of the JSON."""
    took, experts = measure.summary(seconds), measure.summary(read)
    tokens = requests * rows
    size = read_bytes(model, args.precision, experts["median"], requests * args.context, requests)
    share = size / 1e9 / speed / took["median"]
    layers = max(1, len(model.spec.expert_layers))
    row = {
        "tokens/s": f"{tokens / took['median']:.1f}",
        "ms": f"{1e3 * took['median']:.2f}",
        "spread": f"{1e3 * took['min']:.2f} to {1e3 * took['max']:.2f}",
        "experts a layer": f"{experts['median'] / layers:.1f}",
        "uniform": f"{chosen(model.spec, tokens) / layers:.1f}",
        "GB a pass": f"{size / 1e9:.2f}",
        "% of read": f"{100 * share:.0f}",
    }
    result = {"rows": tokens, "seconds": took, "experts": experts, "bytes": size, "share_of_read": share}
    return row, result | {"tokens_per_s": tokens / took["median"], "uniform_experts": chosen(model.spec, tokens)}


if __name__ == "__main__":
    raise SystemExit(measure.exit_code(lambda: run(parse()), print))
