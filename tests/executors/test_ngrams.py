"""Embeddings of n-grams (Qwen4): rows of a table by hashes of a token and those before it, up to the end of a text."""

from __future__ import annotations

import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from native_models import PRECISIONS, folder, in_parts, relative, tokens, transformers_logits

from ipex_assist.executors.interface import Rows
from ipex_assist.models.ngram_spec import NgramSpec
from ipex_assist.native.library import unavailable

VARIANTS = tiny_models.known("qwen4-exp", "qwen4-exp-ngrams")
pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.skipif(not VARIANTS, reason="of today's transformers"),
]
NATIVE = pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")
END = 2
PROMPT = [token or 7 for token in tokens(40, 3)]
for _place in (0, 5, 6, 9, 22, 39):  # at the beginning and the end, and twice within an n-gram
    PROMPT[_place] = END


@pytest.mark.parametrize("number", [0, 2])
def test_the_numbers_of_hashes_are_those_of_transformers(number: int) -> None:
    """As published: factors of 63 bits, and primes from 20 million on, of the second layer after those of the first."""
    from transformers.models.qwen4_exp import modeling_qwen4_exp as theirs

    spec = NgramSpec(3, 8, 2048, 4, 248320, END, number, 20_000_000, 128, 1234, 512)
    assert list(spec.factors) == theirs._build_layer_multipliers(248320, 3, number, 1234).tolist()
    first = theirs._find_nth_prime_after(20_000_000 - 1, number * 16 + 1)
    assert spec.sizes[0] == first
    assert spec.sizes[-1] == theirs._find_nth_prime_after(first, 15)
    assert spec.rows % 128 == 0
    assert sum(spec.stored_rows) == spec.rows >= sum(spec.sizes)


@pytest.mark.parametrize("executor", ["torch", pytest.param("native", marks=NATIVE)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(variant: str, executor: str) -> None:
    """Nothing before the token that ends a text is part of an n-gram."""
    model = tiny_models.model(folder(variant), executor)
    assert (
        relative(model.extend(model.new_sequence(64), PROMPT, len(PROMPT)), transformers_logits(variant, tuple(PROMPT)))
        < 5e-5
    )


@NATIVE
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_prompt_is_its_steps_however_it_is_cut(variant: str, precision: str) -> None:
    """The tokens before a pass are those that its sequence keeps, also where others were taken back."""
    model = tiny_models.model(folder(variant), "native", precision)
    together = model.extend(model.new_sequence(64), PROMPT, len(PROMPT))
    assert torch.equal(in_parts(model, PROMPT, (1, 1, 4, 1, 17, 1, 1, 14)), together)
    if precision == "bf16":
        assert relative(together, transformers_logits(variant, tuple(PROMPT))) < 0.2


@NATIVE
@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_have_their_own_tokens_beside_others(variant: str) -> None:
    model = tiny_models.model(folder(variant), "native", "bf16")
    alone = model.extend(model.new_sequence(64), PROMPT, 1)
    sequences = [model.new_sequence(64) for _ in range(3)]
    for sequence, length in zip(sequences, (len(PROMPT) - 1, 7, 22), strict=True):
        model.extend(sequence, PROMPT[:length], 1)
    rows = [Rows(each, [PROMPT[each.length]], 1) for each in sequences]
    assert torch.equal(model.forward(rows)[0], alone[0])
