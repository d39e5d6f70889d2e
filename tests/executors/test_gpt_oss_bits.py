"""gpt-oss on the native core: sinks and experts in MXFP4 do not let a row's bits depend on what runs beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from native_models import loaded, tokens
from safetensors.torch import load_file, save_file

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import Rows
from ipex_assist.native.library import unavailable

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]

TEXT, STEPS, OTHER = tokens(250, 1), tokens(16, 2), tokens(20, 3)  # the steps cross the end of a block: 256


@pytest.mark.parametrize("precision", ["fp32", "mxfp4", "mxfp4+int8"])
def test_rows_have_the_bits_they_have_alone(precision: str) -> None:
    """A prompt at once and in parts, rows one by one, together, beside another text, by more threads."""
    model = loaded("gpt-oss", precision)
    alone = model.new_sequence(300)
    rows = torch.cat([model.extend(alone, [token]) for token in [*TEXT, *STEPS]])
    for threads in (1, 2, 3):
        model = loaded("gpt-oss", precision, threads)
        whole, other = model.new_sequence(300), model.new_sequence(300)
        assert torch.equal(model.extend(whole, TEXT, 250), rows[:250]), threads
        assert torch.equal(model.extend(whole, STEPS, 16), rows[250:]), threads
        whole.truncate(0)
        model.extend(whole, TEXT[:100])
        together = model.forward([Rows(other, OTHER, 1), Rows(whole, TEXT[100:], 150)])
        assert torch.equal(together[1:], rows[100:250]), threads
        beside = model.forward([Rows(other, OTHER[:3], 1), Rows(whole, STEPS[:9], 9)])
        assert torch.equal(beside[1:], rows[250:259]), threads


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("executor", ["native", "torch"])
def test_sinks_that_are_no_numbers(executor: str, value: float, tmp_path: Path) -> None:
    """An infinite sink would leave zeros of every head, as fluent as they are wrong."""
    tiny_models.save(tmp_path, "gpt-oss")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.self_attn.sinks"][2] = value
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(IpexAssistError, match=r"model.layers.1.self_attn.sinks holds (NaN|infinity) in row 2, which"):
        tiny_models.model(tmp_path, executor)
