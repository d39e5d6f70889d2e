"""gpt-oss checkpoints in MXFP4, as OpenAI stores them, and the weights they hold by a plain decode in numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
STACKS = ("gate_up_proj", "down_proj")


def plain_decode(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """(experts, in, out) in fp32: the lower 4 bits of a byte come first, a scale is an exponent of 2, plus 127."""
    experts, columns, groups, _ = blocks.shape
    values = np.empty((experts, columns, groups, 32), np.float32)
    values[..., 0::2], values[..., 1::2] = VALUES[blocks & 15], VALUES[blocks >> 4]
    weights = np.ldexp(values.astype(np.float64), scales.astype(np.int64)[..., None] - 127).astype(np.float32)
    return weights.reshape(experts, columns, groups * 32).transpose(0, 2, 1)


def to_mxfp4(folder: Path, seed: int = 0, low: int = 121, high: int = 124) -> dict[str, np.ndarray]:
    """Give a saved gpt-oss random experts in MXFP4, with scales from 2^(low-127) on; what they are, by name."""
    random = np.random.default_rng(seed)
    tensors = load_file(folder / "model.safetensors")
    decoded = {}
    for name in [name for name in tensors if name.endswith(STACKS)]:
        experts, width, columns = tensors.pop(name).shape
        blocks = random.integers(0, 256, (experts, columns, width // 32, 16), np.uint8)
        scales = random.integers(low, high, (experts, columns, width // 32), np.uint8)
        tensors[name + "_blocks"], tensors[name + "_scales"] = torch.from_numpy(blocks), torch.from_numpy(scales)
        decoded[name] = plain_decode(blocks, scales)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    change_config(folder, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    return decoded


def change_config(folder: Path, **changes: Any) -> None:
    """Write other values into a checkpoint's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def load_decoded(model: Any, decoded: dict[str, np.ndarray]) -> None:
    """Put the decoded experts into transformers' own model of the checkpoint."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, weights in decoded.items():
            parameters[name].copy_(torch.from_numpy(weights))
