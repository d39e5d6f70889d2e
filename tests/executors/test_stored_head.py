"""A head that is stored beside the embedding, and that the config says is the embedding: the tensors decide."""

from __future__ import annotations

import json

import pytest
import tiny_models
import torch
from conftest import EXECUTORS
from safetensors.torch import load_file, save_file

from ipex_assist.checkpoints.open import open_checkpoint

PROMPT = [3, 17, 5, 29, 11]


def _stored(folder, variant, kind, change):
    """A model of this family with a head of its own in its files, whose config ties it. change: of the embedding."""
    tied = tiny_models.save(folder, variant, tie_word_embeddings=True)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    table = next(tensors[name] for name in tensors if name.endswith(("embed_tokens.weight", "wte.weight")))
    tensors["lm_head.weight"] = change(table.clone())
    if kind == "safetensors":
        save_file(tensors, file, {"format": "pt"})
    else:
        file.unlink()
        torch.save(tensors, folder / "pytorch_model.bin")
    config = json.loads((folder / "config.json").read_text())
    assert config.get("tie_word_embeddings", True)
    tied.config.tie_word_embeddings = False
    tied.lm_head.weight = torch.nn.Parameter(tensors["lm_head.weight"].clone())
    return tied


@pytest.mark.parametrize("executor", [name for name in EXECUTORS if name != "ipex"])
@pytest.mark.parametrize("kind", ["safetensors", "bin"])
@pytest.mark.parametrize("variant", tiny_models.known("llama", "qwen2", "gemma3_text", "gpt2"))
def test_a_stored_head_is_used(tmp_path, variant, kind, executor):
    """Would catch logits of the embedding, with a relative error of 1, where the head was trained by itself."""
    expected = _stored(tmp_path, variant, kind, lambda table: table.roll(1, 0) * 0.7)
    assert not open_checkpoint(str(tmp_path)).decoder_spec().tied_head
    with torch.no_grad():
        logits = expected(torch.tensor([PROMPT])).logits[0, -1]
    ours = tiny_models.text(tmp_path, executor).forward(PROMPT)[0][: len(logits)]
    assert (ours - logits).abs().max() < 1e-4 * logits.abs().max()


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_a_head_that_is_the_embedding_stays_one(tmp_path, kind):
    """.bin files hold both names of one tensor; a second copy would take a gigabyte of a large vocabulary."""
    _stored(tmp_path, "gpt2", kind, lambda table: table)
    assert open_checkpoint(str(tmp_path)).decoder_spec().tied_head


@pytest.mark.parametrize("executor", [name for name in EXECUTORS if name != "ipex"])
@pytest.mark.parametrize("kind", ["safetensors", "bin"])
@pytest.mark.parametrize("variant", tiny_models.known("llama", "gemma3_text", "gpt2"))
def test_a_tied_matrix_that_is_stored_as_the_head(tmp_path, variant, kind, executor):
    """Some programs keep the last name of a tensor with two; that was refused as a lack of the embedding."""
    expected = tiny_models.save(tmp_path, variant, tie_word_embeddings=True)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    table = next(name for name in tensors if name.endswith(("embed_tokens.weight", "wte.weight")))
    tensors["lm_head.weight"] = tensors.pop(table)
    if kind == "safetensors":
        save_file(tensors, file, {"format": "pt"})
    else:
        file.unlink()
        torch.save(tensors, tmp_path / "pytorch_model.bin")
    open_checkpoint(str(tmp_path)).check_weights()
    with torch.no_grad():
        logits = expected(torch.tensor([PROMPT])).logits[0, -1]
    ours = tiny_models.text(tmp_path, executor).forward(PROMPT)[0][: len(logits)]
    assert (ours - logits).abs().max() < 1e-4 * logits.abs().max()
