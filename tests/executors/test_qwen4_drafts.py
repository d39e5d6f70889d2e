"""Qwen4's layer that predicts further tokens computes what its description says, around transformers' layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import draft_heads
import pytest
import tiny_models
import torch
from conftest import EXECUTORS
from native_models import tokens
from qwen4_drafts import Reference, save_mtp

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.interface import HiddenRows, Rows
from ipex_assist.models.draft_head import Taps

VARIANTS = tiny_models.known("qwen4-exp", "qwen4-exp-many", "qwen4-exp-ngrams")
PLACES = ["mtp.", "model.mtp.", "language_model.mtp.", "model.language_model.mtp."]
PROMPT = tokens(40, 3)

pytestmark = pytest.mark.skipif(not VARIANTS, reason="of today's transformers")


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_of_a_layer(variant: str, executor: str, tmp_path: Path) -> None:
    """All rows, of which late ones choose among pools: streams that enter by one norm of all, in chunks as well."""
    reference = Reference(tmp_path, save_mtp(tmp_path, variant))
    target, head = draft_heads.load(tmp_path, executor=executor)
    hidden = draft_heads.hidden_of(target, head, PROMPT[:-1])
    streams = reference.streams(PROMPT[:-1])
    torch.testing.assert_close(torch.from_numpy(hidden), streams, atol=1e-4, rtol=0)
    expected, _ = reference.mtp(PROMPT[1:], streams)
    logits = head.forward([Rows(head.new_sequence(64), PROMPT[1:], len(PROMPT) - 1, hidden)])
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    sequence, read = head.new_sequence(64), PROMPT[1:]
    for start, end in ((0, 7), (7, 8), (8, 29), (29, 39)):
        logits = head.forward([Rows(sequence, read[start:end], end - start, hidden[start:end])])
        torch.testing.assert_close(logits, expected[start:end], atol=1e-4, rtol=0)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("place", PLACES)
def test_further_tokens(place: str, executor: str, tmp_path: Path) -> None:
    """The layer again, with its own streams, by each of its names: drafts that end are those that go on."""
    reference = Reference(tmp_path, save_mtp(tmp_path, place=place), place)
    target, head = draft_heads.load(tmp_path, executor=executor)
    hidden, read = draft_heads.hidden_of(target, head, PROMPT[:-1]), PROMPT[1:]
    given, expected = torch.from_numpy(hidden), []
    for _ in range(4):
        logits, own = reference.mtp(read, given)
        shares = logits[-1].softmax(0)
        expected.append((int(shares.argmax()), float(shares.max())))
        read, given = [*read, expected[-1][0]], torch.cat((given, own[-1:]))
    draft_heads.check_drafts(head, PROMPT[1:], hidden, expected)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_streams_of_layers(executor: str, tmp_path: Path) -> None:
    """Of layers with n-grams, too, all of them and their means; without saying which there are none."""
    save_mtp(tmp_path)
    target = tiny_models.model(tmp_path, executor)
    layers, found = tuple(range(target.spec.num_hidden_layers + 1)), {}
    for streams in ("mean", "all"):
        hidden = HiddenRows(Taps(layers, streams=streams))
        target.forward([Rows(target.new_sequence(40), PROMPT, 1)], hidden=hidden)
        assert hidden.rows is not None
        found[streams] = torch.from_numpy(hidden.rows).unflatten(1, (len(layers), -1))
    each = found["all"].unflatten(2, (4, -1))
    torch.testing.assert_close(found["mean"], each.mean(2), atol=1e-5, rtol=0)
    assert torch.equal(each[:, 0, 0], each[:, 0, 3])  # the embedding
    assert not torch.equal(each[:, 1], each[:, 0])
    for taps in (Taps(layers), Taps(layers, True, "all")):
        with pytest.raises(IpexAssistError, match="4 rows"):
            target.forward([Rows(target.new_sequence(40), PROMPT, 1)], hidden=HiddenRows(taps))


@pytest.mark.parametrize(
    "changes",
    [
        {"mtp_num_hidden_layers": 2},
        {"mtp_use_dedicated_embeddings": True},
        {"mtp": {"num_hidden_layers": 2}},
        {"mtp": {"layer_types": ["linear_attention"]}},
        {"mtp": {"layer_types": ["full_attention"] * 2}},
        {"mtp": {"mtp_use_hidden_state_from_layer": 2}},
        {"mtp": {"rope_theta": 5e4}},
    ],
    ids=str,
)
def test_layers_that_are_not_computed(changes: dict[str, Any], tmp_path: Path) -> None:
    """The target runs without them."""
    save_mtp(tmp_path, **changes)
    with pytest.raises(UsageError, match="no layers that predict further tokens"):
        draft_heads.load(tmp_path)


def test_other_forms(tmp_path: Path) -> None:
    """The layer is known by its tensors; newer configs call its attention otherwise; experts may be apart."""
    named = {"layer_types": ["qwen_sparse_attention"], "rope_theta": 10000.0}
    forms: list[dict[str, Any]] = [{"mtp": None, "mtp_num_hidden_layers": None}, {"mtp": named}, {"fused": False}]
    drafts = []
    for number, form in enumerate(forms):
        save_mtp(tmp_path / str(number), **form)
        target, head = draft_heads.load(tmp_path / str(number))
        hidden = draft_heads.hidden_of(target, head, PROMPT[:-1])
        drafts.append(head.forward([Rows(head.new_sequence(64), PROMPT[1:], 1, hidden)]))
    assert all(torch.equal(each, drafts[0]) for each in drafts)
