"""MXFP4: what is read is what a plain decode gives, an expert at a time, and what is wrong is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_models
import torch
from mxfp4_files import plain_decode, to_mxfp4
from safetensors.torch import load_file, save_file

from ipex_assist.checkpoints.mxfp4 import Mxfp4Checkpoint, Mxfp4Stack, decode
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError

pytestmark = pytest.mark.one_stack

GATE_UP = "model.layers.1.mlp.experts.gate_up_proj"


def test_every_value_at_every_scale() -> None:
    """A nibble in the wrong place, a sign, a scale's offset, numbers below 2^-126: bf16 holds each of them."""
    blocks = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16).repeat(253, 1)
    scales = np.arange(253, dtype=np.uint8)[None, :, None].repeat(16, 2)
    expected = plain_decode(blocks, scales)
    found = Mxfp4Stack(torch.from_numpy(blocks), torch.from_numpy(scales))[0]
    assert found.dtype == torch.bfloat16
    assert np.array_equal(found.float().numpy(), expected[0])
    assert np.array_equal(np.signbit(found.float().numpy()), np.signbit(expected[0]))


def test_a_checkpoint(tmp_path: Path) -> None:
    """Names, shapes and bytes are those of floats; what is loaded comes as stacks, what is asked for as tensors."""
    model = tiny_models.save(tmp_path, "gpt-oss")
    floats = open_checkpoint(str(tmp_path)).shapes()
    decoded = to_mxfp4(tmp_path)
    checkpoint = open_checkpoint(str(tmp_path))
    assert isinstance(checkpoint, Mxfp4Checkpoint)
    assert checkpoint.shapes() == floats
    checkpoint.check_weights()
    tensors = dict(checkpoint.tensors())
    assert list(tensors) == checkpoint.names()
    assert checkpoint.parameter_bytes == sum(tensor.nbytes for tensor in tensors.values())
    for name, expected in decoded.items():
        assert np.array_equal(tensors[name].float().numpy(), expected)
    [(_, stack), (name, plain)] = checkpoint.stream([GATE_UP, "model.norm.weight"])
    assert isinstance(stack, Mxfp4Stack)
    assert stack.shape == floats[GATE_UP]
    for expert in (3, 0, 0):  # in any order
        assert np.array_equal(stack[expert].float().numpy(), decoded[GATE_UP][expert])
    assert torch.equal(plain, model.model.norm.weight)
    assert name == "model.norm.weight"


def test_one_expert_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The experts of a layer as floats are four times the file; and gate and up of one are decoded once."""
    tiny_models.save(tmp_path, "gpt-oss")
    to_mxfp4(tmp_path)
    decoded = []

    def watched(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        decoded.append(tuple(scales.shape))
        return decode(blocks, scales)

    monkeypatch.setattr("ipex_assist.checkpoints.mxfp4.decode", watched)
    tiny_models.model(tmp_path, "torch", "bf16", exact=False)
    fields = tiny_models.VARIANTS["gpt-oss"]
    layers, experts = fields["num_hidden_layers"], fields["num_local_experts"]
    assert len(decoded) == 2 * layers * experts
    assert {len(shape) for shape in decoded} == {2}


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    """Scales that are no number would be weights that are none; parts that do not fit, weights of other experts."""
    tiny_models.save(tmp_path, "gpt-oss")
    to_mxfp4(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = load_file(path)
    for scale, said in ((255, "NaN"), (253, "infinity")):
        broken = {**whole, f"{GATE_UP}_scales": whole[f"{GATE_UP}_scales"].clone()}
        broken[f"{GATE_UP}_scales"][2, 7, 1] = scale
        save_file(broken, path, {"format": "pt"})
        with pytest.raises(IpexAssistError, match=f"gate_up_proj holds {said} in row 7, column 32 of expert 2, which"):
            tiny_models.model(tmp_path, "torch")
    save_file({name: tensor for name, tensor in whole.items() if name != f"{GATE_UP}_scales"}, path, {"format": "pt"})
    with pytest.raises(IpexAssistError, match=f"{GATE_UP}_blocks is there, and {GATE_UP}_scales is not"):
        open_checkpoint(str(tmp_path)).check_weights()
    save_file({**whole, f"{GATE_UP}_scales": whole[f"{GATE_UP}_scales"][:, 1:].contiguous()}, path, {"format": "pt"})
    with pytest.raises(IpexAssistError, match="have the shapes"):
        open_checkpoint(str(tmp_path)).check_weights()
    save_file({**whole, f"{GATE_UP}_scales": whole[f"{GATE_UP}_scales"].to(torch.int8)}, path, {"format": "pt"})
    with pytest.raises(IpexAssistError, match=r"are torch.uint8 and torch.int8"):
        list(open_checkpoint(str(tmp_path)).tensors())
