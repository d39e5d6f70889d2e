"""Starts from packed weights that were kept, in a cache folder of the test's own."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import tiny_models
import torch

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.cache import cache_folder
from ipex_assist.executors.interface import Model
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.native.model import NativeModel

PROMPT = [3, 17, 150, 9, 9, 42, 77, 101, 5, 63, 12, 140, 8, 31, 90, 55, 2, 71, 118, 29]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("IPEX_ASSIST_PACKED", raising=False)
    assert cache_folder("packed") == tmp_path / "cache" / "ipex-assist" / "packed"
    return cache_folder("packed")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkpoint of 0.3 million weights."""
    tiny_models.save(tmp_path / "model", "llama")
    return tmp_path / "model"


def load(source: Path, precision: str = "int4") -> NativeModel:
    model = load_model(LoadRequest(open_checkpoint(str(source)), precision, "native", cache_packed=True))
    assert isinstance(model, NativeModel)
    return model


def logits(model: Model) -> torch.Tensor:
    text = tiny_models.Text(model)
    return torch.cat((text.forward(PROMPT, last=len(PROMPT)), text.forward([1, 2, 3], last=3)))


def files(folder: Path) -> list[Path]:
    """Return everything in the cache, hidden files too."""
    return sorted(folder.iterdir()) if folder.exists() else []


def was_packed(caplog: pytest.LogCaptureFixture) -> bool:
    """Whether the last load read the checkpoint and not the cache."""
    loads = [record.getMessage() for record in caplog.records if "native core with" in record.getMessage()]
    return " packed (" in loads[-1]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
