"""Rows that attend to chosen positions: what is chosen depends on a row's past alone, and below top-k nothing is."""

from __future__ import annotations

import contextlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import safetensors.torch
import tiny_models
import torch
from conftest import HAS_NATIVE
from native_models import pool, relative, tokens

from ipex_assist.executors.interface import Rows
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.native.library import unavailable

VARIANTS = tiny_models.known("deepseek-v32", "glm-moe-dsa", "hy-v4", "axk2", "mistral-large4", "deepseek-v4")
VARIANTS += tiny_models.known("glm5-next")
FULL = tiny_models.known("deepseek-v32", "glm-moe-dsa")  # which would attend to the same without an indexer
pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or ""),
    pytest.mark.skipif(not VARIANTS, reason="of today's transformers"),
]
LENGTH = 800
SCHEDULES = int(os.environ.get("SCHEDULES", "2"))  # of each kind


def loaded(folder: Path, precision: str, kv: str = "", threads: int = 1) -> NativeModel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ipex_assist.executors.native.loading.planned_pool", lambda: pool(threads))
        made = tiny_models.model(folder, "native", precision, kv_precision=kv or None)
    assert isinstance(made, NativeModel)
    return made


def save(folder: Path, variant: str, **changes: Any) -> Any:
    changes.setdefault("max_position_embeddings", 1024)
    text = tiny_models.VARIANTS[variant].get("text_config")
    if text is not None and "index_kpool" in text:
        changes["index_topk"] -= changes["index_topk"] % text["index_kpool"]
    return tiny_models.save(folder, variant, **(changes if text is None else {"text_config": text | changes}))


def logits(model: NativeModel, prompt: list[int], parts: list[int]) -> torch.Tensor:
    """Of all rows of a prompt that is read in parts of these lengths."""
    sequence, rows, done = model.new_sequence(max(len(prompt), LENGTH)), [], 0
    for part in parts:
        rows.append(model.extend(sequence, prompt[done : done + part], part))
        done += part
    return torch.cat(rows)


class Chosen(NamedTuple):
    values: torch.Tensor
    indices: torch.Tensor


@contextlib.contextmanager
def lower_of_equal() -> Iterator[None]:
    """transformers with a choice that is defined where scores are equal, as many are: relu makes zeros."""

    def topk(scores: torch.Tensor, k: int, dim: int = -1) -> Chosen:
        values, indices = scores.sort(dim=dim, descending=True, stable=True)
        return Chosen(values[..., :k], indices[..., :k])

    with mock.patch.object(torch.Tensor, "topk", topk):
        yield


@pytest.mark.parametrize("top_k", [40, 256, 300])
@pytest.mark.parametrize("variant", VARIANTS)
def test_long_prompts_are_as_in_transformers(variant: str, top_k: int, tmp_path: Path) -> None:
    """Chosen positions of several blocks, in fewer, in as many as fill them, and in one block and a part."""
    model = save(tmp_path, variant, index_topk=top_k)
    prompt = tokens(320, 4)
    with torch.no_grad(), lower_of_equal():
        expected = model(torch.tensor([prompt])).logits[0]
    got = logits(loaded(tmp_path, "fp32"), prompt, [320])
    assert relative(got, expected) < 1e-4
    assert torch.equal(got.argmax(1), expected.argmax(1))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16+int8"])
@pytest.mark.parametrize("variant", FULL)
def test_until_top_k_it_is_full_attention(variant: str, precision: str, tmp_path: Path) -> None:
    """To the bit that of DeepSeek-V3 with the same weights; and what comes after it is not."""
    top_k = 280
    save(tmp_path, variant, index_topk=top_k)
    precision, _, kv = precision.partition("+")
    sparse = loaded(tmp_path, precision, kv)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "first_k_dense_replace": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    full = loaded(tmp_path, precision, kv)
    prompt = tokens(320, 5)
    ours, theirs = logits(sparse, prompt, [320]), logits(full, prompt, [100, 220])
    assert torch.equal(ours[:top_k], theirs[:top_k])
    assert not torch.equal(ours[top_k:], theirs[top_k:])


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16+int8"])
@pytest.mark.parametrize("variant", tiny_models.known("glm5-next"))
def test_until_pools_are_left_out_it_is_full_attention(variant: str, precision: str, tmp_path: Path) -> None:
    """With as many pools as there are, and the positions of one that is open: to the bit as where all are chosen."""
    precision, _, kv = precision.partition("+")
    prompt, found = tokens(320, 5), []
    for top_k in (280, 1024):
        save(tmp_path, variant, index_topk=top_k)
        found.append(logits(loaded(tmp_path, precision, kv), prompt, [100, 220]))
    ours, theirs = found
    assert torch.equal(ours[:283], theirs[:283])
    assert not torch.equal(ours[283:], theirs[283:])


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("variant", VARIANTS)
def test_of_equal_scores_the_lower_positions(variant: str, heads: int, tmp_path: Path) -> None:
    """As the readable reference has it, whose sort is stable: of so few heads many scores are zero, at the border."""
    save(tmp_path, variant, index_topk=9, index_n_heads=heads)
    prompt = tokens(90, 6)
    reference = tiny_models.model(tmp_path, "torch", exact=False)
    expected = reference.extend(reference.new_sequence(90), prompt, 90)
    assert relative(logits(loaded(tmp_path, "fp32"), prompt, [90]), expected) < 1e-5


def test_all_scores_equal(tmp_path: Path) -> None:
    """The first positions are chosen, by every row: logits are those of weights that say nothing of positions."""
    save(tmp_path, VARIANTS[0], index_topk=20)
    path = tmp_path / "model.safetensors"
    stored = safetensors.torch.load_file(path)
    for name, tensor in stored.items():
        if "weights_proj" in name:
            tensor.zero_()
    safetensors.torch.save_file(stored, path, {"format": "pt"})
    prompt, model = tokens(300, 7), loaded(tmp_path, "fp32")
    other = [*prompt[:20], *tokens(280, 8)]
    other[-1] = prompt[-1]
    # Rows at the same position that see the same 20 tokens and are the same one.
    ours, theirs = logits(model, prompt, [300])[-1], logits(model, other, [300])[-1]
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_share_blocks_of_keys(variant: str, tmp_path: Path) -> None:
    """More blocks than are scored with all rows before the next ones: 8 for each thread."""
    save(tmp_path, variant, max_position_embeddings=4096, index_topk=96)
    prompt = tokens(2400, 12)
    whole = logits(loaded(tmp_path, "bf16"), prompt, [2400])
    for threads, parts in ((1, [2300, 1, 99]), (2, [2050, 350])):
        assert torch.equal(logits(loaded(tmp_path, "bf16", threads=threads), prompt, parts), whole)


@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.full), 4])  # the other one always has one
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16+int8", "int4"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_row_has_its_bits_in_any_pass(variant: str, precision: str, threads: int, tmp_path: Path) -> None:
    """Prompts in chunks, steps, drafted rows that are taken back, forks, and other texts beside it."""
    save(tmp_path, variant, index_topk=100 if variant == "deepseek-v4" else 270)  # of 170 entries
    precision, _, kv = precision.partition("+")
    alone = loaded(tmp_path, precision, kv)
    model = loaded(tmp_path, precision, kv, threads)
    prompt = tokens(680, 9)
    whole = logits(alone, prompt, [680])
    chance = random.Random(f"{variant}{precision}")
    for _ in range(SCHEDULES):
        sequence, other = model.new_sequence(LENGTH), model.new_sequence(LENGTH)
        beside = tokens(LENGTH, chance.randrange(1000))
        while sequence.length < len(prompt):
            start = sequence.length
            if start and chance.random() < 0.3:  # a draft that is taken back
                model.extend(sequence, tokens(chance.randrange(1, 9), 11), 1)
                sequence.truncate(start if model.spec.keeps_states else chance.randrange(max(start - 5, 1), start + 1))
                start = sequence.length
            if start and chance.random() < 0.2:
                sequence = sequence.fork(start)
            count = min(chance.choice((1, 1, 3, 16, 17, 100, 300)), len(prompt) - start)
            rows = [Rows(sequence, prompt[start : start + count], count)]
            if chance.random() < 0.5 and other.length < LENGTH - 200:
                more = beside[other.length : other.length + chance.choice((1, 5, 190))]
                rows.insert(chance.randrange(2), Rows(other, more, 0))
            assert torch.equal(model.forward(rows), whole[start : start + count])
