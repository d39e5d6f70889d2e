"""Rows that attend to blocks which they choose for each KV head: as few of them as all are full attention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from native_models import relative, tokens
from test_sparse_attention import loaded, logits

from ipex_assist.executors.interface import Rows
from ipex_assist.native.library import unavailable

VARIANT = "minimax-m3"
pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or ""),
    pytest.mark.skipif(not tiny_models.known(VARIANT), reason="of today's transformers"),
]


def save(folder: Path, **changes: Any) -> Any:
    text = tiny_models.VARIANTS[VARIANT]["text_config"] | {"max_position_embeddings": 1024} | changes
    return tiny_models.save(folder, VARIANT, text_config=text)


@pytest.mark.parametrize(("size", "blocks", "local"), [(16, 3, 1), (16, 19, 2), (64, 2, 2), (128, 2, 1), (256, 1, 1)])
def test_long_prompts_are_as_in_transformers(size: int, blocks: int, local: int, tmp_path: Path) -> None:
    """Blocks that are parts of ours of keys and values, in one of these and in several, and whole ones."""
    changes = {"index_block_size": size, "index_topk_blocks": blocks, "index_local_blocks": local}
    model, prompt = save(tmp_path, **changes), tokens(600, 4)
    with torch.no_grad():
        expected = model(torch.tensor([prompt])).logits[0]
    got = logits(loaded(tmp_path, "fp32"), prompt, [600])
    assert relative(got, expected) < 1e-4
    assert torch.equal(got.argmax(1), expected.argmax(1))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16+int8"])
def test_until_so_many_blocks_it_is_full_attention(precision: str, tmp_path: Path) -> None:
    """To the bit; and what comes after it is not."""
    save(tmp_path, index_block_size=32, index_topk_blocks=9)
    precision, _, kv = precision.partition("+")
    sparse = loaded(tmp_path, precision, kv)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"]["layer_types"] = ["full_attention"] * 3
    (tmp_path / "config.json").write_text(json.dumps(config))
    full, prompt = loaded(tmp_path, precision, kv), tokens(340, 5)
    ours, theirs = logits(sparse, prompt, [340]), logits(full, prompt, [100, 240])
    assert torch.equal(ours[:288], theirs[:288])
    assert not torch.equal(ours[288:], theirs[288:])


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16+int8", "int4"])
def test_a_row_has_its_bits_in_any_pass(precision: str, threads: int, tmp_path: Path) -> None:
    """Prompts in chunks, steps, drafted rows that are taken back, and another text beside it."""
    save(tmp_path, index_topk_blocks=4)
    precision, _, kv = precision.partition("+")
    alone, model = (loaded(tmp_path, precision, kv, count) for count in (1, threads))
    prompt, beside = tokens(400, 9), tokens(400, 10)
    whole = logits(alone, prompt, [400])
    sequence, other = model.new_sequence(500), model.new_sequence(500)
    for count in (100, 1, 3, 40, 17, 16, 1, 1, 120, 101):
        start = sequence.length
        if start:
            model.extend(sequence, tokens(6, 11), 1)  # a draft that is taken back
            sequence.truncate(start)
        rows = [Rows(other, beside[start : start + count], 0), Rows(sequence, prompt[start : start + count], count)]
        assert torch.equal(model.forward(rows), whole[start : start + count])
    assert sequence.length == len(prompt)
