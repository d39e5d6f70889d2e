"""A wrong number in any mixer or MLP of the core is found by one command, with its layer and operation."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from safetensors.torch import load_file, save_file

from ipex_assist.executors import compare
from ipex_assist.executors.torch.mixers import gated_delta
from ipex_assist.native.library import unavailable
from ipex_assist.native.watch import OperationOutput

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]

# A model, one of its weights in a layer after the first, and what must be found: the layer, operation and buffer.
PLANTED = [
    ("llama", "model.layers.1.self_attn.k_proj.weight", "layer 1, operation qkv_linear: qkv"),
    ("llama", "model.layers.1.self_attn.o_proj.weight", "layer 1, operation output_linear: delta"),
    ("llama", "model.layers.1.input_layernorm.weight", "layer 1, operation prepare_attention: mixer inputs"),
    ("llama", "model.layers.1.mlp.up_proj.weight", "layer 1, operation mlp: active"),
    ("llama", "model.layers.1.mlp.down_proj.weight", "layer 1, operation mlp: delta"),
    ("llama", "lm_head.weight", "layer 2, operation head: logits"),
    ("exaone4", "model.layers.1.self_attn.k_norm.weight", "layer 1, operation attention: attended"),
    ("gpt-oss", "model.layers.1.self_attn.sinks", "layer 1, operation attention: attended"),
    ("mixtral", "model.layers.1.block_sparse_moe.gate.weight", "layer 1, operation route: router logits"),
    ("mixtral", "model.layers.1.block_sparse_moe.experts.2.w2.weight", "layer 1, operation add_experts: delta"),
    ("deepseek-v3-dense", "model.layers.1.self_attn.kv_b_proj.weight", "layer 1, operation attention: attended"),
    ("deepseek-v3-dense", "model.layers.1.self_attn.q_a_layernorm.weight", "layer 1, operation query_linear: queries"),
    ("qwen3-next", "model.layers.2.linear_attn.dt_bias", "layer 2, operation gate_scanned: attended"),
    ("qwen3-next", "model.layers.2.linear_attn.conv1d.weight", "layer 2, operation gate_scanned: attended"),
    ("kimi-linear", "model.layers.2.self_attn.A_log", "layer 2, operation gate_scanned: attended"),
    ("bailing-hybrid", "model.layers.1.attention.g_proj.weight", "layer 1, operation latent_linear: qkv"),
    ("mamba", "backbone.layers.1.mixer.D", "layer 1, operation gate_scanned: attended"),
    ("mamba", "backbone.layers.1.mixer.x_proj.weight", "layer 1, operation gate_scanned: attended"),
    ("mamba2", "backbone.layers.1.mixer.D", "layer 1, operation gate_scanned: attended"),
    ("lfm2", "model.layers.2.conv.conv.weight", "layer 2, operation short_conv: attended"),
]
AVAILABLE = [each for each in PLANTED if tiny_models.known(each[0])]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A saved model of each variant, by its name."""
    made = {}
    for variant in dict.fromkeys(variant for variant, _, _ in AVAILABLE):
        made[variant] = tmp_path_factory.mktemp(variant)
        tiny_models.save(made[variant], variant)
    return made


def with_wrong_number(folder: Path, name: str, into: Path) -> None:
    """A copy of a checkpoint in which one element of a tensor is another."""
    shutil.copytree(folder, into)
    tensors = load_file(into / "model.safetensors")
    flat = tensors[name].view(-1)
    flat[len(flat) // 2] -= 3
    save_file(tensors, into / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(("variant", "name", "found"), AVAILABLE, ids=[f"{v}-{n}" for v, n, _ in AVAILABLE])
def test_a_wrong_number_is_found(
    variant: str, name: str, found: str, folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A buffer that is not compared, or columns that do not belong together, would leave it to a later operation."""
    with_wrong_number(folders[variant], name, tmp_path / "wrong")
    arguments = [str(tmp_path / "wrong"), "--reference", str(folders[variant]), "--tokens", "20"]
    assert compare.main(arguments) == 1
    printed = capsys.readouterr().out
    prompt, step = printed.split("a decode step of ")
    assert f"first difference: {found} differs by " in prompt
    assert "first difference: " in step
    assert "transformers agrees with the reference" in printed


@pytest.mark.parametrize("variant", ["llama", "qwen3-next"])
def test_a_short_prompt(variant: str, folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """The torch executor pads it to a decode step of more rows, which are nobody's."""
    if variant in folders:
        assert compare.main([str(folders[variant]), "--tokens", "9"]) == 0
        assert "transformers agrees with the reference" in capsys.readouterr().out


def test_equal_models_do_not_differ(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """What differs in rounding alone is no difference, in the precision that rounds most."""
    for precision in ("fp32", "int4"):
        assert compare.main([str(folders["llama"]), "--tokens", "20", "--precision", precision]) == 0
    printed = capsys.readouterr().out
    assert printed.count("no difference") == 4
    assert printed.count("20 buffers compared") == 4


def test_transformers_says_that_the_reference_is_wrong(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the two differ it is not known which is right."""
    monkeypatch.setattr(gated_delta.GatedDelta, "gate", lambda self, z: torch.sigmoid(z))
    assert compare.main([str(folders["qwen3-next"]), "--tokens", "20"]) == 1
    printed = capsys.readouterr().out
    assert "first difference: layer 0, operation gate_scanned: attended differs by " in printed
    assert "transformers differs from the reference: first in the input of layer 1, by " in printed


def test_a_number_that_is_not_finite_differs_most() -> None:
    """NaN compares as unequal to everything, and would be lost in a maximum."""
    values = np.array([[1.0, np.nan], [2.0, 3.0]], np.float32)
    output = OperationOutput("mlp", "delta", 0, values, (0, 1))
    right = np.array([[1.0, 2.0], [2.0, 3.5]], np.float32)
    [found] = compare.differences([output], {(0, "mlp", "delta"): (0, right)}, 0)
    assert (found.size, found.at) == (np.inf, (0, 1))


def test_a_prompt_has_rows_for_both_passes(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """One pass of the core, and a decode step after something."""
    assert compare.main([str(folders["llama"]), "--tokens", "4"]) == 2
    assert "a prompt of 4 tokens: give 5 to 256, by --tokens or -p" in capsys.readouterr().err
