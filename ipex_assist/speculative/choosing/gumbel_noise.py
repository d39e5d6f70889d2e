"""Gumbel noise as a pure function of seed, position and token, so that any of it can be computed anywhere.

A counter-based generator (Salmon et al. 2011): the 64 bits of token x are SplitMix64's finalizer (Steele, Lea, Flood
2014; constants by Stafford) of key + x × γ, where the key is derived from seed and position by the same finalizer.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Floats = NDArray[np.float64]
Bits = NDArray[np.uint64]

_GAMMA = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1
# This many of the 64 bits make a number between 0 and 1. Half a step is added, so that it is neither 0 nor 1; that
# needs one bit more, 53, which is what a float64 holds.
_USED = 52
_STEP = 2.0**-_USED


def gumbel(seed: int, position: int, ids: Ids) -> Floats:
    """Standard Gumbel noise -log(-log u), of the shape of `ids`. position: index of the output token, ≥ 0."""
    return from_bits(bits(seed, position, ids))


def bits(seed: int, position: int, ids: Ids) -> Bits:
    """The 64 random bits that each token's noise is computed from."""
    return _mix(ids.astype(np.uint64) * np.uint64(_GAMMA), seed, position)


def all_bits(seed: int, position: int, count: int) -> Bits:
    """`bits` of the tokens 0 to count - 1."""
    return _mix(_multiples(count).copy(), seed, position)


def from_bits(random: Bits) -> Floats:
    """Noise from its bits; it decreases as the bits, read as a number, grow.

    u = 1 - v for a v of 52 bits. Large noise, by which an unlikely token wins, comes from a small v,
    where log1p loses no precision: the steps of v are 2e-16, for a token of probability 1e-7 1e-9 of it.
    """
    small = ((random >> np.uint64(64 - _USED)).astype(np.float64) + 0.5) * _STEP
    return -np.log(-np.log1p(-small))


def bits_above(noise: float) -> int:
    """Return a tight upper bound for the bits of tokens whose noise is above `noise`."""
    share = -math.expm1(-math.exp(-noise)) if noise > -6 else 1.0  # P(G > g) = 1 - exp(-exp(-g))
    return min(_MASK, int(share * (1 + 1e-9) * 2.0**64) + (2 << (64 - _USED)))


@functools.lru_cache(maxsize=8)
def _multiples(count: int) -> Bits:
    return np.arange(count, dtype=np.uint64) * np.uint64(_GAMMA)


def _mix(products: Bits, seed: int, position: int) -> Bits:
    """The finalizer of products + key, in place."""
    z = products
    z += np.uint64(_key(seed, position))
    shifted = z >> np.uint64(30)
    z ^= shifted
    z *= np.uint64(_FIRST)
    np.right_shift(z, np.uint64(27), out=shifted)
    z ^= shifted
    z *= np.uint64(_SECOND)
    np.right_shift(z, np.uint64(31), out=shifted)
    z ^= shifted
    return z


def _key(seed: int, position: int) -> int:
    return _finalize(_finalize(seed + _GAMMA) + (position + 1) * _GAMMA)


def _finalize(z: int) -> int:
    z &= _MASK
    z = (z ^ (z >> 30)) * _FIRST & _MASK
    z = (z ^ (z >> 27)) * _SECOND & _MASK
    return z ^ (z >> 31)
