"""Passes of many sequences: drafts and choices are what each has alone."""

from __future__ import annotations

import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from native_models import INT8_KEYS, PRECISIONS, folder, loaded, tokens

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import DraftInput, Rows
from ipex_assist.executors.native.model import NativeSequence
from ipex_assist.native.library import unavailable

native = pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")
SIZE = 256


@native
@pytest.mark.parametrize("variant", ["llama", "mistral-window"])
@pytest.mark.parametrize("precision", [*PRECISIONS, *INT8_KEYS])
def test_many_drafts_are_the_drafts_of_each(variant: str, precision: str) -> None:
    """Each ends by itself: at its count, or after its unsure token; the others go on with fewer rows."""
    model = loaded(variant, precision)
    texts = [tokens(length, length) for length in (5, 40, 255, 256, 300, 1)]
    counts, least = [4, 9, 1, 7, 12, 12], [0.0, 0.0, 0.9, 0.0, 0.0, 0.0]
    pending = [1, 3, 2, 1, 2, 1]

    def sequences() -> list[NativeSequence]:
        made = [model.new_sequence(400) for _ in texts]
        for sequence, text, last in zip(made, texts, pending, strict=True):
            for first in range(0, len(text) - last, 16):
                model.extend(sequence, text[:-last][first : first + 16], 0)
        return made

    alone, after = [], []
    for index, sequence in enumerate(sequences()):
        feed = texts[index][-pending[index] :]
        drafted, likely = model.draft(sequence, feed, counts[index], 150)
        if index == 3:  # ends after its least likely token
            least[3] = sorted(likely)[0] * 1.0001
            ended = next(place for place, each in enumerate(likely) if each < least[3]) + 1
            drafted, likely = drafted[:ended], likely[:ended]
            sequence.truncate(len(texts[index]) + ended - 1)
        alone.append((drafted, likely))
        after.append(model.extend(sequence, drafted[-1:]))
    made = sequences()
    requests = [
        DraftInput(sequence, text[-last:], count, unsure)
        for sequence, text, last, count, unsure in zip(made, texts, pending, counts, least, strict=True)
    ]
    assert model.draft_many(requests, 150) == alone
    assert len({len(drafted) for drafted, _ in alone}) > 3
    for sequence, text, (drafted, _) in zip(made, texts, alone, strict=True):
        assert sequence.length == len(text) + len(drafted) - 1
        assert len(sequence.blocks) == -(-sequence.length // SIZE)
    got = model.forward([Rows(sequence, drafted[-1:]) for sequence, (drafted, _) in zip(made, alone, strict=True)])
    assert torch.equal(got, torch.cat(after))


@native
@pytest.mark.parametrize("precision", PRECISIONS)
def test_choices_are_those_of_the_logits(precision: str) -> None:
    """The likeliest, their log probabilities and the sum, for the rows with logits of several sequences."""
    model = loaded("qwen3", precision)
    texts = [tokens(40), tokens(3, 1), tokens(7, 2)]
    lasts = [3, 0, 7]
    rows = [Rows(model.new_sequence(64), text, last) for text, last in zip(texts, lasts, strict=True)]
    again = [Rows(model.new_sequence(64), text, last) for text, last in zip(texts, lasts, strict=True)]
    for vocabulary in (None, 60):
        expected = model.forward(rows, vocabulary).double()
        choices = model.choose(again, 4, vocabulary)
        logs = expected.log_softmax(-1)
        assert [choice.token for choice in choices] == expected.argmax(-1).tolist()
        for choice, row in zip(choices, logs, strict=True):
            values, ids = row.topk(4)
            assert [token for token, _ in choice.top] == ids.tolist()
            assert [log for _, log in choice.top] == pytest.approx(values.tolist(), abs=1e-4)
            assert choice.log_probability == choice.top[0][1]
        for each in (*rows, *again):
            each.sequence.truncate(0)
    assert model.choose(again)[0].top == []
    with pytest.raises(IpexAssistError, match="the most likely 61 of 60 tokens"):
        model.choose([Rows(model.new_sequence(4), [1])], 61, 60)


@pytest.mark.parametrize(("executor", "variant"), [("torch", "llama"), ("torch", "opt-350m")])
def test_forks_of_an_executor_without_blocks(executor: str, variant: str) -> None:
    """A copy: what one of them writes is not the other's."""
    model = tiny_models.model(folder(variant), executor, "fp32")
    assert model.blocks is None
    whole, fresh = model.new_sequence(64), model.new_sequence(64)
    for each in (whole, fresh):
        model.extend(each, tokens(20))
    fork = whole.fork(18)
    model.extend(whole, tokens(9, 1))
    fresh.truncate(18)
    assert torch.equal(model.extend(fork, tokens(9, 2), 9), model.extend(fresh, tokens(9, 2), 9))
    assert whole.length == 29
    assert fork.capacity == 64
