"""Prompts on the native core: tokens a second, and the share of what the cores can multiply at most.

    ipex-launch -- python benchmarks/prompts.py [--models qwen2.5-1.5b] [--precisions …] [--tokens 512,4096]
        [--kv-precision bf16]
    ipex-launch -- python benchmarks/prompts.py --models FILE.gguf [--precisions stored,int4] [--llama-cpp FOLDER]

Models have the published shapes and random weights, or are GGUF files, of which llama-batched-bench of llama.cpp reads
as many tokens after ours, in turns. "peak" is what the same threads multiply with nothing to read, by the instructions
of a precision, measured between the samples (int4 and blocks of files are multiplied as int8, attention as bf16). A
prompt's floor is its products ÷ that: of linears, tokens · weights; of attention, what each token sees, scores and
values. Lengths take turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import forward
import measure
import torch
from mixture_llama import PROGRAM

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.native.loading import planned_pool
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.models import find
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import weight_shape
from ipex_assist.native.library import instruction_set, peak


def linear_weights(architecture: str, spec: DecoderSpec) -> int:
    """Return how many weights the linears of all layers have; the head has one row, and counts as nothing."""
    found = find(architecture)
    assert found is not None
    shapes = [weight_shape(spec, weight) for weight in found.weights(spec) if weight.startswith("layers.")]
    return sum(shape[0] * shape[1] for shape in shapes if len(shape) == 2)


def attention_products(spec: DecoderSpec, tokens: int) -> int:
    """Return the products of scores and of values, of what each token of a prompt sees."""
    return sum(layer.attention.query_size for layer in spec.layers) * tokens * (tokens + 1)


def loaded(name: str, precision: str, kv_precision: str) -> tuple[NativeModel, int]:
    """A model of forward.py or of a GGUF file, and the weights of its linears."""
    if not name.endswith(".gguf"):
        packed = forward.load(name, precision)
        return NativeModel(packed, kv_precision=kv_precision), linear_weights(forward.CONFIGS[name][0], packed.spec)
    checkpoint = open_checkpoint(name, offline=True)
    model = load_model(LoadRequest(checkpoint, precision, "native", kv_precision=kv_precision))
    assert isinstance(model, NativeModel)
    return model, linear_weights(checkpoint.config["architectures"][0], model.packed.spec)


def one_prompt(model: NativeModel, length: int) -> tuple[float, float]:
    """Seconds of a prompt, and attention's share of them."""
    sequence = model.new_sequence(length + 16)
    model.packed.cycles()
    started = time.perf_counter()
    model.extend(sequence, [1 + i % 1000 for i in range(length)], last=1)
    seconds = time.perf_counter() - started
    cycles = model.packed.cycles()
    return seconds, cycles.attention / cycles.total


def their_prompt(programs: Path, file: str, length: int) -> float:
    """Tokens/s at which llama.cpp reads a prompt of a file. Raises IpexAssistError where it says none."""
    threads = str(planned_pool().threads)
    argv = [str(programs / PROGRAM), "-m", file, "-c", str(length + 256), "-npp", str(length), "-ntg", "1", "-npl", "1"]
    argv += ["-b", str(length), "-t", threads, "-tb", threads, "--output-format", "jsonl"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(lines) != 1:
        raise IpexAssistError(f"{PROGRAM} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
    return float(lines[0]["speed_pp"])


def measured(args: argparse.Namespace, name: str, precision: str) -> list[dict[str, Any]]:
    """The results of one model in one precision, by lengths."""
    model, weights = loaded(name, precision, args.kv_precision)
    pool, instructions = planned_pool(), "int8" if precision == "stored" else precision
    turns: dict[int, list[tuple[float, float]]] = {length: [] for length in args.tokens}
    theirs: dict[int, list[float]] = {length: [] for length in args.tokens}
    peaks: dict[str, list[float]] = {instructions: [], "bf16": []}
    for repeat in range(args.repeats + 1):
        for each, found in peaks.items():
            found.append(peak(pool, each))
        for length in args.tokens:
            turn = one_prompt(model, length)
            if repeat:  # the first warms up
                turns[length].append(turn)
                if args.llama_cpp is not None and precision == "stored":
                    theirs[length].append(their_prompt(args.llama_cpp, name, length))
    fastest = {each: max(found) for each, found in peaks.items()}
    results = []
    for length in args.tokens:
        attention = attention_products(model.packed.spec, length) / fastest["bf16"]
        results.append(
            {
                "model": Path(name).name,
                "precision": precision,
                "tokens": length,
                "seconds": measure.summary([seconds for seconds, _ in turns[length]]),
                "attention": measure.summary([share for _, share in turns[length]])["median"],
                "floor_s": length * weights / fastest[instructions] + attention,
                "peak": fastest[instructions],
                "peaks": peaks,
                "llama_cpp": theirs[length],
            }
        )
    return results


def row_of(result: dict[str, Any]) -> dict[str, str]:
    """A result's line of the table."""
    seconds, theirs = result["seconds"], result["llama_cpp"]
    speed = result["tokens"] / seconds["median"]
    return {
        **{name: str(result[name]) for name in ("model", "precision", "tokens")},
        "seconds": f"{seconds['median']:.2f}",
        "spread": f"{seconds['min']:.2f} to {seconds['max']:.2f}",
        "tokens/s": f"{speed:.0f}",
        "peak, G/s": f"{result['peak'] / 1e9:.0f}",
        "of bf16": f"{max(result['peaks']['bf16']) / 1e9:.0f}",
        "% of peak": f"{100 * result['floor_s'] / seconds['median']:.0f}",
        "attention %": f"{100 * result['attention']:.0f}",
        "llama.cpp": f"{statistics.median(theirs):.0f}" if theirs else "",
        "÷ llama.cpp": f"{speed / statistics.median(theirs):.2f}" if theirs else "",
    }


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="qwen2.5-1.5b", help="names of forward.py, or .gguf files")
    parser.add_argument("--precisions", default=",".join(forward.PRECISIONS))
    parser.add_argument("--tokens", type=lambda text: [int(each) for each in text.split(",")], default=[512, 4096])
    parser.add_argument("--kv-precision", default="bf16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--llama-cpp", type=Path, metavar="FOLDER", help="where llama.cpp's programs are")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print a table and JSON."""
    args = parse(argv)
    torch.set_num_threads(1)
    results: list[dict[str, Any]] = []
    for name in args.models.split(","):
        for precision in args.precisions.split(","):
            results += measured(args, name, precision)
            print(row_of(results[-1]), flush=True)
    table = [row_of(result) for result in results]
    measure.report(table, {"instruction_set": instruction_set(), "threads": planned_pool().threads, "results": results})


if __name__ == "__main__":
    main()
