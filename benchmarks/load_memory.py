"""Peak resident memory of loading one model, beside the size of its weights and of what they become.

    ipex-launch -- python benchmarks/load_memory.py --model FOLDER [--executor ipex] [--precision bf16]
    ipex-launch -- python benchmarks/load_memory.py --write Qwen/Qwen3-30B-A3B --layers 4 --folder FOLDER [--fp8]

The second form first writes a checkpoint of these published shapes, with N layers and random weights, tensor by
tensor into safetensors files; a process of its own loads it, so that its peak is that of loading alone. --fp8 stores
its linears in e4m3 with a scale for each 128 x 128 of a matrix, as DeepSeek does, and keeps them so.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import measure

from ipex_assist.bench.pairs import first_layers, published_config
from ipex_assist.bench.random_checkpoint import RandomCheckpoint
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.checkpoints.writer import ShardWriter
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.select_executor import resolve_executor

if TYPE_CHECKING:
    import torch

BLOCK = 128  # rows and columns of a matrix that share a scale
SHARD_BYTES = 256 << 20  # held in memory while it is gathered; a larger tensor is a file of its own


def peak_bytes() -> int:
    """The process's highest resident size so far."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def write(source: str, layers: int | None, folder: Path, fp8: bool = False) -> None:
    """A checkpoint of a model's published shapes, or of its first layers, with random weights."""
    config = published_config(source)
    if layers is not None:
        config = first_layers(config, layers)
    if fp8:
        config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]}
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise UsageError(f"--folder {folder} is not empty; name another one")
    try:
        writer = ShardWriter(folder, SHARD_BYTES)
        for name, tensor in RandomCheckpoint(source, config).tensors():
            linear = tensor.dim() == 2 and "_proj" in name and tensor.shape[0] > BLOCK
            for part, values in in_fp8(name, tensor).items() if fp8 and linear else ((name, tensor),):
                writer.add(part, values)
        writer.close()
        (folder / "config.json").write_text(json.dumps({**config, "torch_dtype": "bfloat16"}, indent=2))
    except OSError as error:
        raise IpexAssistError(f"{folder}: {error}. Is there room?") from error


def in_fp8(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """A matrix in e4m3, and the scale of each of its blocks."""
    import torch

    rows, columns = (-(-size // BLOCK) for size in tensor.shape)
    return {name: tensor.to(torch.float8_e4m3fn), f"{name}_scale_inv": torch.ones(rows, columns)}


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options: a model, or what to write and where."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--write", metavar="MODEL")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--fp8", action="store_true")
    args = parser.parse_args(argv)
    if (args.write is None) == (args.model is None) or (args.write is None) != (args.folder is None):
        parser.error("give --model FOLDER, or --write MODEL and --folder FOLDER")
    return args


def run(args: argparse.Namespace) -> int:
    """Measure, print a table and JSON."""
    if args.write is not None:
        write(args.write, args.layers, args.folder, args.fp8)
        more = ["--executor", args.executor, "--precision", "fp8" if args.fp8 else args.precision]
        return subprocess.run([sys.executable, __file__, "--model", str(args.folder), *more]).returncode
    checkpoint = open_checkpoint(args.model)
    weights = checkpoint.parameter_bytes
    executor = resolve_executor(args.executor, args.precision)
    before, started = peak_bytes(), time.perf_counter()
    model = load_model(LoadRequest(checkpoint, args.precision, executor))
    seconds, peak = time.perf_counter() - started, peak_bytes()
    packed = getattr(getattr(model, "packed", None), "nbytes", None)  # the native core's
    row = {
        "executor": executor,
        "precision": args.precision,
        "weights GB": f"{weights / 1e9:.2f}",
        "packed GB": "" if packed is None else f"{packed / 1e9:.2f}",
        "before GB": f"{before / 1e9:.2f}",
        "peak GB": f"{peak / 1e9:.2f}",
        "peak ÷ packed": "" if packed is None else f"{peak / packed:.2f}",
        "1.25 × weights + 0.6 GB": f"{(1.25 * weights + 0.6e9) / 1e9:.2f}",
        "seconds": f"{seconds:.1f}",
    }
    result = {"weights_bytes": weights, "packed_bytes": packed, "before_bytes": before, "peak_bytes": peak}
    measure.report([row], {**result, "seconds": seconds, "executor": executor})
    return 0


if __name__ == "__main__":
    raise SystemExit(measure.exit_code(lambda: run(parse()), print))
