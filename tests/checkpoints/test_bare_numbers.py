"""Weights in integers that nothing says how to scale: read as floats, they give a model that answers nonsense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from safetensors.torch import load_file, save_file

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError

LINEAR = "model.layers.0.mlp.up_proj.weight"


def _stored(folder: Path, dtype: torch.dtype, kind: str = "safetensors", scale: str = "", **config: Any) -> Path:
    tiny_models.save(folder, "llama")
    tensors = load_file(folder / "model.safetensors")
    weight = tensors[LINEAR]
    tensors[LINEAR] = (weight / weight.abs().max() * 100).to(dtype)
    if scale:
        tensors[LINEAR + scale] = weight.abs().max().reshape(1) / 100
    if kind == "safetensors":
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    else:
        (folder / "model.safetensors").unlink()
        torch.save(tensors, folder / "pytorch_model.bin")
    fields = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
@pytest.mark.parametrize(
    ("dtype", "scale", "config"),
    [
        (torch.int8, "", {}),
        (torch.int8, "_scale", {}),
        (torch.uint8, "", {}),
        (torch.int32, "", {}),
        (torch.int8, "", {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32}}),
        (torch.float8_e4m3fn, "_scale_inv", {}),
    ],
)
def test_numbers_without_a_scale_are_refused(tmp_path, kind, dtype, scale, config):
    folder = _stored(tmp_path, dtype, kind, scale, **config)
    with pytest.raises(IpexAssistError, match=rf"{LINEAR} \(\w+\) cannot be read: its numbers .* quantization_config"):
        open_checkpoint(str(folder)).check_weights()


def test_they_are_refused_by_every_loader(tmp_path):
    with pytest.raises(IpexAssistError, match="cannot be read: its numbers"):
        tiny_models.model(_stored(tmp_path, torch.int8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_floats_are_weights(tmp_path, dtype):
    open_checkpoint(str(_stored(tmp_path, dtype, scale="_scale"))).check_weights()
