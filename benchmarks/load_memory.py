"""Peak resident memory of loading one model, beside the size of its weights.

ipex-launch -- python benchmarks/load_memory.py --model FOLDER [--executor ipex] [--precision bf16]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import measure

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.executors.choose import resolve_executor
from ipex_assist.executors.load import load_model


def peak_bytes() -> int:
    """The process's highest resident size so far."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--precision", default="bf16")
    args = parser.parse_args()

    checkpoint = open_checkpoint(args.model)
    weights = checkpoint.parameter_bytes
    executor = resolve_executor(args.executor, args.precision)
    started = time.perf_counter()
    load_model(checkpoint, args.precision, executor)
    seconds, peak = time.perf_counter() - started, peak_bytes()
    row = {
        "executor": executor,
        "precision": args.precision,
        "weights GB": f"{weights / 1e9:.2f}",
        "peak GB": f"{peak / 1e9:.2f}",
        "1.25 × weights + 0.6 GB": f"{(1.25 * weights + 0.6e9) / 1e9:.2f}",
        "seconds": f"{seconds:.1f}",
    }
    measure.report([row], {"weights_bytes": weights, "peak_bytes": peak, "seconds": seconds, "executor": executor})


if __name__ == "__main__":
    main()
