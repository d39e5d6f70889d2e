"""NaN and infinity never become a text: weights that hold them are refused, logits that hold them end the request."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_models
import torch
from conftest import PRECISIONS
from safetensors.torch import load_file, save_file

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.commands.quantized_writer import write_rtn
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models import find
from ipex_assist.models.weights import check_numbers

# One of each kind: a matrix alone and one that shares its linear, a bias, a norm, and the tables.
WEIGHTS = [
    "model.layers.1.self_attn.v_proj.weight",
    "model.layers.0.mlp.down_proj.weight",
    "model.layers.1.self_attn.k_proj.bias",
    "model.layers.0.input_layernorm.weight",
    "model.norm.weight",
    "model.embed_tokens.weight",
    "lm_head.weight",
]


def change(folder: Path, name: str, place: tuple[int, ...], value: float) -> None:
    """Put `value` into one place of a checkpoint's tensor."""
    tensors = load_file(folder / "model.safetensors")
    tensors[name][place] = value
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


# ---- weights


@pytest.mark.parametrize(("executor", "precision"), PRECISIONS)
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers(executor: str, precision: str, name: str, value: float, tmp_path: Path) -> None:
    """int4 made a group of zeros of NaN, int8 a large number: the text was as fluent as it was wrong."""
    tiny_models.save(tmp_path, "qwen2")
    matrix = name.endswith("weight") and "norm" not in name
    change(tmp_path, name, (13, 7) if matrix else (13,), value)
    with pytest.raises(IpexAssistError) as caught:
        tiny_models.model(tmp_path, executor, precision)
    what = "NaN" if value != value else "infinity"
    assert str(caught.value).startswith(f"{tmp_path}: {name} holds {what} in row 13{', column 7' if matrix else ''}, ")
    assert "Download it again" in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2])
def test_every_type_of_tensor_is_looked_at(dtype: torch.dtype) -> None:
    """Wherever the value is, and in types that torch's own minimum and maximum do not know."""
    tensor = torch.ones(5, 40).to(dtype)
    check_numbers("weight", tensor)
    check_numbers("empty", tensor[:0])
    check_numbers("whole numbers", torch.ones(3, dtype=torch.int32))
    for place in ((0, 0), (2, 17), (4, 39)):
        for value, said in ((float("nan"), "NaN"), (float("-inf"), "infinity")):
            bad = torch.ones(5, 40)
            bad[place] = value
            with pytest.raises(IpexAssistError, match=f"weight holds {said} in row {place[0]}, column {place[1]}, "):
                check_numbers("weight", bad.to(dtype))


def test_quantize_refuses_what_is_no_number(tmp_path: Path) -> None:
    """It wrote a checkpoint that was "off by nan%"."""
    tiny_models.save(tmp_path / "plain", "llama")
    change(tmp_path / "plain", "model.layers.0.self_attn.q_proj.weight", (3, 9), float("nan"))
    checkpoint = open_checkpoint(str(tmp_path / "plain"))
    architecture = find(checkpoint.architecture)
    assert architecture is not None
    with pytest.raises(IpexAssistError, match=r"plain: model\..*\.q_proj\.weight holds NaN in row 3, column 9"):
        write_rtn(checkpoint, architecture, tmp_path / "int4", 32, sym=True)
    assert not (tmp_path / "int4").exists()
