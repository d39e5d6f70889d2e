"""Log-probabilities beside the text of their tokens, where a token's bytes are not what the text shows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ipex_assist.executors.interface import TokenLogprob
from ipex_assist.serve.backend import OutputChunk, TokenDelta
from ipex_assist.serve.logprobs import Logprobs

pytestmark = pytest.mark.one_stack

BYTES = {1: b"ab", 2: b"cd", 3: b"ef", 5: b" Hello", 6: b" world", 7: b"!", 9: b"<think>"}
TEXTS: Any = SimpleNamespace(bytes_of=BYTES.__getitem__, hidden=lambda token: token == 9)


def listed(pieces: list[tuple[int, str]], reason: str) -> list[bytes]:
    """What a text of these pieces lists, a pass each, until it ends for this reason."""
    logprobs, found = Logprobs(TEXTS, stop=True), []
    for token, text in pieces:
        choice = TokenLogprob(token, -1.0)
        found += logprobs.push(OutputChunk([TokenDelta(text, token, False)], [choice], 0, 0))
    return [each.bytes for each in [*found, *logprobs.finish(reason)]]


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_special_tokens_within_a_text(reason: str) -> None:
    """They add nothing to it: tokens behind them are listed, up to the stop text and no further."""
    pieces = [(1, "ab"), (9, ""), (2, "cd"), (3, "" if reason == "stop" else "ef")]
    assert listed(pieces, reason) == [b"ab", b"<think>", b"cd", b"ef"][: 3 if reason == "stop" else 4]


def test_a_first_word_whose_space_is_not_written() -> None:
    """As SentencePiece has it: the last token before the stop text is not cut short for it."""
    assert listed([(5, "Hello"), (6, " world"), (7, "")], "stop") == [b" Hello", b" world"]
    assert listed([(5, "Hello"), (6, " wor")], "stop") == [b" Hello", b" wor"]
    assert listed([(5, "Hel")], "stop") == [b" Hel"]


def test_a_word_with_its_space() -> None:
    assert listed([(5, " Hello"), (6, " world"), (7, "")], "stop") == [b" Hello", b" world"]
