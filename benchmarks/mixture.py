"""Passes of a model of published shapes with random weights: tokens/s, and their share of the memory's read speed.

    ipex-launch -- python benchmarks/mixture.py --pair qwen3.5-9b | --model Qwen/Qwen3-30B-A3B [--layers N]
        [--precision int4] [--rows 1,5,8] [--requests 8] [--context 64] [--repeats 7] [--llama-cpp FOLDER]
        [--prompt 4096 [--pass-rows 256,2048]]

The model has its published shapes, or its first `--layers`; without that as many as fit this machine's memory, and the
result says how many these are. Embeddings of n-grams are left out (a table of Qwen3.8-Flash-Next alone has 102 GB, of
which a row reads 5 KB), and the result says so. It is packed tensor by tensor. Cases are N rows of one sequence, and a
row each of N requests; they take turns, with new random tokens each time, and the memory's read speed is measured
before each of them. Routing is what random routers give: rows of different requests draw their experts nearly
uniformly, rows of one text share more of them. A trained one differs. "uniform" is what independent draws would read,
count · (1 − (1 − used / count)^rows) a layer. Bytes are those of the weights outside of experts, of the experts that
the core counted, of keys and values, and of the states of recurrent layers. Models without experts are measured too.

--prompt N measures instead the first token after a prompt of so many tokens, which is read in passes of each of
`--pass-rows` rows, in turns; without that, of 256 and of as many as the model has room for here.

--llama-cpp FOLDER, where llama-batched-bench is, measures llama.cpp beside it: a GGUF file of the same shapes and as
many layers (mixture_gguf.py) in Q4_0, before our turns and after them, with one request and with `--requests`, and the
memory's read speed beside its turns: where that differs from ours, the ratio is not one of programs.
"""

from __future__ import annotations

import argparse
import gc
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import measure
import mixture_llama

from ipex_assist.bench.pairs import PAIRS, find_pair, first_layers, published_config, shown_layers
from ipex_assist.bench.random_checkpoint import RandomCheckpoint
from ipex_assist.commands.shared.load import leave_cores_to_native
from ipex_assist.env.errors import UsageError
from ipex_assist.env.memory import read_memory
from ipex_assist.executors.interface import Rows
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.model_bytes import native_bytes
from ipex_assist.executors.traffic import traffic_of
from ipex_assist.models import find
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.native.library import instruction_set, read_bandwidth
from ipex_assist.native.rows import PASS_ROWS
from ipex_assist.quantization.precision import LINEAR_BYTES

MODEL = "Qwen/Qwen3-30B-A3B"
Turn = tuple[float, float, float]  # seconds of a pass, experts it read, and GB/s that memory reads


SPARE_BYTES = 3 << 30  # beside the weights: keys and values, states, buffers, and other programs


def config_of(args: argparse.Namespace) -> dict[str, Any]:
    """The config of the model that is asked for, cut to the layers that are or that fit. Raises UsageError."""
    config = published_config(args.model)
    if config.get("ple_layer_ids"):
        config["ple_layer_ids"] = []
    shown_layers(config, args.layers)  # checks them
    layers = args.layers or fitting_layers(config, args.precision, (read_memory().available or 0) - SPARE_BYTES)
    return first_layers(config, layers)


def fitting_layers(config: dict[str, Any], precision: str, free: int) -> int:
    """The first layers of a model that fit this many bytes. Raises UsageError where none does."""
    architecture = find(config["architectures"][0])
    assert architecture is not None
    for layers in range(config["num_hidden_layers"], 0, -1):
        spec = architecture.spec(first_layers(config, layers))
        if native_bytes(spec, precision, wanted=8, longest=256).weights <= free:
            return layers
    raise UsageError(f"--model: not one layer in {precision} fits the {free / 1e9:.1f} GB of memory that are free")


def load(source: str, config: dict[str, Any], precision: str) -> Any:
    """The model of this config with random weights on the native core."""
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
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--pair", metavar="NAME", help=f"the target of one of {', '.join(PAIRS)}")
    which.add_argument("--model", default=MODEL)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--precision", default="int4", choices=sorted(LINEAR_BYTES))
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=[1, 5, 8])
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--prompt", type=int, metavar="N", help="tokens of a prompt, whose first token is measured")
    parser.add_argument("--pass-rows", type=lambda text: [int(part) for part in text.split(",")], metavar="ROWS,…")
    parser.add_argument("--llama-cpp", type=Path, metavar="FOLDER", help="where llama-batched-bench is")
    parser.add_argument("--scratch", type=Path, help="a folder for the GGUF file, which is deleted again")
    args = parser.parse_args(argv)
    args.model = find_pair(args.pair).target if args.pair else args.model
    return args


def run(args: argparse.Namespace) -> int:
    """Measure, print a table and JSON."""
    leave_cores_to_native()
    config = config_of(args)
    if args.prompt:
        return _report(args, config, *prompt_measured(args, config), [])
    if args.llama_cpp is None:
        return _report(args, config, *measured(args, config), [])
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        counts = sorted({1, max(1, args.requests)})
        peer = mixture_llama.Peer(args.llama_cpp, Path(folder) / "model.gguf", args.context, counts)
        peer.write(config)
        turns = [peer.turn()]
        table, result = measured(args, config)
        gc.collect()
        turns.append(peer.turn())
    return _report(args, config, table, result, turns)


def measured(args: argparse.Namespace, config: dict[str, Any]) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """Our lines of the table, and what is kept of them."""
    model, chance = load(args.model, config, args.precision), random.Random(0)
    cases = cases_of(model, args, chance)
    turns: dict[str, list[Turn]] = {name: [] for name in cases}
    for repeat in range(args.repeats + 1):  # the first is the warm-up
        for name, (sequences, rows) in cases.items():
            speed = read_bandwidth(model.packed.pool, repeats=2)
            took, read = one_pass(model, sequences, rows, chance)
            turns[name] += [(took, read, speed)] if repeat else []
    table, results = [], []
    first = measure.summary([took for took, _, _ in next(iter(turns.values()))])["median"]
    for name, (sequences, rows) in cases.items():
        row, result = _figures(model, args, len(sequences), rows, turns[name], first)
        table.append({"case": name, **row})
        results.append({"case": name, **result})
    facts = {"instruction_set": instruction_set(), "threads": model.packed.pool.threads}
    return table, {**facts, "layers": model.spec.num_hidden_layers, "results": results}


def prompt_measured(args: argparse.Namespace, config: dict[str, Any]) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """The table of first tokens by rows a pass, and what is kept of it."""
    model, chance = load(args.model, config, args.precision), random.Random(0)
    planned = model.pass_rows
    choices = list(dict.fromkeys(args.pass_rows or [PASS_ROWS, planned]))
    model.pass_rows = max(choices)
    turns: dict[int, list[tuple[float, int]]] = {rows: [] for rows in choices}
    for repeat in range(args.repeats + 1):  # the first is the warm-up
        for rows in choices:
            found = first_token(model, rows, tokens_of(model, args.prompt, chance))
            turns[rows] += [found] if repeat else []
    base = measure.summary([took for took, _ in turns[choices[0]]])["median"]
    table, results = [], []
    for rows, found in turns.items():
        took, experts = (measure.summary(samples) for samples in zip(*found, strict=True))
        table.append(
            {
                "rows a pass": str(rows),
                "first token, s": f"{took['median']:.2f}",
                "spread": f"{took['min']:.2f} to {took['max']:.2f}",
                f"× earlier than {choices[0]}": f"{base / took['median']:.2f}",
                "experts read": f"{experts['median']:.0f}",
            }
        )
        results.append({"pass_rows": rows, "prompt": args.prompt, "seconds": took, "experts": experts})
    facts = {"instruction_set": instruction_set(), "threads": model.packed.pool.threads}
    return table, {
        **facts,
        "planned_pass_rows": planned,
        "layers": model.spec.num_hidden_layers,
        "results": results,
    }


def first_token(model: Any, rows: int, tokens: list[int]) -> tuple[float, int]:
    """Seconds until the logits after a prompt that is read in passes of so many rows, and the experts these read."""
    sequence, seconds, experts = model.new_sequence(len(tokens) + 16), 0.0, 0
    for first in range(0, len(tokens), rows):
        part = tokens[first : first + rows]
        started = time.perf_counter()
        model.forward([Rows(sequence, part, int(first + len(part) == len(tokens)))])
        seconds += time.perf_counter() - started
        experts += model.experts_read
    return seconds, experts


def _report(
    args: argparse.Namespace,
    config: dict[str, Any],
    table: list[dict[str, str]],
    result: dict[str, Any],
    turns: list[mixture_llama.PeerTurn],
) -> int:
    """Print our lines and llama.cpp's turns, and everything as JSON."""
    if turns:
        speeds = {row["rows"]: row["tokens_per_s"] for row in result["results"] if row["requests"] == row["rows"]}
        table = mixture_llama.with_peer(table, speeds, turns)
    whole = published_config(args.model)
    cut = shown_layers(whole, None if result["layers"] == whole["num_hidden_layers"] else result["layers"])
    left_out = ", without embeddings of n-grams" if whole.get("ple_layer_ids") else ""
    shape = {"model": f"{args.model}{cut}{left_out}", "precision": args.precision}
    peer = {
        "llama_cpp_tokens_per_s": [dict(turn.speeds) for turn in turns],
        "llama_cpp_read_GB_per_s": [turn.read for turn in turns],
    }
    measure.report(table, {**result, **shape, "routing": "random", **peer})
    return 0


def _figures(
    model: Any, args: argparse.Namespace, requests: int, rows: int, turns: list[Turn], first: float
) -> tuple[dict[str, str], dict[str, Any]]:
    """A case's line of the table, and of the JSON. first: seconds of the first case."""
    took, experts, speed = (measure.summary(samples) for samples in zip(*turns, strict=True))
    tokens = requests * rows
    size = read_bytes(model, args.precision, experts["median"], requests * args.context, requests)
    share = measure.summary([size / 1e9 / each / seconds for seconds, _, each in turns])
    layers = max(1, len(model.spec.expert_layers))
    row = {
        "tokens/s": f"{tokens / took['median']:.1f}",
        "ms": f"{1e3 * took['median']:.2f}",
        "spread": f"{1e3 * took['min']:.2f} to {1e3 * took['max']:.2f}",
        "× one row": f"{took['median'] / first:.2f}",
        "experts a layer": f"{experts['median'] / layers:.1f}",
        "uniform": f"{chosen(model.spec, tokens) / layers:.1f}",
        "GB a pass": f"{size / 1e9:.2f}",
        "read GB/s": f"{speed['median']:.1f}",
        "% of read": f"{100 * share['median']:.0f}",
    }
    result = {"rows": tokens, "requests": requests, "seconds": took, "experts": experts, "bytes": size}
    result |= {"read_GB_per_s": speed, "share_of_read": share}
    return row, result | {"tokens_per_s": tokens / took["median"], "uniform_experts": chosen(model.spec, tokens)}


if __name__ == "__main__":
    raise SystemExit(measure.exit_code(lambda: run(parse()), print))
