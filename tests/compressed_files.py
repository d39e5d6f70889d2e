"""Tiny checkpoints in compressed-tensors' layouts and in FP8, written by plain loops after what the packages document.

compressed_tensors 0.20 reads and writes the same (compressors/pack_quantized, naive_quantized); FP8 with blocks is what
DeepSeek, Qwen and MiniMax publish, and transformers' finegrained_fp8 reads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tiny_models
import torch
from quantized_files import SIZES, as_int32, declare, is_linear
from safetensors.torch import load_file, save_file

E4M3 = torch.float8_e4m3fn


@dataclass
class Scheme:
    """How linears are stored. kind: int4 or int8 (packed), plain8 (int8 as it is), fp8. block: (rows, columns)."""

    kind: str = "int4"
    group: int = -1  # input columns that share a scale; -1: all
    symmetric: bool = True
    act_order: bool = False
    block: tuple[int, int] | None = None
    tensor: bool = False  # one scale for all
    method: str = "compressed-tensors"
    scale_dtype: torch.dtype = torch.bfloat16
    keep: tuple[str, ...] = ()  # linears (ends of names) that stay floats
    extra: dict[str, Any] = field(default_factory=dict)  # into quantization_config

    @property
    def bits(self) -> int:
        return 4 if self.kind == "int4" else 8

    def declared(self) -> dict[str, Any]:
        """The `quantization_config` as the tools write it."""
        kept = ["lm_head", *self.keep]
        if self.method == "fp8":
            sizes = {} if self.block is None else {"weight_block_size": list(self.block)}
            return {
                **{"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"},
                **{"modules_to_not_convert": kept, **sizes, **self.extra},
            }
        strategy = "tensor" if self.tensor else "block" if self.block else "group" if self.group > 0 else "channel"
        weights = {
            **{"num_bits": self.bits, "type": "float" if self.kind == "fp8" else "int", "strategy": strategy},
            **{"symmetric": self.symmetric, "group_size": self.group if self.group > 0 else None},
            **{"actorder": "group" if self.act_order else None, "block_structure": self.block and list(self.block)},
        }
        rows = {"num_bits": 8, "type": weights["type"], "strategy": "token", "dynamic": True, "symmetric": True}
        packed = self.kind in ("int4", "int8")
        group = {
            "targets": ["Linear"],
            "weights": weights,
            "input_activations": None if packed else rows,
            "output_activations": None,
        }
        name = "pack-quantized" if packed else "float-quantized" if self.kind == "fp8" else "int-quantized"
        return {
            **{"quant_method": "compressed-tensors", "format": name, "quantization_status": "compressed"},
            **{"config_groups": {"group_0": group}, "ignore": kept, "kv_cache_scheme": None, **self.extra},
        }


def store(weight: torch.Tensor, scheme: Scheme) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The tensors of a linear by the last part of their names, and the fp32 matrix that they stand for."""
    columns, width = weight.shape
    rows, group = scheme.block or (1, scheme.group if scheme.group > 0 else width)
    if scheme.tensor:
        rows, group = columns, width
    index = torch.arange(width) // group
    if scheme.act_order:
        order = torch.randperm(width, generator=torch.Generator().manual_seed(_seed(width)))
        index[order] = torch.arange(width) // group
    most = 448.0 if scheme.kind == "fp8" else float(2 ** (scheme.bits - 1) - 1)
    blocks, groups = -(-columns // rows), int(index.max()) + 1
    scales, zeros = torch.empty(blocks, groups), torch.zeros(blocks, groups)
    for b in range(blocks):
        for g in range(groups):
            part = weight[b * rows : (b + 1) * rows, index == g]
            if scheme.symmetric:
                scales[b, g] = part.abs().max() / most
            else:
                low, high = part.min().clamp(max=0), part.max().clamp(min=0)
                scales[b, g] = (high - low) / (2 * most + 1)
                zeros[b, g] = torch.round(-most - 1 - low / scales[b, g]).clamp(-most - 1, most)
    scales = scales.to(scheme.scale_dtype)
    each, offset = (part.repeat_interleave(rows, 0)[:columns, index] for part in (scales.float(), zeros))
    if scheme.kind == "fp8":
        values = (weight / each).clamp(-448, 448).to(E4M3)
        dense = values.float() * each
    else:
        values = torch.round(weight / each + offset).clamp(-most - 1, most).to(torch.int8)
        dense = (values.float() - offset) * each
    name = "weight_scale_inv" if scheme.method == "fp8" else "weight_scale"
    tensors = {name: scales.reshape(1) if scheme.tensor else scales}
    if scheme.kind in ("int4", "int8"):
        tensors |= {"weight_packed": pack(values, scheme.bits), "weight_shape": torch.tensor(weight.shape)}
        if not scheme.symmetric:
            tensors["weight_zero_point"] = pack(zeros.to(torch.int8).t(), scheme.bits).t().contiguous()
        if scheme.act_order:
            tensors["weight_g_idx"] = index.int()
    else:
        tensors["weight"] = values
        if not scheme.symmetric:
            tensors["weight_zero_point"] = zeros.to(torch.int8)
    return tensors, dense


def pack(values: torch.Tensor, bits: int) -> torch.Tensor:
    """int8 (rows, columns) as words of 32 bits: value + half the range, the first in the lowest bits."""
    each = 32 // bits
    words = torch.zeros(values.shape[0], -(-values.shape[1] // each), dtype=torch.int64)
    for column in range(values.shape[1]):
        words[:, column // each] |= (values[:, column].long() + (1 << (bits - 1))) << (bits * (column % each))
    return as_int32(words)


def save(
    folder: Path, variant: str = "llama", scheme: Scheme | None = None, **changes: Any
) -> tuple[Any, dict[str, torch.Tensor]]:
    """Write a tiny model so; transformers' own model with the dequantized weights, and these by name."""
    scheme = scheme or Scheme()
    sizes = SIZES if variant.startswith(("llama", "qwen2", "mistral")) and "moe" not in variant else {}
    model = tiny_models.save(folder, variant, **(sizes | changes))
    path = folder / "model.safetensors"
    tensors = load_file(path)
    dense: dict[str, torch.Tensor] = {}
    for name in [name for name in tensors if is_linear(name) and not name.endswith(scheme.keep or ("nothing",))]:
        stored, dense[name] = store(tensors.pop(name), scheme)
        tensors |= {f"{name.removesuffix('weight')}{part}": tensor for part, tensor in stored.items()}
    floats = {name: tensor for name, tensor in tensors.items() if not is_part(name, dense)}
    save_file(floats | {name: part.contiguous() for name, part in dense.items()}, path, metadata={"format": "pt"})
    reference = type(model).from_pretrained(folder, attn_implementation="eager").float().eval()
    save_file(tensors, path, metadata={"format": "pt"})
    declare(folder, scheme.declared())
    return reference, dense


def is_part(name: str, dense: dict[str, torch.Tensor]) -> bool:
    """Whether a stored tensor belongs to a quantized linear."""
    prefix, _, leaf = name.rpartition(".")
    return leaf.startswith("weight") and f"{prefix}.weight" in dense


def change(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    """Replace tensors of a saved checkpoint; None removes one."""
    path = folder / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(path).items() if name not in changes}
    tensors |= {name: tensor.contiguous() for name, tensor in changes.items() if tensor is not None}
    save_file(tensors, path, metadata={"format": "pt"})


def shard(folder: Path, count: int = 3) -> None:
    """Distribute the tensors over files so that those of a linear lie in different ones."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    files = [f"model-{part:05}-of-{count:05}.safetensors" for part in range(1, count + 1)]
    where = {name: files[number % count] for number, name in enumerate(sorted(tensors))}
    for file in files:
        save_file({name: tensors[name] for name in where if where[name] == file}, folder / file, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


def _seed(width: int) -> int:
    """Matrices of one width share an order, so that query, key and value do."""
    return width
