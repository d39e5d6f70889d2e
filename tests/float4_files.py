"""Tiny checkpoints in 4-bit floats (NVFP4, MXFP4, bitsandbytes' NF4 and FP4), LLM.int8 and BitNet, by plain loops.

After what the packages' own code documents: compressed_tensors 0.13 (compressors/quantized_compressors/fp4_quantized),
modelopt.torch.export, bitsandbytes 0.48 (functional.py: quantize_4bit, QuantState.as_dict), transformers 5
(integrations/bitnet.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny_models
import torch
from quantized_files import declare, is_linear
from safetensors.torch import load_file, save_file

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
# bitsandbytes.functional.get_4bit_type, both.
NF4 = [
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
]
FP4 = [value / 12 for value in (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)]
FP4 += [-value for value in FP4]
# Widths that are multiples of the largest blocks, and heads of 32.
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4}

Stored = tuple[dict[str, torch.Tensor], torch.Tensor]  # by the last parts of their names; the fp32 matrix


def nearest(values: torch.Tensor, table: list[float]) -> torch.Tensor:
    """Codes of the nearest values of a table."""
    return (values[..., None] - torch.tensor(table)).abs().argmin(-1)


def nvfp4(weight: torch.Tensor, modelopt: bool = False) -> Stored:
    """16 input columns share a scale in E4M3, and all a float by which they are divided; multiplied in modelopt's."""
    columns, width = weight.shape
    of_all = (weight.abs().max() / (6 * 448)).float()  # modelopt's; compressed-tensors stores its inverse
    groups = weight.view(columns, width // 16, 16)
    scales = (groups.abs().amax(-1) / 6 / of_all).to(torch.float8_e4m3fn)
    each = scales.float()[..., None]
    signed = [*E2M1, *(-value for value in E2M1)]
    codes = nearest(groups / (each * of_all).clamp(min=1e-30), signed)
    dense = torch.empty_like(groups)
    inverse = 1 / of_all
    for code, value in enumerate(signed):
        unscaled = value * each.expand_as(dense)
        dense = torch.where(codes == code, unscaled * of_all if modelopt else unscaled / inverse, dense)
    flat = codes.view(columns, width)
    packed = (flat[:, 0::2] | flat[:, 1::2] << 4).to(torch.uint8)
    if modelopt:
        parts = {"weight": packed, "weight_scale": scales, "weight_scale_2": of_all, "input_scale": torch.tensor(0.5)}
    else:
        parts = {"weight_packed": packed, "weight_scale": scales, "weight_global_scale": inverse.reshape(1)}
        parts["input_global_scale"] = torch.ones(1)
    return parts, dense.view(columns, width)


def mxfp4(weight: torch.Tensor) -> Stored:
    """32 input columns share a power of two."""
    columns, width = weight.shape
    groups = weight.view(columns, width // 32, 32)
    exponents = torch.floor(torch.log2(groups.abs().amax(-1))) - 2
    signed = [*E2M1, *(-value for value in E2M1)]
    codes = nearest(groups / torch.exp2(exponents)[..., None], signed)
    dense = torch.tensor(signed)[codes] * torch.exp2(exponents)[..., None]
    flat = codes.view(columns, width)
    packed = (flat[:, 0::2] | flat[:, 1::2] << 4).to(torch.uint8)
    return {"weight_packed": packed, "weight_scale": (exponents + 127).to(torch.uint8)}, dense.view(columns, width)


def bitsandbytes(weight: torch.Tensor, kind: str = "nf4", nested: bool = True, block: int = 64) -> Stored:
    """Blocks of the flattened matrix; their scales, perhaps in bytes of a map, less their mean."""
    table = NF4 if kind == "nf4" else FP4
    flat = weight.flatten()
    padded = torch.nn.functional.pad(flat, (0, -len(flat) % block)).view(-1, block)
    absmax = padded.abs().amax(-1)
    codes = nearest(padded / absmax[:, None].clamp(min=1e-30), table).flatten()[: len(flat)]
    state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": list(weight.shape)}
    parts = {"weight.quant_map": torch.tensor(table)}
    if nested:
        offset = float(absmax.mean())
        scales = torch.nn.functional.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
        largest = scales.abs().amax(-1)
        # create_dynamic_map's values do not matter here: any 256 in ascending order.
        values = torch.linspace(-1, 1, 256) ** 3
        chosen = (scales[..., None] / largest[:, None, None] - values).abs().argmin(-1)
        absmax = ((values[chosen] * largest[:, None]).flatten() + offset)[: len(absmax)]
        parts |= {"weight.absmax": chosen.flatten()[: len(absmax)].to(torch.uint8)}
        parts |= {"weight.nested_absmax": largest, "weight.nested_quant_map": values}
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
    else:
        parts["weight.absmax"] = absmax
    parts["weight"] = (codes[0::2] << 4 | codes[1::2]).to(torch.uint8).reshape(-1, 1)
    data = json.dumps(state).encode()
    parts[f"weight.quant_state.bitsandbytes__{kind}"] = torch.tensor(list(data), dtype=torch.uint8)
    dense = torch.tensor([table[code] for code in codes.tolist()]) * absmax.repeat_interleave(block)[: len(flat)]
    return parts, dense.view(weight.shape)


def llm_int8(weight: torch.Tensor) -> Stored:
    """int8 rows by their largest value, which is 127."""
    largest = weight.abs().amax(1)
    values = torch.round(weight / largest[:, None] * 127).to(torch.int8)
    parts = {"weight": values, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return parts, values.float() * (largest / 127)[:, None]


def bitnet(weight: torch.Tensor, auto: bool = False) -> Stored:
    """-1, 0 and 1 of four quarters of the rows in a byte; divided by their scale, or (autobitlinear) multiplied."""
    mean = weight.abs().mean()
    ternary = torch.round(weight / mean).clamp(-1, 1)
    quarter = weight.shape[0] // 4
    packed = torch.zeros(quarter, weight.shape[1], dtype=torch.uint8)
    for i in range(4):
        packed |= ((ternary[i * quarter : (i + 1) * quarter] + 1).to(torch.uint8)) << 2 * i
    scale = (mean if auto else 1 / mean).bfloat16().reshape(1)
    dense = ternary * scale.float() if auto else ternary * (1 / scale.float())
    return {"weight": packed, "weight_scale": scale}, dense


_NVFP4 = {
    **{"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "ignore": ["lm_head"]},
    "config_groups": {
        "group_0": {"weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}}
    },
}
LAYOUTS: dict[str, tuple[Callable[[torch.Tensor], Stored], dict[str, Any]]] = {
    "nvfp4": (nvfp4, _NVFP4),
    "modelopt": (
        lambda weight: nvfp4(weight, modelopt=True),
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
    ),
    "mxfp4": (mxfp4, _NVFP4 | {"format": "mxfp4-pack-quantized"}),
    "nf4": (bitsandbytes, {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    "nf4-plain-scales": (
        lambda weight: bitsandbytes(weight, nested=False, block=128),
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
    ),
    "fp4": (
        lambda weight: bitsandbytes(weight, "fp4"),
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
    ),
    "llm-int8": (llm_int8, {"quant_method": "bitsandbytes", "load_in_8bit": True}),
    "bitnet": (bitnet, {"quant_method": "bitnet"}),
    "autobitlinear": (
        lambda weight: bitnet(weight, auto=True),
        {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"},
    ),
}


def save(folder: Path, layout: str, **changes: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """Write a tiny Llama so; transformers' own model with the dequantized weights, and these by name."""
    store, declared = LAYOUTS[layout]
    model = tiny_models.save(folder, "llama", **(SIZES | changes))
    tensors = load_file(folder / "model.safetensors")
    dense = {}
    for name in [name for name in tensors if is_linear(name)]:
        parts, dense[name] = store(tensors.pop(name).float())
        tensors |= {f"{name.removesuffix('weight')}{part}": tensor.contiguous() for part, tensor in parts.items()}
    state = model.state_dict()
    model.load_state_dict({name: dense.get(name, state[name]) for name in state})
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    declare(folder, declared)
    assert all(math.prod(matrix.shape) for matrix in dense.values())
    return model, dense
