"""Short convolutions, Mamba-2 and Mamba-1: their limits, and a row's bits with drafts that are rolled back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import tiny_models
import torch
from conftest import EXECUTORS, HAS_NATIVE
from native_models import INT8_KEYS, PRECISIONS, loaded, tokens

from ipex_assist.executors.interface import Rows
from ipex_assist.native.library import unavailable

VARIANTS = tiny_models.known("lfm2-biases", "lfm2-moe", "granite-hybrid-moe", "bamba", "bamba-recurrent-last")
VARIANTS += tiny_models.known(
    "nemotron-h", "nemotron-h-moe", "mamba2", "kimi-linear", "bailing-hybrid", "falcon-h1-norm"
)
VARIANTS += tiny_models.known("jamba", "jamba-dense", "mamba", "falcon-mamba-biases", "recurrent-gemma-last")
VARIANTS += tiny_models.known("glm5-next-many", "zamba2-adapted", "zamba2-one-block")
VARIANTS += tiny_models.known("qwen4-exp", "qwen4-exp-many", "qwen4-exp-ngrams")
PENDING = 16  # rows that can be forgotten again
TEXT = tokens(150, 5)

pytestmark = pytest.mark.skipif(not VARIANTS, reason="this transformers has none of these families")


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("variant", tiny_models.known("bamba", "nemotron-h"))
def test_steps_are_limited(variant: str, executor: str, tmp_path: Path) -> None:
    """Steps below the least and above the largest; transformers limits those of prompts."""
    limit = {"time_step_limit": [0.6, 0.9]} if variant == "bamba" else {"time_step_min": 0.7}
    model = tiny_models.save(tmp_path, variant, **limit)
    with torch.no_grad():
        expected = model(torch.tensor([TEXT[:40]])).logits[0]
    text = tiny_models.text(tmp_path, executor)
    prompt = text.forward(TEXT[:30], last=30)
    steps = torch.cat([text.forward([token]) for token in TEXT[30:40]])
    torch.testing.assert_close(torch.cat((prompt, steps)).float(), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_rolled_back(executor: str, tmp_path: Path) -> None:
    """Rows after a draft that was wrong are those of a text without it, and so after a beginning anew."""
    tiny_models.save(tmp_path, VARIANTS[0])
    straight, drafted = tiny_models.text(tmp_path, executor), tiny_models.text(tmp_path, executor)
    expected = torch.cat([straight.forward(TEXT[:20], last=1), *(straight.forward([token]) for token in TEXT[20:30])])
    for _ in range(2):
        rows = [drafted.forward(TEXT[:20], last=1)]
        for place in range(20, 30):
            rows.append(drafted.forward([TEXT[place], *TEXT[:4]], last=5)[:1])
            drafted.truncate(place + 1)
        assert torch.equal(torch.cat(rows), expected)
        drafted.truncate(0)


@pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")
@pytest.mark.parametrize("precision", [*PRECISIONS, *INT8_KEYS])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_row_is_a_row(variant: str, precision: str) -> None:
    """Passes of random rows beside another text, with wrong drafts, on three threads: the bits of single steps."""
    alone, threads, draw = loaded(variant, precision), loaded(variant, precision, 3), random.Random(0)
    steps = alone.new_sequence(200, len(TEXT))
    expected = torch.cat([alone.extend(steps, [token]) for token in TEXT])
    sequence, other = threads.new_sequence(200, len(TEXT)), threads.new_sequence(1000, len(TEXT))
    while sequence.length < len(TEXT):
        done = sequence.length
        part = TEXT[done : done + draw.choice([1, 2, 5, 17, 40])]
        wrong = tokens(draw.choice([0, 0, 1, PENDING - 1]), done)
        rows = [Rows(sequence, part + wrong, len(part) + len(wrong))]
        if draw.random() < 0.5 and other.length < 900:
            rows.insert(0, Rows(other, TEXT[: draw.choice([1, 3, 30])], 1))
        logits = threads.forward(rows)[len(rows) - 1 :]
        assert torch.equal(logits[: len(part)], expected[done : done + len(part)]), f"rows after {done}"
        sequence.truncate(done + len(part))
