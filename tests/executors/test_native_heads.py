"""Draft heads on the native core: torch's drafts in fp32, and in every precision the same bits however rows pass."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import draft_heads
import numpy as np
import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from native_models import PRECISIONS, pool, tokens
from numpy.typing import NDArray

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import DraftInput, HiddenRows, Model, Rows
from ipex_assist.executors.native import NativeModel
from ipex_assist.models.draft_head import Taps
from ipex_assist.native.library import unavailable

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]

_KINDS = ["linear_attention", "linear_attention", "linear_attention", "full_attention", "full_attention"]
MTP = {name: {} for name in tiny_models.known("deepseek-v3", "deepseek-v3-direct", "glm4-moe", "ernie4-5-moe")} | {
    name: {"layer_types": _KINDS} for name in tiny_models.known("qwen3-next", "qwen3.5")
}
HEADS = list(MTP)
_folders: list[object] = []


@functools.cache
def folder(kind: str) -> Path:
    """A saved target with a head inside, for all tests of this file."""
    made = tempfile.TemporaryDirectory()
    _folders.append(made)
    draft_heads.save_mtp(Path(made.name), kind, {}, max_position_embeddings=1024, **MTP[kind])
    return Path(made.name)


@functools.cache
def native(kind: str, precision: str, threads: int = 1) -> tuple[NativeModel, NativeModel]:
    """Target and head."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ipex_assist.executors.native_loading.planned_pool", lambda: pool(threads))
        target, head = draft_heads.load(folder(kind), None, "native", precision)
    assert isinstance(target, NativeModel)
    assert isinstance(head, NativeModel)
    return target, head


def steps(head: Model, text: list[int], hidden: NDArray[np.float32], count: int) -> tuple[list[int], list[float]]:
    """A draft by single calls, each with the hidden state that the one before gave."""
    spec, sequence = head.spec, head.new_sequence(700)
    assert spec.head is not None
    drafted: list[int] = []
    likely: list[float] = []
    while len(drafted) < count:
        own = HiddenRows(Taps((spec.num_hidden_layers,), spec.head.fed_back_normed))
        logits = head.forward([Rows(sequence, text, 1, hidden)], None, own)[0]
        row = int(logits.argmax())
        likely.append(float(torch.softmax(logits.double(), 0)[row]))
        drafted.append(row if head.target_tokens is None else int(head.target_tokens[row]))
        assert own.rows is not None
        text, hidden = drafted[-1:], own.rows[-1:]
    return drafted, likely


@pytest.mark.parametrize("kind", HEADS)
def test_drafts_are_those_of_torch(kind: str) -> None:
    """Its own reference: another order of [e, h], a norm left out, a state fed back before or after the final norm."""
    target, head = native(kind, "fp32")
    reference = draft_heads.load(folder(kind))
    text = tokens(40, 3)
    hidden = draft_heads.hidden_of(target, head, text[:-1])
    assert np.abs(hidden - draft_heads.hidden_of(*reference, text[:-1])).max() < 1e-3
    for read in (3, 39):
        request = text[1 : read + 1], 8, None, 0.0, hidden[:read]
        drafted, likely = head.draft(head.new_sequence(64), *request)
        expected = steps(reference[1], text[1 : read + 1], hidden[:read], 8)
        assert drafted == expected[0]
        assert likely == pytest.approx(expected[1], rel=1e-3)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", HEADS)
def test_no_bit_depends_on_the_others(kind: str, precision: str) -> None:
    """One call is as many single ones, alone or together with others, in any chunks and on any number of threads."""
    target, head = native(kind, precision)
    texts = [tokens(length, length) for length in (300, 5, 21)]
    hidden = [draft_heads.hidden_of(target, head, text[:-1]) for text in texts]
    counts = [7, 12, 4]
    alone = [steps(head, text[1:], h, count) for text, h, count in zip(texts, hidden, counts, strict=True)]
    for threads in (1, 2, 3):
        _, other = native(kind, precision, threads)
        sequences = [other.new_sequence(400) for _ in texts]
        read = 30  # of the first, in a call before
        other.forward([Rows(sequences[0], texts[0][1 : 1 + read], 0, hidden[0][:read])])
        starts = [read, 0, 0]
        got = other.draft_many([
            DraftInput(sequence, text[1 + start :], count, 0.0, h[start:])
            for sequence, text, count, h, start in zip(sequences, texts, counts, hidden, starts, strict=True)
        ])
        for (drafted, likely), (expected, probabilities), sequence, text in zip(
            got, alone, sequences, texts, strict=True
        ):
            assert drafted == expected
            assert likely == pytest.approx(probabilities, rel=1e-5)
            assert sequence.length == len(text) - 1 + len(drafted) - 1


@pytest.mark.parametrize("kind", HEADS[:1])
def test_hidden_states_are_asked_for(kind: str) -> None:
    """A head without them would read memory that is not there; so would other models with them."""
    target, head = native(kind, "fp32")
    size = target.spec.hidden_size
    with pytest.raises(IpexAssistError, match=rf"reads hidden states \(2, {size}\): none given"):
        head.forward([Rows(head.new_sequence(9), [1, 2])])
    with pytest.raises(IpexAssistError, match=rf"\(2, {size}\): \(1, {size}\) given"):
        head.draft(head.new_sequence(9), [1, 2], 2, hidden=np.zeros((1, size), np.float32))
    with pytest.raises(IpexAssistError, match="no draft head"):
        target.forward([Rows(target.new_sequence(9), [1], 1, np.zeros((1, size), np.float32))])


def test_a_table_and_head_of_the_target() -> None:
    """They are not in the image of a head, and without them it does not run."""
    target, head = native("deepseek-v3", "bf16")
    assert head.spec.head is not None
    assert head.spec.head.shared_embedding
    assert head.packed.nbytes < target.packed.nbytes / 2
