"""The bytes of single tokens, for OpenAI's log-probabilities; a token may be less than a character."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_characters() -> dict[str, int]:
    """The characters that stand for bytes in GPT-2's vocabulary: printable ones themselves, others from U+0100 on.

    Source: bytes_to_unicode() of openai/gpt-2, encoder.py.
    """
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


def _decoder_kinds(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """The types of all steps of the tokenizer's decoder. Its vocabulary does not tell: "Ġ" is a letter of Llama 2's."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # one in Python; of SentencePiece if it has bytes
        return {"ByteFallback"} if "<0x0A>" in tokenizer.get_vocab() else set()
    left = [json.loads(backend.decoder.__getstate__())] if backend.decoder is not None else []
    kinds = set()
    while left:
        step = left.pop()
        kinds.add("Metaspace" if step.get("pattern") == {"String": "▁"} else step["type"])
        left += step.get("decoders", [])
    return kinds


class TokenBytes:
    """Bytes of a tokenizer's tokens: byte-level BPE, SentencePiece with byte fallback, else decoded one by one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        kinds = _decoder_kinds(tokenizer)
        self._byte_level = _byte_characters() if "ByteLevel" in kinds else None
        self._sentencepiece, self._bytes = bool(kinds & {"ByteFallback", "Metaspace"}), "ByteFallback" in kinds
        self._known: dict[int, bytes] = {}

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token adds to a text; the name of a special token."""
        if token not in self._known:
            self._known[token] = self._find(token)
        return self._known[token]

    def hidden(self, token: int) -> bool:
        """Whether it is a special token, which texts do not show."""
        return token in self._special

    def text_of(self, token: int) -> str:
        """The token's text, with incomplete characters as \\xNN, as OpenAI writes them."""
        return self.bytes_of(token).decode("utf-8", errors="backslashreplace")

    def _find(self, token: int) -> bytes:
        name = self._tokenizer.convert_ids_to_tokens(token)
        if not isinstance(name, str):  # padding rows of the embedding have no name
            return b""
        if token in self._special:
            return name.encode()
        if self._byte_level is not None:  # tokens that were added may have other characters
            known = all(character in self._byte_level for character in name)
            return bytes(self._byte_level[character] for character in name) if known else name.encode()
        if self._sentencepiece:
            byte = _BYTE.fullmatch(name) if self._bytes else None
            return bytes([int(byte[1], 16)]) if byte else name.replace("▁", " ").encode()
        before = [] if self._word is None else [self._word]
        return self._text([*before, token]).removeprefix(self._text(before)).encode()

    @cached_property
    def _word(self) -> int | None:
        """A token that is a word, after which another one has the space before it that it has in a text."""
        ids = sorted(self._tokenizer.get_vocab().values())
        return next((i for i in ids if i not in self._special and self._text([i]).isalnum()), None)

    def _text(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens))
