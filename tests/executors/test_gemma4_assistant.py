"""Gemma 4's assistants draft what transformers drafts with them, over keys and values of their target."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import draft_heads
import numpy as np
import pytest
import tiny_models
import torch
from conftest import EXECUTORS, HAS_NATIVE
from native_models import INT8_KEYS, PRECISIONS, pool, tokens
from numpy.typing import NDArray

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.interface import DraftInput, DraftsInOneCall, HiddenRows, Rows, Sequence
from ipex_assist.executors.load import head_of
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.models.draft_head import Taps
from ipex_assist.native.library import unavailable

transformers = pytest.importorskip("transformers")
if not hasattr(transformers, "Gemma4AssistantForCausalLM"):
    pytest.skip("this transformers has no Gemma 4", allow_module_level=True)

DRAFTED = 5


# Clusters of whole blocks of 16 tokens, and of 5, which begin anywhere in one.
CLUSTERS = {
    "clusters": {"use_ordered_embeddings": True, "num_centroids": 10, "centroid_intermediate_top_k": 3},
    "clusters-of-5": {"use_ordered_embeddings": True, "num_centroids": 32, "centroid_intermediate_top_k": 7},
}
KINDS: dict[str, dict[str, Any]] = {"plain": {}, **CLUSTERS}
needs_core = pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")


@pytest.fixture(autouse=True)
def _all_layers_share() -> Iterator[None]:
    with draft_heads.all_layers_share():
        yield


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", ["gemma4", "gemma4-everything"])
def test_drafts_as_transformers_does(variant: str, kind: str, executor: str, tmp_path: Path) -> None:
    """Drafts after prompts within the window and beyond it: a wrong layer of the target's, a window that is off by
    one, a cap of logits or hidden states before the final norm would change them.
    """
    model, assistant = draft_heads.save_assistant(tmp_path / "target", tmp_path / "head", variant, **KINDS[kind])
    target, head = draft_heads.load(tmp_path / "target", tmp_path / "head", executor)
    for count in (2, 9, 10, 11, 30):
        prompt = tokens(count, count)
        read, drafted, logits = _drafted(model, assistant, prompt)
        sequence, hidden = target.new_sequence(64), HiddenRows(head.spec.head.taps)
        target.forward([Rows(sequence, prompt, 0)], hidden=hidden)
        assert isinstance(head, DraftsInOneCall)
        request = DraftInput(head.new_sequence(64), read[-1:], DRAFTED, 0.0, hidden.rows[-1:], sequence)
        [(found, confidences)] = head.draft_many([request])
        assert found == drafted
        assert confidences == pytest.approx(logits.softmax(1).amax(1).tolist(), rel=1e-4)


def _drafted(model: Any, assistant: Any, prompt: list[int]) -> tuple[list[int], list[int], torch.Tensor]:
    """What transformers drafts first after a prompt: all tokens known, those drafted, and their logits."""
    from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator as Generator

    assistant.generation_config.num_assistant_tokens = DRAFTED
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    with draft_heads.rounds_of(Generator) as rounds:
        model.generate(ids, attention_mask=torch.ones_like(ids), assistant_model=assistant, **options)
    return rounds[0]


def _pair(folder: Path, precision: str, threads: int) -> tuple[NativeModel, NativeModel]:
    """The saved target and head; a precision of keys and values may follow that of linears."""
    precision, _, kv_precision = precision.partition("+")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ipex_assist.executors.native.loading.planned_pool", lambda: pool(threads))
        target, head = draft_heads.load(folder / "target", folder / "head", "native", precision)
    assert isinstance(target, NativeModel)
    assert isinstance(head, NativeModel)
    return NativeModel(target.packed, kv_precision=kv_precision) if kv_precision else target, head


def _save_long(folder: Path, kind: str) -> None:
    longer = {"max_position_embeddings": 1024}
    draft_heads.save_assistant(folder / "target", folder / "head", "gemma4-everything", longer, **KINDS[kind])


def _read(target: NativeModel, text: list[int], capacity: int = 600) -> tuple[Sequence, NDArray[np.float32]]:
    """A sequence of the target that holds a text, and the hidden state of its last token."""
    sequence, hidden = target.new_sequence(capacity), HiddenRows(Taps((target.spec.num_hidden_layers,), normed=True))
    target.forward([Rows(sequence, text, 0)], hidden=hidden)
    assert hidden.rows is not None
    return sequence, hidden.rows[-1:]


# Within the first block, up to its end, one beyond it, beyond the window in the second; and 20 that together are more
# rows than the decode path takes.
LENGTHS = [300, 5, 255, 256, 257, 1]


@needs_core
@pytest.mark.parametrize("precision", [*PRECISIONS, *INT8_KEYS])
@pytest.mark.parametrize("kind", ["plain", "clusters-of-5"])
def test_no_bit_depends_on_the_others(kind: str, precision: str, tmp_path: Path) -> None:
    """Drafts together are each alone, however many there are and on any number of threads, and shorter ones begin
    longer ones; a position that is not there, or one that the draft itself took, would be read as it is by chance.
    """
    _save_long(tmp_path, kind)
    texts = [tokens(length, length) for length in [*LENGTHS, *range(30, 50)]]
    expected = None
    for threads in (1, 2, 3):
        target, head = _pair(tmp_path, precision, threads)
        read = [_read(target, text) for text in texts]
        inputs = [
            DraftInput(head.new_sequence(600), text[:1], 2 + index % 5, 0.0, hidden, sequence)
            for index, (text, (sequence, hidden)) in enumerate(zip(texts, read, strict=True))
        ]
        alone = [head.draft_many([each], 150)[0] for each in inputs[: len(LENGTHS)]]
        assert head.draft_many(inputs[: len(LENGTHS)], 150) == alone
        together = head.draft_many(inputs, 150)
        assert together[: len(LENGTHS)] == alone
        expected = expected or together
        assert together == expected
        longer = head.draft_many([replace(each, count=9) for each in inputs], 150)
        assert [
            (drafted[: each.count], likely[: each.count])
            for each, (drafted, likely) in zip(inputs, longer, strict=True)
        ] == expected
        assert all(
            max(drafted) < 150 and len(drafted) == each.count
            for each, (drafted, _) in zip(inputs, together, strict=True)
        )
        assert all(sequence.length == len(text) for text, (sequence, _) in zip(texts, read, strict=True))


@needs_core
@pytest.mark.parametrize("kind", ["plain", "clusters"])
def test_few_tokens_of_a_vocabulary(kind: str, tmp_path: Path) -> None:
    """torch's drafts where few or none of the tokens that a row scores may be drafted, and where drafts end early."""
    draft_heads.save_assistant(tmp_path / "target", tmp_path / "head", "gemma4", **KINDS[kind])
    text, found = tokens(20, 3), []
    for executor in ("torch", "native"):
        target, head = draft_heads.load(tmp_path / "target", tmp_path / "head", executor)
        sequence, hidden = target.new_sequence(64), draft_heads.hidden_of(target, head, text)[-1:]
        target.forward([Rows(sequence, text, 0)])
        assert isinstance(head, DraftsInOneCall)
        given = head.new_sequence(64), text[-1:], 6, 0.0, hidden, sequence
        drafts = [head.draft_many([DraftInput(*given)], vocabulary)[0] for vocabulary in (160, 90, 20, 1)]
        [least] = head.draft_many([DraftInput(*given[:3], drafts[0][1][0] + 1e-3, *given[4:])])
        assert len(least[0]) == 1
        found.append(drafts)
    for (theirs, expected), (ours, likely) in zip(*found, strict=True):
        assert ours == theirs
        assert likely == pytest.approx(expected, rel=1e-4)


@needs_core
def test_blocks_that_move(tmp_path: Path) -> None:
    """A sequence that shares blocks with another, which is written to and freed, drafts as one that has them alone."""
    _save_long(tmp_path, "plain")
    target, head = _pair(tmp_path, "bf16", 2)
    text, other = tokens(300, 3), tokens(40, 4)
    alone, hidden = _read(target, text)
    shared = alone.fork(290)
    target.forward([Rows(shared, text[290:], 0)])
    branch = alone.fork(270)
    target.forward([Rows(branch, other, 0)])
    blocks = [each.blocks for each in (alone, shared, branch)]  # type: ignore[attr-defined]
    assert len({each[0] for each in blocks}) == 1
    assert len({each[1] for each in blocks}) == 3
    request = DraftInput(head.new_sequence(600), text[:1], 5, 0.0, hidden, alone)
    expected = head.draft_many([request])
    del branch
    assert head.draft_many([replace(request, shared_kv=shared)]) == expected
    alone.truncate(280)
    target.forward([Rows(alone, text[280:], 0)])
    assert head.draft_many([request]) == expected


@needs_core
def test_what_cannot_be_drafted(tmp_path: Path) -> None:
    """It would read memory that is not there."""
    _save_long(tmp_path, "plain")
    target, head = _pair(tmp_path, "bf16", 1)
    sequence, hidden = _read(target, [1, 2, 3])
    request = DraftInput(head.new_sequence(9), [1], 2, 0.0, hidden, sequence)
    with pytest.raises(IpexAssistError, match=r"reads hidden states \(1, 64\): none given"):
        head.draft_many([replace(request, hidden=None)])
    with pytest.raises(IpexAssistError, match="2 tokens where a draft goes on after one"):
        head.draft_many([replace(request, tokens=[1, 2], hidden=hidden.repeat(2, 0))])
    with pytest.raises(IpexAssistError, match="at position 0"):
        head.draft_many([replace(request, shared_kv=target.new_sequence(9))])
    _, other = _pair(tmp_path, "fp32", 1)
    with pytest.raises(IpexAssistError, match=r"of 64 columns for 160 tokens cannot use the embedding .* with 48"):
        other.packed.share_table(head.packed)
    assert head.block_bytes == 0


def test_another_target(tmp_path: Path) -> None:
    """An assistant for a wider target is refused with both widths, and for a target with other heads with those."""
    draft_heads.save_assistant(tmp_path / "target", tmp_path / "head", "gemma4")
    head = open_checkpoint(str(tmp_path / "head"))
    tiny_models.save(tmp_path / "wide", "gemma4", hidden_size=128)
    with pytest.raises(UsageError, match="64 values, and this one has 128"):
        head_of(open_checkpoint(str(tmp_path / "wide")), head)
    tiny_models.save(tmp_path / "llama", "llama")
    with pytest.raises(UsageError, match="no layers with a window"):
        head_of(open_checkpoint(str(tmp_path / "llama")), head)
