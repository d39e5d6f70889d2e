"""Hidden states that a pass gives beside its logits: what torch computes there, in the same bits however rows pass."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
from conftest import EXECUTORS, HAS_NATIVE
from native_models import PRECISIONS, folder, loaded, tokens
from test_sparse_attention import lower_of_equal

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import HiddenRows, Rows
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.executors.row_choice import RowChoice, SamplingRule
from ipex_assist.executors.torch.model import TorchModel
from ipex_assist.models.draft_head import Taps
from ipex_assist.native.library import unavailable

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]

# Plain, norms of the sum and a projected embedding, after, around, parallel; recurrent, latent, with experts; layers
# that read what those before them read.
VARIANTS = tiny_models.known(
    *("llama", "opt-350m", "olmo2", "gemma2", "gpt-neox", "cohere", "bloom"),
    *("lfm2", "granite-hybrid", "qwen3-next", "deepseek-v3-dense", "granitemoe", "gemma4", "gemma4-moe"),
    *("falcon-h1", "kimi-linear", "zamba2"),
)
KEPT = ["llama", "opt-350m", "gemma2", "gpt-neox"]
STREAMS = tiny_models.known("hy-v4", "glm5-next", "deepseek-v4")  # several, which the final norm reads as one
KEPT += [*tiny_models.known("qwen3-next", "deepseek-v3-dense", "granitemoe", "falcon-h1"), *STREAMS]


def taps_of(model: NativeModel, normed: bool = True) -> Taps:
    """The last first: the order is the caller's; of several streams, what the final norm gives."""
    count = model.spec.num_hidden_layers
    return Taps((count,), True) if model.spec.streams is not None else Taps((count, 0, 1, count - 1), normed)


def given(model: NativeModel, text: list[int], sizes: list[int], taps: Taps) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states of a text in calls of these sizes, and logits of the last row of each."""
    sequence, done = model.new_sequence(700), 0
    rows, logits = [], []
    for size in sizes:
        hidden = HiddenRows(taps)
        logits.append(model.forward([Rows(sequence, text[done : done + size], 1)], None, hidden).clone())
        assert hidden.rows is not None
        rows.append(torch.from_numpy(hidden.rows))
        done += size
    assert done == len(text)
    return torch.cat(rows), torch.cat(logits)


@pytest.mark.parametrize("variant", VARIANTS)
def test_states_are_those_of_torch(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy before the addition, of another layer, without the last layer's, or of rows with logits alone."""
    model, reference = loaded(variant, "fp32"), tiny_models.model(folder(variant))
    assert isinstance(reference, TorchModel)
    seen: list[torch.Tensor] = []
    plain = reference.layer

    def watched(x: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append(x)
        return plain(x, *rest)

    monkeypatch.setattr(reference, "layer", watched)
    heads: list[torch.Tensor] = []
    head = reference.head

    def last(x: torch.Tensor) -> torch.Tensor:
        heads.append(x)
        return head(x)

    monkeypatch.setattr(reference, "head", last)
    text = tokens(40, 3)
    reference.extend(reference.new_sequence(64), text, 40)
    norm = reference._norm
    for normed in (False, True):
        got, _ = given(model, text, [40], taps_of(model, normed))
        count = model.spec.num_hidden_layers
        end = norm(heads[0], reference.weights.final_norm) if normed and model.spec.final_norm else heads[0]
        expected = torch.cat((end, seen[0], seen[1], seen[count - 1]), 1)
        assert got.shape == expected.shape
        scale = expected.abs().max()
        assert float((got - expected).abs().max() / scale) < 1e-4


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("variant", STREAMS)
def test_states_of_several_streams(variant: str, executor: str, tmp_path: Path) -> None:
    """What transformers' final norm gives of them; and of other layers there is no such state."""
    theirs, text = tiny_models.save(tmp_path, variant).model, tokens(40, 3)
    with torch.no_grad(), lower_of_equal():
        expected = getattr(theirs, "language_model", theirs)(torch.tensor([text]), use_cache=False).last_hidden_state
    model = tiny_models.model(tmp_path, executor)
    count, hidden = model.spec.num_hidden_layers, HiddenRows(Taps((model.spec.num_hidden_layers,), True))
    model.forward([Rows(model.new_sequence(64), text, 1)], None, hidden)
    assert hidden.rows is not None
    torch.testing.assert_close(torch.from_numpy(hidden.rows), expected[0], atol=1e-4, rtol=0)
    for taps in (Taps((count,)), Taps((count, 1), True), Taps((1,), True)):
        with pytest.raises(IpexAssistError):
            model.forward([Rows(model.new_sequence(64), text, 1)], None, HiddenRows(taps))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("variant", KEPT)
def test_no_bit_depends_on_the_others(variant: str, precision: str) -> None:
    """Taps change no logits, and a row's states are the same in any chunk, on any number of threads."""
    text = tokens(300, 5)
    model = loaded(variant, precision)
    taps = taps_of(model)
    whole, _ = given(model, text, [300], taps)
    sizes = [200, 3, 1, 16, 17, 63]
    parts, logits = given(model, text, sizes, taps)
    assert torch.equal(parts, whole)
    for threads in (2, 3):
        assert torch.equal(given(loaded(variant, precision, threads), text, sizes, taps)[0], whole)
    sequence, done = model.new_sequence(700), 0
    for row, size in enumerate(sizes):
        plain = model.forward([Rows(sequence, text[done : done + size], 1)])
        assert torch.equal(plain[0], logits[row]), "taps changed logits"
        done += size


@pytest.mark.parametrize(("executor", "precision"), [("torch", "fp32"), ("native", "fp32"), ("native", "int4")])
@pytest.mark.parametrize("variant", ["llama", *tiny_models.known("lfm2", "gemma4", "glm5-next", "hy-v4")])
def test_states_of_rows_with_logits_alone(variant: str, executor: str, precision: str) -> None:
    """Those of other rows, a place of another sequence, or logits that differ where fewer rows pass through layers."""
    model = loaded(variant, precision) if executor == "native" else tiny_models.model(folder(variant))
    count = model.spec.num_hidden_layers
    sizes = [(250, 1), (9, 0), (40, 3), (1, 1)]  # the second pass of the core begins within the third
    found = []
    for of_logit_rows in (False, True):
        layers = (count, 0, count - 1) if model.spec.streams is None else (count,)
        hidden = HiddenRows(Taps(layers, normed=True), of_logit_rows)
        rows = [Rows(model.new_sequence(300), tokens(length, length), last) for length, last in sizes]
        logits = model.forward(rows, None, hidden).clone()
        assert hidden.rows is not None
        found.append((logits, hidden.rows))
    (logits, states), (same_logits, chosen) = found
    assert torch.equal(logits, same_logits)
    ends = list(itertools.accumulate(length for length, _ in sizes))
    kept = [row for end, (_, last) in zip(ends, sizes, strict=True) for row in range(end - last, end)]
    assert np.array_equal(chosen, states[kept])


@pytest.mark.parametrize("variant", ["llama", *tiny_models.known("lfm2")])
def test_rows_of_a_call_are_in_its_order(variant: str) -> None:
    """Of several sequences, over the border of two passes, without logits, and where tokens are chosen in the core."""
    model = loaded(variant, "bf16", 2)
    texts = [tokens(length, length) for length in (250, 9, 40)]
    taps = Taps((1, model.spec.num_hidden_layers))
    alone = [given(model, text, [len(text)], taps)[0] for text in texts]
    rule = SamplingRule(temperature=0.0)
    for last in (0, 1):
        hidden = HiddenRows(taps)
        rows = [Rows(model.new_sequence(300), text, last) for text in texts]
        model.sample(rows, [RowChoice(rule, 0)] * (3 * last), hidden)
        assert hidden.rows is not None
        assert torch.equal(torch.from_numpy(hidden.rows), torch.cat(alone))


def test_a_layer_that_is_not_there() -> None:
    """Its rows would be what the memory held before."""
    model = loaded("llama", "fp32")
    with pytest.raises(IpexAssistError, match=r"layers \(3,\): the model has those that enter its 2"):
        model.forward([Rows(model.new_sequence(9), [1, 2])], None, HiddenRows(Taps((3,))))
