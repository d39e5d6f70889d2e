"""Shared vocabularies: equal, padded, longer at either end, and every way of being different."""

from __future__ import annotations

import time

import pytest

from ipex_assist.env.errors import UsageError
from ipex_assist.tokenization.vocabulary import SharedVocabulary, share_vocabulary

pytestmark = pytest.mark.one_stack


class Tokenizer:
    def __init__(self, tokens: list[str | None]) -> None:
        self.vocab = {token: index for index, token in enumerate(tokens) if token is not None}

    def get_vocab(self) -> dict[str, int]:
        return dict(self.vocab)


ABC = ["a", "b", "c"]
EQUAL = SharedVocabulary()


def unknown(*ids: int) -> SharedVocabulary:
    """The target has tokens at these ids that the assistant lacks."""
    return SharedVocabulary(unknown=frozenset(ids))


@pytest.mark.parametrize(
    ("target", "assistant", "target_rows", "assistant_rows", "shared"),
    [
        (ABC, ABC, 3, 3, EQUAL),
        (ABC, ABC, 8, 4, EQUAL),  # Qwen2.5: 152064 and 151936 rows of one vocabulary
        ([*ABC, "<think>"], ABC, 4, 8, unknown(3)),  # a token the assistant has only a padded row for
        ([*ABC, "<pre>", "<suf>"], ABC, 5, 3, unknown(3, 4)),  # Code Llama with TinyLlama
        (ABC, [*ABC, "<tool>"], 8, 4, SharedVocabulary(limit=3)),
        (ABC, [*ABC, "[PAD]", "<im_start>"], 3, 4, SharedVocabulary(limit=3)),  # guanaco, TinyLlama-Chat-v0.1
        (["a", None, "c"], ABC, 3, 3, SharedVocabulary(limit=3, masked=frozenset({1}))),
        (ABC, ["a", None, "c"], 3, 3, unknown(1)),
        (["a", None, "c", "d"], ABC, 4, 3, SharedVocabulary(3, frozenset({1}), frozenset({3}))),
        # A token neither model has a row for: 528 against 512 rows, and a pad token that was never given one.
        ([*ABC, "<pad>"], [*ABC, "<pad>"], 3, 3, EQUAL),
        ([*ABC, "<pad>"], [*ABC, "[PAD]"], 3, 3, EQUAL),
        ([*ABC, "<pad>"], [*ABC, "<pad>"], 4, 3, unknown(3)),
        ([*ABC, "<pad>"], [*ABC, "<pad>"], 3, 4, SharedVocabulary(limit=3)),
    ],
)
def test_shared(target, assistant, target_rows, assistant_rows, shared):
    assert share_vocabulary(Tokenizer(target), Tokenizer(assistant), target_rows, assistant_rows) == shared


@pytest.mark.parametrize(
    ("target", "assistant", "target_rows", "assistant_rows", "difference"),
    [
        (ABC, ["a", "x", "y"], 3, 3, "id 1: 'b' for the target, 'x' for the assistant"),
        (ABC, ["b", "a", "c"], 3, 3, "id 0: 'a' for the target, 'b' for the assistant"),  # same set, other order
        ([*ABC, "<pad>"], [*ABC, "[PAD]", "<tool>"], 4, 5, "id 3: '<pad>' for the target, '[PAD]' for the assistant"),
        (ABC, [None, None, None, "d"], 4, 4, "No id stands for a token in both"),
    ],
)
def test_different(target, assistant, target_rows, assistant_rows, difference):
    with pytest.raises(UsageError) as caught:
        share_vocabulary(Tokenizer(target), Tokenizer(assistant), target_rows, assistant_rows)
    message = str(caught.value)
    assert difference in message
    counts = len(target), len(Tokenizer(assistant).vocab)
    assert f"{counts[0]} tokens in {target_rows} rows; assistant: {counts[1]} tokens in {assistant_rows}" in message
    assert "--assistant-model" in message


@pytest.mark.parametrize(("limit", "wanted", "limited"), [(None, None, None), (5, None, 5), (None, 3, 3), (5, 9, 5)])
def test_limits_join(limit, wanted, limited):
    """--draft-vocabulary narrows further, and never beyond what both models know."""
    assert SharedVocabulary(limit).limited(wanted) == limited


def test_large_vocabularies_are_compared_quickly():
    """Would catch looking tokens up one by one in the tokenizer: 150,000 ids must not cost seconds."""
    tokens = [f"token{index}" for index in range(150_000)]
    start = time.thread_time()
    share_vocabulary(Tokenizer(tokens), Tokenizer(tokens[:-1]), 151_936, 151_936)
    assert time.thread_time() - start < 2.0
