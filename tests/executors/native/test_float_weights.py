"""Weights that the core reads from a checkpoint's files itself: the same image as from tensors, and no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE

from ipex_assist.checkpoints.folder import FolderCheckpoint
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.native.float_weights import pack_floats
from ipex_assist.models.weights import NotFiniteError, head_dim_of, part_of, run_of
from ipex_assist.native.library import Pool, unavailable
from ipex_assist.native.model import PackedModel

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]

VARIANTS = ["llama", "phi3", "gpt2", "gemma", "gpt_neox", "qwen2-moe", "gpt_oss", "falcon"]


def packed(folder: Path, precision: str) -> PackedModel:
    asked = LoadRequest(open_checkpoint(str(folder)), precision, "native")
    model = PackedModel(asked.spec, precision, Pool(2))
    pack_floats(model, asked.checkpoint, asked.sources)
    return model


def image(folder: Path, precision: str) -> bytes:
    return b"".join(bytes(piece) for piece in packed(folder, precision).image())


@pytest.mark.parametrize("variant", tiny_models.known(*VARIANTS))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_same_image_as_from_tensors(
    variant: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches rows of a tensor of several weights, or an expert of a stack, read from a wrong place of the file."""
    tiny_models.save(tmp_path, variant).to(dtype).save_pretrained(tmp_path)
    for precision in ("int4", "fp32"):
        from_files = image(tmp_path, precision)
        with monkeypatch.context() as patch:
            patch.setattr(FolderCheckpoint, "stored_floats", lambda self, name: None)
            assert image(tmp_path, precision) == from_files, precision


@pytest.mark.parametrize("variant", tiny_models.known(*VARIANTS))
def test_runs_are_the_parts(variant: str, tmp_path: Path) -> None:
    """Catches a run that takes what a weight is not: of rows that alternate, or that something is added to."""
    tiny_models.save(tmp_path, variant)
    asked = LoadRequest(open_checkpoint(str(tmp_path)), "bf16", "native")
    runs = 0
    for name, tensor in asked.checkpoint.tensors():
        for ours, source in asked.sources.items():
            if name not in (source.name, *source.alternatives):
                continue
            numbers = torch.arange(tensor.numel(), dtype=torch.float64).reshape(tensor.shape)
            if (run := run_of(tuple(tensor.shape), source)) is not None:
                first, shape = run
                part = part_of(numbers, source, head_dim_of(asked.spec, ours))
                assert part.shape == shape, name
                assert torch.equal(part.flatten(), torch.arange(first, first + part.numel(), dtype=torch.float64))
                runs += 1
    assert runs, "no weight lies as it is"


def test_no_torch(tmp_path: Path) -> None:
    """Importing torch takes most of a second, before the first token of a first start."""
    tiny_models.save(tmp_path / "model", "llama")
    code = (
        "import sys\n"
        "from ipex_assist.checkpoints.open import open_checkpoint\n"
        "from ipex_assist.executors.load import load_model\n"
        "from ipex_assist.executors.load_request import LoadRequest\n"
        "load_model(LoadRequest(open_checkpoint(sys.argv[1]), 'int4', 'native'))\n"
        "print('torch' in sys.modules)"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "model")]
    found = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert found.stdout == "False\n", found.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: os.truncate(path, 5000), r"model\.safetensors: the file ended at byte 5,000 while it was read"),
        (lambda path: path.unlink(missing_ok=True), r"model\.safetensors cannot be read: No such file"),
    ],
)
def test_files_that_go_while_they_are_read(
    change: Callable[[Path], None], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros in place of weights, or a message that names no file."""
    tiny_models.save(tmp_path, "llama")
    stored_floats = FolderCheckpoint.stored_floats

    def change_first(self: FolderCheckpoint, name: str) -> Any:
        change(self.files[0])
        return stored_floats(self, name)

    monkeypatch.setattr(FolderCheckpoint, "stored_floats", change_first)
    with pytest.raises(IpexAssistError, match=message):
        packed(tmp_path, "int8")


def test_not_finite(tmp_path: Path) -> None:
    """A message that names our weight, or no place in the checkpoint's."""
    model = tiny_models.save(tmp_path, "llama")
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[3, 7] = float("nan")
    model.save_pretrained(tmp_path)
    with pytest.raises(NotFiniteError, match=r"model\.layers\.0\.mlp\.down_proj\.weight holds NaN in row 3, column 7"):
        packed(tmp_path, "int4")
