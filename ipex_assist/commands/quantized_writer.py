"""Writes a checkpoint with its layers' matrices in 4 bits, in GPTQ's format, tensor by tensor."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.checkpoints.packed_size import packed_bytes
from ipex_assist.checkpoints.writer import ShardWriter
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.memory import gib
from ipex_assist.models import Architecture
from ipex_assist.models.weights import check_numbers, resolve, stored_form
from ipex_assist.quantization import gptq
from ipex_assist.quantization.rtn import quantize, relative_error
from ipex_assist.version import __version__

# Weights in other formats, and files that are written here.
_NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".index.json")
_WRITTEN = ("config.json", "quantize_config.json", "quant_config.json")
_LARGEST_COPY = 64 << 20


@dataclass
class Written:
    """Counts what a run wrote, and how far it is from the original."""

    matrices: int = 0
    bytes: int = 0
    squared_error: float = 0.0
    squared_norm: float = 0.0


def write_rtn(
    checkpoint: Checkpoint, architecture: Architecture, output: Path, group: int, *, sym: bool, progress: bool = False
) -> Written:
    """Quantize by rtn.py into the new folder `output`, which appears only when it is complete.

    Raises IpexAssistError where a matrix does not fit the format or holds what is no number, or the disk has no room.
    """
    spec = checkpoint.decoder_spec()
    sources = stored_form(architecture.weights(spec), checkpoint.names())
    wanted = resolve(sources, checkpoint.names())
    linears = {name for name, ours in wanted.items() if all(map(_is_linear, ours))}
    canonical = {name: sources[ours[0]].name for name, ours in wanted.items()}
    if any(sources[ours[0]].transposed for ours in wanted.values()):
        raise IpexAssistError(
            f"{checkpoint.source}: its matrices are stored (in, out), for which GPTQ's format has no place. "
            "--precision int4 quantizes such a model when it is loaded"
        )
    if any(source.expert is not None for source in sources.values()):
        raise IpexAssistError(
            f"{checkpoint.source}: all experts of a layer lie in one tensor, for which GPTQ's format has no place. "
            "--precision int4 quantizes such a model when it is loaded"
        )
    _check_shapes(checkpoint, linears)
    work = output.with_name(f".{output.name}.{os.getpid()}")
    written = Written()
    try:
        work.mkdir(parents=True)
        _check_room(checkpoint, work)
        shards = ShardWriter(work)
        count, bar = len(checkpoint.names()), f"quantizing {checkpoint.source}"
        for name, tensor in tqdm(checkpoint.tensors(), total=count, desc=bar, unit=" tensors", disable=not progress):
            check_numbers(f"{checkpoint.source}: {name}", tensor)
            target = canonical.get(name, name)
            if name not in linears:
                shards.add(target, tensor)
                continue
            weight = quantize(tensor, group, sym=sym)
            error, norm = relative_error(tensor, weight)
            written.squared_error += error
            written.squared_norm += norm
            written.matrices += 1
            for part, packed in gptq.pack(weight).items():
                shards.add(target.removesuffix("weight") + part, packed)
            del tensor, weight
        shards.close()
        written.bytes = shards.total
        _write_configs(checkpoint, work, group, sym)
        if output.exists():
            output.rmdir()  # empty, as the command has checked
        os.replace(work, output)
    except OSError as error:
        raise IpexAssistError(f"{output} cannot be written: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return written


def _is_linear(ours: str) -> bool:
    return ours.startswith("layers.") and ours.endswith("_proj.weight")


def _check_shapes(checkpoint: Checkpoint, linears: set[str]) -> None:
    for name, shape in checkpoint.shapes().items():
        if name in linears and any(side % 8 for side in shape):
            raise IpexAssistError(
                f"{checkpoint.source}: {name} is {shape[0]} x {shape[1]}. GPTQ's format packs 8 values into a word, so "
                "that both must be multiples of 8. --precision int4 quantizes such a model when it is loaded"
            )


def _check_room(checkpoint: Checkpoint, folder: Path) -> None:
    need = packed_bytes(checkpoint.shapes(), "int4") + (1 << 28)
    free = shutil.disk_usage(folder).free
    if free < need:
        raise IpexAssistError(f"{folder.parent} has {gib(free)} free, about {gib(need)} are needed")


def _write_configs(checkpoint: Checkpoint, folder: Path, group: int, sym: bool) -> None:
    declared = gptq_config(group, sym)
    _write_json(folder / "config.json", {**checkpoint.config, "quantization_config": declared})
    _write_json(folder / "quantize_config.json", declared)  # where AutoGPTQ looks
    if checkpoint.path.is_dir():
        for file in checkpoint.path.iterdir():
            weights = file.name.endswith(_NOT_COPIED) or file.name in _WRITTEN or file.name.startswith(".")
            if file.is_file() and not weights and file.stat().st_size <= _LARGEST_COPY:
                shutil.copy(file, folder / file.name)
        return
    from ipex_assist.tokenization.tokenizer import load_tokenizer

    load_tokenizer(checkpoint).save_pretrained(folder)
    if checkpoint.generation_config:
        _write_json(folder / "generation_config.json", checkpoint.generation_config)


def gptq_config(group: int, sym: bool) -> dict[str, Any]:
    """The `quantization_config` of what we write, with the keys that GPTQ's readers ask for."""
    return {
        "quant_method": "gptq",
        "checkpoint_format": "gptq",
        "bits": 4,
        "group_size": group,
        "sym": sym,
        "desc_act": False,
        "static_groups": False,
        "true_sequential": False,
        "damp_percent": 0.01,
        "lm_head": False,
        "meta": {"quantizer": [f"ipex-assist:{__version__}"], "method": "rtn, clip-searched"},
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
