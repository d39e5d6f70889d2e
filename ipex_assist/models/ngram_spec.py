"""Embeddings of n-grams, as plain data: the numbers of their hashes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ipex_assist.models.config import ConfigError
from ipex_assist.models.ranges import check_ranges

# The least and the largest that each number may be, by Hugging Face's names.
NGRAM_RANGES: dict[str, tuple[str, tuple[float, float]]] = {
    "ngram_size": ("size", (2, 16)),
    "heads_per_ngram": ("heads", (1, 1 << 10)),
    "ple_embed_dim": ("embed_dim", (1, 1 << 20)),
    "ple_conv_kernel_size": ("kernel", (1, 16)),
    "ngram_vocab_size_base": ("base", (1, 1 << 30)),
    "make_ngram_vocab_size_divisible_by": ("divisor", (1, 1 << 20)),
    "split_ngram_parts": ("parts", (1, 1 << 16)),
    "seed": ("seed", (0, (1 << 62) - 1)),
    "eos_token_id": ("end", (0, (1 << 24) - 1)),
}
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_OF_LAYER = 10007  # added to the seed for each such layer before


@dataclass(frozen=True)
class NgramSpec:
    """Qwen4's per-layer embeddings: of a token t_p and those before it, Σ_i t_(p-i) · factor_i by exclusive or.

    For each length n from 2 to `size`, that number of n tokens, modulo one prime for each of `heads` hashes, is a row
    of the table, in which the hashes' rows follow each other; all of a token's rows together have `embed_dim` columns.
    What is before a text, or before the token `end`, counts as `end`. Raises ConfigError for a value out of
    NGRAM_RANGES.

    number: of the layer among those that have such embeddings. parts: tensors that a checkpoint has the table in.
    """

    size: int
    heads: int
    embed_dim: int
    kernel: int  # rows of the convolution, each `size` positions after the one before
    vocab_size: int
    end: int
    number: int
    base: int  # primes are from here on
    divisor: int  # of the table's rows
    seed: int
    parts: int

    def __post_init__(self) -> None:
        check_ranges(self, NGRAM_RANGES)
        if self.embed_dim % self.tables:
            raise ConfigError("ple_embed_dim", self.embed_dim, f"a multiple of {self.tables}, the hashes of a token")

    @property
    def tables(self) -> int:
        """Hashes of a token."""
        return (self.size - 1) * self.heads

    @property
    def kept(self) -> int:
        """Rows that the convolution, or the next token's hashes, read: its own and those before."""
        return max((self.kernel - 1) * self.size + 1, self.size)

    @property
    def factors(self) -> tuple[int, ...]:
        """Of each token of an n-gram, its own first: odd, and small enough that products fit 63 bits (SplitMix64)."""
        bound = max(1, ((1 << 63) - 1) // self.vocab_size // 2)
        first = self.seed + _OF_LAYER * self.number
        return tuple(2 * (_mixed((first + _GAMMA * (i + 1)) & _MASK) % bound) + 1 for i in range(self.size))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The rows of each hash: primes, those of layers after each other."""
        found: list[int] = []
        value = self.base - 1
        while len(found) < (self.number + 1) * self.tables:
            value += 1
            if _is_prime(value):
                found.append(value)
        return tuple(found[-self.tables :])

    @property
    def numbers(self) -> tuple[int, ...]:
        """All of both."""
        return *self.factors, *self.sizes

    @property
    def rows(self) -> int:
        """Of the table."""
        return -(-sum(self.sizes) // self.divisor) * self.divisor

    @property
    def table_size(self) -> int:
        """Elements of the table."""
        return self.rows * (self.embed_dim // self.tables)

    @property
    def part_rows(self) -> int:
        """Of each tensor but the last ones."""
        return -(-self.rows // self.parts)

    @property
    def stored_rows(self) -> tuple[int, ...]:
        """Of each tensor."""
        each = self.part_rows
        return tuple(min(each, self.rows - first) for first in range(0, self.rows, each))


def _mixed(value: int) -> int:
    value = (value + _GAMMA) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def _is_prime(value: int) -> bool:
    if value < 2 or value % 2 == 0:
        return value == 2
    return all(value % divisor for divisor in range(3, math.isqrt(value) + 1, 2))
