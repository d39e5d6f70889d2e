"""GGUF files of families whose tensors change on the way, written as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import gguf_layouts
import numpy
from checkpoint_files import finish

from ipex_assist.checkpoints.open import open_checkpoint


def convert(
    folder: Path, arch: str, block_count: int | None = None, fused: bool = False, q8: bool = False, **metadata: Any
) -> Path:
    """The file of a checkpoint, in F32. metadata: more than the config says. fused: gate and up of experts in one
    tensor. q8: matrices in Q8_0, but those that llama.cpp leaves in floats.
    """
    checkpoint = open_checkpoint(str(folder))
    config = checkpoint.config | checkpoint.config.get("text_config", {})
    layers = config.get("num_hidden_layers") or len(config["layers_block_type"])
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, arch)
    blocks = layers if block_count is None else block_count
    for key, value in (gguf_layouts.metadata(config, arch, blocks) | metadata).items():
        gguf_layouts.add(writer, key if key.startswith("tokenizer.") else f"{arch}.{key}", value)
    tensors = gguf_layouts.tensors_of(dict(checkpoint.tensors()), config, arch, blocks)
    found = {
        name: numpy.ascontiguousarray((tensor.float() if tensor.is_floating_point() else tensor).numpy())
        for name, tensor in tensors
    }
    for name in [each for each in found if fused and ".ffn_gate_exps." in each]:
        gate, up = found.pop(name), found.pop(name.replace("_gate_", "_up_"))
        found[name.replace("_gate_", "_gate_up_")] = numpy.concatenate((gate, up), axis=1)
    for name, values_ in found.items():
        matrix = values_.dtype == numpy.float32 and values_.ndim > 1 and values_.shape[-1] % 32 == 0
        if q8 and matrix and not any(word in name for word in ("norm", "conv", "gate_inp", "ssm_x", "ssm_dt", "ssm_a")):
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(values_, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values_)
    if arch == "apertus":
        for number in ("alpha_p", "alpha_n", "beta", "eps"):
            each = [float(t) for name, t in checkpoint.tensors() if name.endswith(f"act_fn.{number}")]
            writer.add_array(f"xielu.{number}", each)
    finish(writer)
    return path
