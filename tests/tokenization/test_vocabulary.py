"""Shared vocabularies: equal, padded, and every way of being different."""

from __future__ import annotations

import time

import pytest

from ipex_assist.env.errors import UsageError
from ipex_assist.tokenization.vocabulary import check_vocabulary


class Tokenizer:
    def __init__(self, tokens: list[str | None]) -> None:
        self.vocab = {token: index for index, token in enumerate(tokens) if token is not None}

    def get_vocab(self) -> dict[str, int]:
        return dict(self.vocab)


ABC = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("target", "assistant", "target_rows", "assistant_rows"),
    [
        (ABC, ABC, 3, 3),
        (ABC, ABC, 8, 4),  # Qwen2.5: 152064 and 151936 rows of one vocabulary
        ([*ABC, "<think>"], ABC, 4, 8),  # a token the assistant has only a padded row for
        (ABC, [*ABC, "<tool>"], 8, 4),
        (["a", None, "c"], ABC, 3, 3),  # a hole is padding too
    ],
)
def test_shared_or_padded(target, assistant, target_rows, assistant_rows):
    check_vocabulary(Tokenizer(target), Tokenizer(assistant), target_rows, assistant_rows)


@pytest.mark.parametrize(
    ("target", "assistant", "target_rows", "assistant_rows", "difference"),
    [
        (ABC, ["a", "x", "y"], 3, 3, "id 1: 'b' for the target, 'x' for the assistant"),
        (ABC, ["b", "a", "c"], 3, 3, "id 0: 'a' for the target, 'b' for the assistant"),  # same set, other order
        (ABC, ABC[:2], 3, 2, "id 2: 'c' for the target, no row for the assistant"),
        (ABC[:2], ABC, 2, 3, "id 2: no row for the target, 'c' for the assistant"),
        (ABC, ABC, 3, 2, "id 2: 'c' for the target, no row for the assistant"),  # a tokenizer larger than its model
    ],
)
def test_different(target, assistant, target_rows, assistant_rows, difference):
    with pytest.raises(UsageError) as caught:
        check_vocabulary(Tokenizer(target), Tokenizer(assistant), target_rows, assistant_rows)
    message = str(caught.value)
    assert difference in message
    assert (
        f"{len(target)} tokens in {target_rows} rows; assistant: {len(assistant)} tokens in {assistant_rows}" in message
    )
    assert "--assistant-model" in message


def test_large_vocabularies_are_compared_quickly():
    """Would catch looking tokens up one by one in the tokenizer: 150,000 ids must not cost seconds."""
    tokens = [f"token{index}" for index in range(150_000)]
    start = time.perf_counter()
    check_vocabulary(Tokenizer(tokens), Tokenizer(tokens[:-1]), 151_936, 151_936)
    assert time.perf_counter() - start < 1.0
