"""Rows that choose pools of positions by means of their keys (QSA): what is chosen depends on a row's past alone."""

from __future__ import annotations

from pathlib import Path

import native_models
import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from native_models import PRECISIONS, folder, in_parts, relative, tokens, transformers_logits

from ipex_assist.bench.giant_shapes import GIANT_CONFIGS
from ipex_assist.executors.interface import Rows
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.models import qwen4_exp_text
from ipex_assist.models.config import Config
from ipex_assist.native.library import unavailable

VARIANTS = tiny_models.known("qwen4-exp", "qwen4-exp-many")  # which choose among pools of 4 and of 32 positions
pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or ""),
    pytest.mark.skipif(not VARIANTS, reason="of today's transformers"),
]
PROMPT = [token or 7 for token in tokens(110, 3)]  # token 0 has an embedding of zeros, by which all pools are equal


def loaded(saved: Path, precision: str, kv: str | None = None) -> NativeModel:
    made = tiny_models.model(saved, "native", precision, kv_precision=kv)
    assert isinstance(made, NativeModel)
    return made


@pytest.mark.parametrize("executor", ["torch", "native"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, executor: str) -> None:
    """Means pass their norm before they are rotated, by their pool's first position; rows see the open pool as well."""
    model = tiny_models.model(folder(variant), executor)
    assert (
        relative(
            model.extend(model.new_sequence(128), PROMPT, len(PROMPT)), transformers_logits(variant, tuple(PROMPT))
        )
        < 5e-5
    )


@pytest.mark.parametrize("kv", [None, "int8"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_prompt_is_its_steps_however_it_is_cut(variant: str, precision: str, kv: str | None) -> None:
    """Pools that a pass ends within, and rows that are taken back into them."""
    model = loaded(folder(variant), precision, kv)
    together = model.extend(model.new_sequence(128), PROMPT, len(PROMPT))
    assert torch.equal(in_parts(model, PROMPT, (3, 1, 1, 30, 7, 40, 5, 1, 1, 21)), together)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_choose_likewise_beside_others(variant: str) -> None:
    model = loaded(folder(variant), "bf16")
    alone = model.extend(model.new_sequence(128), PROMPT, 1)
    sequences = [model.new_sequence(128) for _ in range(3)]
    for sequence, length in zip(sequences, (len(PROMPT) - 1, 20, 75), strict=True):
        model.extend(sequence, PROMPT[:length], 1)
    rows = [Rows(each, [PROMPT[each.length]], 1) for each in sequences]
    assert torch.equal(model.forward(rows)[0], alone[0])


def test_such_layers_by_each_of_their_names() -> None:
    """Published checkpoints call them full attention, newer ones after what they do; transformers has a third name."""
    config = GIANT_CONFIGS["Qwen/Qwen3.8-Flash-Next"]
    kinds = config["layer_types"]
    specs = [
        qwen4_exp_text.spec(
            Config(config | {"layer_types": [name if kind == "full_attention" else kind for kind in kinds]})
        )
        for name in ("full_attention", "indexed_attention", "qwen_sparse_attention")
    ]
    assert specs[0] == specs[1] == specs[2]
    assert sum(getattr(each.mixer, "indexer", None) is not None for each in specs[0].layers) == 12


@pytest.mark.parametrize("variant", VARIANTS)
def test_threads_leave_the_scores_of_others(variant: str) -> None:
    """Kernels score 16 keys at once, and a block has fewer of large pools: the next block's are another thread's."""
    prompt = [token or 7 for token in tokens(600, 3)]
    by_one, by_three = (native_models.loaded(variant, "bf16", threads) for threads in (1, 3))
    expected = by_one.extend(by_one.new_sequence(600), prompt, 600)
    for _ in range(3):
        assert torch.equal(by_three.extend(by_three.new_sequence(600), prompt, 600), expected)
