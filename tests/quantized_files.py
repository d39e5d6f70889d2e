"""GPTQ and AWQ checkpoints of tiny models, written by plain loops after AutoGPTQ's and AutoAWQ's packing code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiny_models
import torch
from safetensors.torch import load_file, save_file

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # AutoAWQ, WQLinear_GEMM.from_linear
# Widths that are multiples of 128 and not, groups that end early, and a head size of 16.
SIZES = {"hidden_size": 192, "intermediate_size": 160, "num_attention_heads": 12, "num_key_value_heads": 4}


@dataclass
class Quantized:
    """A reference quantizer's result: q, scale and zero of every column, and what they stand for."""

    q: torch.Tensor  # (out, in)
    scales: torch.Tensor  # (out, groups) fp16
    zeros: torch.Tensor  # (out, groups)
    index: torch.Tensor  # (in)

    @property
    def weight(self) -> torch.Tensor:
        """Return a random weight (out, in) in fp32."""
        return (self.q - self.zeros[:, self.index]).float() * self.scales.float()[:, self.index]


def quantize(weight: torch.Tensor, group: int, *, sym: bool, order: torch.Tensor | None, bits: int = 4) -> Quantized:
    """Round to so many bits, min-max by group; in `order`, consecutive columns share a group (act-order)."""
    most = 2**bits - 1
    out, width = weight.shape
    size = width if group == -1 else group
    order = torch.arange(width) if order is None else order
    index = torch.empty(width, dtype=torch.long)
    index[order] = torch.arange(width) // size
    groups = int(index.max()) + 1
    scales, zeros = torch.empty(out, groups, dtype=torch.float16), torch.empty(out, groups, dtype=torch.long)
    for g in range(groups):
        part = weight[:, index == g]
        low, high = part.amin(1).clamp(max=-1e-3), part.amax(1).clamp(min=1e-3)
        if sym:
            low, high = -torch.maximum(-low, high), torch.maximum(-low, high)
        scales[:, g] = ((high - low) / most).half()
        zeros[:, g] = (most + 1) // 2 if sym else torch.round(-low / scales[:, g].float()).clamp(1, most).long()
    if sym:
        scales[1::2] *= -1  # as auto-round's symmetric scales may be
    q = torch.round(weight / scales.float()[:, index]).long() + zeros[:, index]
    return Quantized(q.clamp(0, most), scales, zeros, index)


def gptq_tensors(w: Quantized, *, v2: bool, bits: int = 4, model_ones: bool = False) -> dict[str, torch.Tensor]:
    """AutoGPTQ's QuantLinear.pack: values of a column one after the other in words; zeros less one, unless v2.

    model_ones: of 3-bit zeros, as GPTQModel's convert_gptq_v2_to_v1_format subtracts one.
    """
    zeros = w.zeros.t().contiguous()
    if model_ones:
        words = gptq_words(zeros, bits)
        for column in range(words.shape[1]):
            words[:, column] -= (0x24924924, 0x92492492, 0x49249249)[column % 3]
        qzeros = as_int32(words & 0xFFFFFFFF)
    else:
        qzeros = as_int32(gptq_words(zeros - (0 if v2 else 1) & 2**bits - 1, bits))
    return {
        "qweight": as_int32(gptq_words(w.q, bits)).t().contiguous(),
        "qzeros": qzeros,
        "scales": w.scales.t().contiguous(),
        "g_idx": w.index.int(),
    }


def gptq_words(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Rows of values (rows, count) as words of 32 bits, int64; a 3-bit value may lie in two of them."""
    words = torch.zeros(values.shape[0], values.shape[1] * bits // 32, dtype=torch.int64)
    for column in range(values.shape[1]):
        for bit in range(bits):
            at = column * bits + bit
            words[:, at // 32] |= (values[:, column] >> bit & 1) << at % 32
    return words


def awq_tensors(w: Quantized) -> dict[str, torch.Tensor]:
    """AutoAWQ's WQLinear_GEMM.from_linear: 8 output columns in a word, interleaved."""

    def pack(columns: torch.Tensor) -> torch.Tensor:
        packed = torch.zeros(columns.shape[0], columns.shape[1] // 8, dtype=torch.int64)
        for word in range(packed.shape[1]):
            for i in range(8):
                packed[:, word] |= columns[:, word * 8 + AWQ_ORDER[i]] << (4 * i)
        return as_int32(packed)

    return {"qweight": pack(w.q.t()), "qzeros": pack(w.zeros.t()), "scales": w.scales.t().contiguous()}


def as_int32(words: torch.Tensor) -> torch.Tensor:
    """The lowest 32 bits, as they are stored."""
    return torch.where(words >= 1 << 31, words - (1 << 32), words).int()


def save(
    folder: Path,
    variant: str = "llama",
    *,
    kind: str = "gptq",
    group: int = 128,
    sym: bool = False,
    act_order: bool | str = False,
    bits: int | Callable[[str], int] = 4,
    model_ones: bool = False,
    config: dict[str, Any] | None = None,
    keep: tuple[str, ...] = (),
    **changes: Any,
) -> tuple[Any, dict[str, Quantized]]:
    """Write a quantized tiny model; transformers' own model with the dequantized weights, and what was stored.

    kind: gptq, gptq_v2 or awq. act_order: True gives query, key and value one order and gate and up another, as GPTQ
    does; "each" gives every matrix its own. bits: of a value, perhaps by name. model_ones: see gptq_tensors. keep:
    linears (ends of names) that stay floats.
    """
    sizes = SIZES if variant.startswith(("llama", "qwen", "mistral")) else {}
    model = tiny_models.save(folder, variant, **(sizes | changes))
    tensors = load_file(folder / "model.safetensors")
    stored: dict[str, Quantized] = {}
    for name in [name for name in tensors if is_linear(name) and not name.endswith(keep or ("nothing",))]:
        weight = tensors.pop(name)
        order = None
        if act_order:
            generator = torch.Generator().manual_seed(_order_seed(name) if act_order is True else len(stored))
            order = torch.randperm(weight.shape[1], generator=generator)
        width = bits(name) if callable(bits) else bits
        w = stored[name] = quantize(weight, group, sym=sym, order=order, bits=width)
        v2 = kind == "gptq_v2"
        parts = awq_tensors(w) if kind == "awq" else gptq_tensors(w, v2=v2, bits=width, model_ones=model_ones)
        tensors |= {f"{name.removesuffix('weight')}{part}": tensor for part, tensor in parts.items()}
    if model.config.model_type.endswith(
        ("moe", "mixtral")
    ):  # transformers 5 has experts in other tensors than files have
        dense = tensors | {name: w.weight.contiguous() for name, w in stored.items()}
        save_file(dense, folder / "model.safetensors", metadata={"format": "pt"})
        model = type(model).from_pretrained(folder, attn_implementation="eager").eval()
    else:
        state = model.state_dict()
        model.load_state_dict({name: stored[name].weight if name in stored else state[name] for name in state})
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    named = declared(kind, group, sym, bool(act_order)) | ({} if callable(bits) else {"bits": bits})
    declare(folder, config or named | ({"meta": {"quantizer": ["gptqmodel:5.2.0"]}} if model_ones else {}))
    return model, stored


def declared(kind: str, group: int, sym: bool, act_order: bool) -> dict[str, Any]:
    """The `quantization_config` as AutoGPTQ, GPTQModel and AutoAWQ write it."""
    if kind == "awq":
        return {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": not sym}
    return {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": group,
        "sym": sym,
        "desc_act": act_order,
        "checkpoint_format": kind,
    }


def declare(folder: Path, quantization: dict[str, Any]) -> None:
    """Put a `quantization_config` into config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": quantization}))


def is_linear(name: str) -> bool:
    """Whether a tensor is what GPTQ and AWQ quantize: the matrices of the layers."""
    others = ("norm", ".ln_", ".gate.", "shared_expert_gate.")
    return ("layers." in name or ".h." in name) and name.endswith(".weight") and not any(x in name for x in others)


def _order_seed(name: str) -> int:
    shared = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj", "w1", "w3"), ("o_proj",), ("down_proj", "w2")
    layer = int(name.split("layers.")[1].split(".")[0])
    return layer * 10 + next(i for i, names in enumerate(shared) if any(part in name for part in names))


PROMPT = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43, 38, 32, 79, 50, 28, 84, 19, 7, 1, 69, 39]


def relative(x: torch.Tensor, y: torch.Tensor) -> float:
    return float((x - y).norm() / y.norm())


def reference_logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([PROMPT])).logits[0].float()
