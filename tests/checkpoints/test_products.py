"""Matrices that are a tensor and the product of two others: their numbers, and checkpoints that lack a part."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_models
import torch
from safetensors.torch import load_file, save_file

from ipex_assist.checkpoints.lora_folder import LoraPart
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.adapters import adapter_matrices
from ipex_assist.models import find

VARIANTS = tiny_models.known("zamba2", "zamba2-adapted", "zamba2-one-block")
pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not VARIANTS, reason="this transformers has no such family")]
UP = "model.layers.1.shared_transformer.feed_forward.gate_up_proj"


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_are_those_of_the_whole(variant: str, tmp_path: Path) -> None:
    """Every product, whole and in ranges of rows, is base + up · down of the layer's own adapter."""
    tiny_models.save(tmp_path, variant)
    checkpoint, tensors = open_checkpoint(str(tmp_path)), load_file(tmp_path / "model.safetensors")
    made = {name: tensor for name, tensor in checkpoint.tensors() if "+" in name}
    assert len(made) == 3 * (4 if variant == "zamba2-adapted" else 1)
    assert not set(made) & set(tensors)
    for name, tensor in made.items():
        assert checkpoint.shapes()[name] == tuple(tensor.shape)
        read = checkpoint.row_reader(name)
        assert read is not None
        torch.testing.assert_close(torch.cat((read(0, 16), read(16, len(tensor)))), tensor)
    if variant == "zamba2":
        up, down = (tensors[f"{UP}_adapter_list.2.{number}.weight"] for number in (1, 0))
        here = f"{UP.replace('layers.1', 'layers.4')}.weight+2"
        torch.testing.assert_close(made[here], tensors[f"{UP}.weight"] + up @ down)


@pytest.mark.parametrize("kind", ["missing", "of another rank"])
def test_parts_that_do_not_belong_together(kind: str, tmp_path: Path) -> None:
    """A block without the adapter of one of its layers would write another model's text."""
    tiny_models.save(tmp_path, "zamba2")
    path, name = tmp_path / "model.safetensors", f"{UP}_adapter_list.2.0.weight"
    tensors = load_file(path)
    tensors[name] = tensors[name][:5].clone()
    if kind == "missing":
        del tensors[name]
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(IpexAssistError, match=f"lacks {name}" if kind == "missing" else "do not belong together"):
        open_checkpoint(str(tmp_path)).check_weights()


def test_no_adapters_of_shared_blocks(tmp_path: Path) -> None:
    """One of a module that several layers have would change only one of them, or all."""
    tiny_models.save(tmp_path, "zamba2")
    checkpoint = open_checkpoint(str(tmp_path))
    architecture, spec = find(checkpoint.architecture), checkpoint.decoder_spec()
    assert architecture is not None
    module = "model.layers.1.shared_transformer.self_attn.o_proj"
    part = LoraPart(module, torch.zeros(4, 128), torch.zeros(64, 4), 1.0)
    with pytest.raises(UsageError, match="blocks that several layers share take none"):
        list(adapter_matrices(spec, architecture.weights(spec), [part], "folder"))
