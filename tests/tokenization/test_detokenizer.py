"""Text as it streams: whole characters, stop strings that span tokens, and nothing lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipex_assist.tokenization.detokenizer import IncrementalDetokenizer

pytestmark = pytest.mark.one_stack


class ByteTokenizer:
    """A tokenizer with one token a byte, as byte-level tokenizers write rare characters; 256 is a special token."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """UTF-8, with replacement marks for what is no character."""
        return bytes(t for t in token_ids if t < 256).decode("utf-8", errors="replace")


def feed(text: bytes, stop: Sequence[str] = ()) -> tuple[list[str], IncrementalDetokenizer]:
    """Return all pieces, the last one from `finish`."""
    stream = IncrementalDetokenizer(ByteTokenizer(), stop)
    pieces = []
    for byte in text:
        pieces.append(stream.push(byte))
        if stream.stopped:
            break
    return [*pieces, stream.finish()], stream


def test_a_character_comes_when_it_is_whole() -> None:
    """There is no replacement mark between the bytes of é or of an emoji."""
    pieces, _ = feed("aé😀b".encode())
    assert pieces == ["a", "", "é", "", "", "", "😀", "b", ""]


@given(st.text())
def test_nothing_is_lost(text: str) -> None:
    """Whatever the text, the pieces add up to it."""
    assert "".join(feed(text.encode())[0]) == text


@given(st.text(alphabet="abé😀 "), st.lists(st.text(alphabet="abé ", min_size=1), max_size=3))
def test_stop_strings_cut_at_the_first(text: str, stop: list[str]) -> None:
    """Equal to looking for the stop strings in the whole text, and never released too early."""
    first = min((at for at in map(text.find, stop) if at >= 0), default=None)
    pieces, stream = feed(text.encode(), stop)
    if first is None:
        assert "".join(pieces) == text
    else:
        # A stop string that ends first wins over one that begins first but ends later.
        assert stream.stopped
        ends = [text.find(s) + len(s) for s in stop if s in text]
        earliest_end = text[: min(ends)]
        assert "".join(pieces) == text[: min(at for at in map(earliest_end.find, stop) if at >= 0)]


def test_a_possible_stop_is_held_back_and_given_up() -> None:
    """ "EN" may become "END": held. "ENX" cannot: released."""
    pieces, stream = feed(b"a EN", ["END"])
    assert "".join(pieces[:-1]) == "a "
    assert pieces[-1] == "EN"
    assert not stream.stopped
    assert "".join(feed(b"a ENX", ["END"])[0][:-1]) == "a ENX"


def test_half_a_character_at_the_end_is_shown_as_such() -> None:
    """max-new-tokens may fall inside a character; the text says so instead of dropping it."""
    pieces, _ = feed("é".encode()[:1])
    assert pieces == ["", "\ufffd"]


def test_a_real_replacement_mark_is_released() -> None:
    """A text may contain U+FFFD itself: it is held back only until something follows."""
    assert "".join(feed("a\ufffdb".encode())[0]) == "a\ufffdb"


def test_special_tokens_have_no_text() -> None:
    """A special token in the middle neither shows nor disturbs."""
    stream = IncrementalDetokenizer(ByteTokenizer())
    assert [stream.push(t) for t in (97, 256, 98)] == ["a", "", "b"]


@pytest.mark.parametrize("invalid", [b"\xff", b"\xc3\x28", b"\xf0\x9f"])
def test_invalid_bytes_do_not_block_the_stream(invalid: bytes) -> None:
    """A model may write bytes that never become a character; what follows must still come."""
    assert "".join(feed(b"a" + invalid + b" more")[0]).endswith(" more")


class Words:
    """Tokens that are words, as SentencePiece's decoders write them: without the space of the first. 9: <end>."""

    names = ("▁The", "▁end", "is", "▁", "<0xC3>", "<0xA9>", "a", "b", "c", "<end>")

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        pieces = [self.names[token] for token in token_ids if token != 9]
        raw = b"".join(bytes([int(p[3:5], 16)]) if p[0] == "<" else p.replace("▁", " ").encode() for p in pieces)
        return raw.decode("utf-8", errors="replace").removeprefix(" ")


@pytest.mark.parametrize(
    ("before", "tokens", "text"),
    [
        ([], [1, 0], "end The"),  # an answer begins
        ([0], [1, 0], " end The"),
        ([0], [2, 1], "is end"),
        ([0, 1, 0, 1, 0], [3, 6], " a"),
        ([9], [1], "end"),
        ([0, 9, 9, 9, 9, 9], [1], " end"),
        ([6, 4], [5, 1], "\ufffd end"),  # half of a character in the prompt
        ([6, 4, 5], [1], " end"),
    ],
)
def test_a_text_that_goes_on_keeps_its_first_space(before, tokens, text) -> None:
    """Would catch "The capital of France isParis"."""
    stream = IncrementalDetokenizer(Words(), before=before)
    pieces = [stream.push(token) for token in tokens] + [stream.finish()]
    assert "".join(pieces) == text == stream.text


@pytest.mark.parametrize(
    ("stop", "text", "found"),
    [
        ("<end>", "ab", "<end>"),
        ("b<end>", "a", "b<end>"),
        ("c<end>", "abc", None),
        ("c", "ab", "c"),
        ("<end>c", "ab", "<end>c"),
        ("b<end>c", "a", "b<end>c"),
        ("ab<end>c", "", "ab<end>c"),
        ("<end>ca", "abc", None),
        ("bc", "a", "bc"),
    ],
)
def test_a_stop_string_may_be_a_special_token(stop, text, found) -> None:
    """Texts do not show these tokens, so that a search in the text finds nothing."""
    stream = IncrementalDetokenizer(Words(), [stop], special={9: "<end>"})
    pieces = []
    for token in (6, 7, 9, 8):
        pieces.append(stream.push(token))
        if stream.stopped:
            break
    pieces.append(stream.finish())
    assert ("".join(pieces), stream.stop_text) == (text, found)
