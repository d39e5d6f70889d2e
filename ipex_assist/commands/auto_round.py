"""Intel's auto-round (https://github.com/intel/auto-round, arXiv 2309.05516), as a method of `ipex-assist quantize`."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.versions import install_command
from ipex_assist.tokenization.tokenizer import load_tokenizer

ITERS, SAMPLES, LENGTH = 200, 128, 2048  # auto-round's own defaults


@dataclass(frozen=True)
class Tuning:
    """How auto-round works. sym: without zero points. calibration: a text file; None is auto-round's own data.

    iters, nsamples, seqlen: steps a layer, and how many sequences of how many tokens they are taken on.
    """

    bits: int
    group_size: int
    sym: bool
    calibration: Path | None = None
    iters: int = ITERS
    nsamples: int = SAMPLES
    seqlen: int = LENGTH


def quantize_checkpoint(checkpoint: Checkpoint, output: Path, tuning: Tuning) -> None:
    """Write `output` in GPTQ's format. Raises UsageError where auto-round is missing or there is too little text."""
    try:
        from auto_round import AutoRound
    except ImportError as error:
        raise UsageError(
            f"--method auto-round needs Intel's auto-round, which cannot be imported ({error}): "
            f"{install_command('quantize')}, or use --method rtn"
        ) from error
    if not checkpoint.path.is_dir():
        raise UsageError(f"{checkpoint.source}: auto-round needs the Hugging Face folder of a model, not a GGUF file")
    options: dict[str, Any] = {
        "bits": tuning.bits,
        "group_size": tuning.group_size,
        "sym": tuning.sym,
        "iters": tuning.iters,
        "seqlen": tuning.seqlen,
        "nsamples": tuning.nsamples,
        "device_map": "cpu",
    }
    tokenizer = load_tokenizer(checkpoint)
    if tuning.calibration is not None:
        options["dataset"] = calibration(tokenizer, tuning.calibration, tuning.seqlen, tuning.nsamples)
        options["nsamples"] = len(options["dataset"])
        options["batch_size"] = min(8, len(options["dataset"]))
    work = output.with_name(f".{output.name}.{os.getpid()}")
    try:
        AutoRound(str(checkpoint.path), tokenizer, **options).quantize_and_save(str(work), format="auto_gptq")
        # Some versions write into a folder of the format's or the scheme's name.
        found = next(iter(sorted(work.rglob("config.json"), key=lambda path: len(path.parts))), None)
        if found is None or "quantization_config" not in json.loads(found.read_text()):
            raise IpexAssistError("auto-round wrote no quantized checkpoint; run with -v for its messages")
        if output.exists():
            output.rmdir()  # empty, as the command has checked
        os.replace(found.parent, output)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def calibration(tokenizer: Any, path: Path, length: int, count: int) -> list[Any]:
    """Return up to `count` sequences of `length` tokens (1, length) from a text. Raises UsageError."""
    import torch

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--calibration {path} cannot be read: {error}") from error
    tokens = tokenizer(text)["input_ids"]
    whole = len(tokens) // length
    if whole == 0:
        raise UsageError(f"--calibration {path}: {len(tokens)} tokens, fewer than one sequence of --seqlen {length}")
    return [torch.tensor([tokens[i * length : (i + 1) * length]]) for i in range(min(whole, count))]
