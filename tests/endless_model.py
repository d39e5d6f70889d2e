"""Fixtures: a tiny model whose texts never end by themselves, as workers load it."""

from __future__ import annotations

import checkpoint_files
import pytest

import ipex_assist
from ipex_assist.generation.text_model import TextModel


@pytest.fixture(scope="session")
def endless_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model as files."""
    folder = tmp_path_factory.mktemp("endless") / "tiny"
    return str(checkpoint_files.save(checkpoint_files.tiny_model("llama", eos_token_id=None), folder))


@pytest.fixture
def endless_model(endless_folder: str) -> TextModel:
    """Without an assistant, in fp32."""
    return ipex_assist.load(endless_folder, None, precision="fp32", executor="torch")
