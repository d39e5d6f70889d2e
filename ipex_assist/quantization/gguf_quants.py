"""Quantizes to the block formats of GGUF that the gguf package cannot write: Q4_K, Q5_K, Q6_K, IQ4_NL and IQ4_XS.

A group's scale is searched: values are rounded by several trial scales, to each rounding the scale (and minimum) of
least weighted squared error is computed, and the best is taken. Scales of groups are whole multiples of a superblock's,
which is fitted in the same way; then values are rounded once more. Weights of the error are, where inputs of the matrix
were recorded (the importance matrix), how large these are: w = mean(input²) · √(σ² + x²), as llama.cpp has them; else
√σ² + |x|, which keeps large weights. Layouts: native/formats/blocks/format.h. All in NumPy, in chunks that fit caches.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ipex_assist.quantization.gguf_mix import IQ4_NL, IQ4_XS, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Whole = NDArray[np.int32]

COLUMNS = {Q5_0: 32, Q5_1: 32, Q8_0: 32, Q4_K: 256, Q5_K: 256, Q6_K: 256, IQ4_NL: 32, IQ4_XS: 256}
IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
_CHUNK = 1 << 17  # weights that a task works on
_DELTAS = np.linspace(-0.9, 0.9, 13)  # by which trial ranges differ from the whole one, in steps of a value
_TINY = np.float32(1e-30)
# The nearest of IQ4's values to numbers from -128 to 128 in quarters.
_NEAREST = np.abs(np.arange(-512, 513)[:, None] / 4 - IQ4_VALUES).argmin(1).astype(np.int8)


def quantize(weights: Floats, kind: int, importance: Floats | None = None, threads: int = 1) -> tuple[Bytes, float]:
    """Rows of weights (rows, columns) in blocks (rows, bytes), and the sum of squared errors.

    importance: float32 (columns,), means of inputs squared. The columns are a multiple of COLUMNS[kind], and all
    numbers are finite.
    """
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize
    from gguf.quants import quantize as by_package

    rows, columns = weights.shape
    each, of_package = COLUMNS[kind], GGMLQuantizationType(kind)
    step = max(1, _CHUNK // columns)

    def work(first: int) -> tuple[Bytes, float]:
        x = np.ascontiguousarray(weights[first : first + step], dtype=np.float32)
        if (write := _WRITERS.get(kind)) is None:
            blocks = np.asarray(by_package(x, of_package))
        else:
            errors = _error_weights(x, importance, each)
            blocks = write(x.reshape(-1, each), errors.reshape(-1, each)).reshape(len(x), -1)
        return blocks, float(np.square(dequantize(blocks, of_package) - x).sum(dtype=np.float64))

    with ThreadPoolExecutor(threads) as pool:
        done = list(pool.map(work, range(0, rows, step)))
    return np.concatenate([blocks for blocks, _ in done]), sum(error for _, error in done)


def _error_weights(x: Floats, importance: Floats | None, block: int) -> Floats:
    blocks = x.reshape(-1, block)
    variance = np.einsum("ij,ij->i", blocks, blocks)[:, None] / np.float32(block)
    if importance is None or not importance.any():
        return (np.sqrt(variance) + np.abs(blocks) + _TINY).reshape(x.shape)
    shape = np.sqrt(variance + blocks * blocks).reshape(x.shape) + _TINY
    # No input is so small that the weights it multiplies may be anything.
    return shape * np.maximum(importance, np.float32(1e-4) * importance.mean() + _TINY)


def _sum(a: Floats, b: Floats) -> Floats:
    return np.einsum("...j,...j->...", a, b)


def _affine(x: Floats, w: Floats, most: int) -> tuple[Floats, Floats]:
    """Scales and minima, both from 0 on, of groups x (…, size): values are scale · (0 to most) - minimum."""
    low, high = np.minimum(x.min(-1), 0), x.max(-1)
    span = np.maximum(high - low, _TINY)
    sw, sx = w.sum(-1), _sum(w, x)
    best = np.full(low.shape, np.inf, np.float32)
    scale, minimum = np.zeros_like(low), -low
    for delta in _DELTAS:
        q = np.rint((x - low[..., None]) * ((most + delta) / span)[..., None].astype(np.float32))
        np.clip(q, 0, most, out=q)
        wq = w * q
        sq, sqq, sxq = wq.sum(-1), _sum(wq, q), _sum(wq, x)
        determinant = sw * sqq - sq * sq
        safe = np.where(determinant > 0, determinant, np.float32(1))
        s = np.where(determinant > 0, (sw * sxq - sx * sq) / safe, 0)
        m = np.where(determinant > 0, (sq * sxq - sqq * sx) / safe, 0)
        below = (m < 0) | (determinant <= 0)  # no minimum may be added: the best scale without one
        s = np.where(below, sxq / np.maximum(sqq, _TINY), s)
        m = np.where(below, 0, m)
        error = s * s * sqq + m * m * sw - 2 * s * m * sq - 2 * s * sxq + 2 * m * sx
        better = (error < best) & (s >= 0)
        best = np.where(better, error, best)
        scale, minimum = np.where(better, s, scale), np.where(better, m, minimum)
    return scale.astype(np.float32), minimum.astype(np.float32)


def _symmetric(x: Floats, w: Floats, round_to: Callable[[Floats], Floats], extreme: float) -> Floats:
    """Scales of either sign of groups x (…, size): values are scale · one of those that `round_to` gives.

    extreme: the value that the weight of largest magnitude gets, about.
    """
    at = np.abs(x).argmax(-1)[..., None]
    largest = np.take_along_axis(x, at, -1)[..., 0]
    some = np.abs(largest) > _TINY
    inverse = np.where(some, 1 / np.where(some, largest, 1), 0)
    best, scale = np.full(largest.shape, -np.inf, np.float32), np.zeros_like(largest)
    for delta in _DELTAS:
        # Trials are as far apart as one value of 32, and as four of 127.
        q = round_to(x * (inverse * (extreme + delta * max(1.0, abs(extreme) / 32)))[..., None].astype(np.float32))
        wq = w * q
        sqq, sxq = _sum(wq, q), _sum(wq, x)
        s = sxq / np.maximum(sqq, _TINY)
        better = s * sxq > best  # by how much the error is below that of zeros
        best, scale = np.where(better, s * sxq, best), np.where(better, s, scale)
    return np.where(some, scale, 0).astype(np.float32)


def _half(x: Floats) -> Floats:
    """The nearest fp16 numbers that are finite."""
    return np.clip(x, -65504, 65504).astype(np.float16).astype(np.float32)


def _half_bytes(x: Floats) -> Bytes:
    return x.astype(np.float16).reshape(-1, 1).view(np.uint8)


def _inverse(x: Floats) -> Floats:
    return np.where(np.abs(x) > _TINY, 1 / np.where(np.abs(x) > _TINY, x, 1), 0).astype(np.float32)


def _with_minima(x: Floats, w: Floats, bits: int) -> tuple[Floats, Floats, Whole, Whole, Whole]:
    """Q4_K's and Q5_K's numbers of superblocks x (n, 256): two scales (n,), factors and minima (n, 8), values."""
    most = (1 << bits) - 1
    x, w = x.reshape(-1, 8, 32), w.reshape(-1, 8, 32)
    scales, minima = _affine(x, w, most)
    d, dmin = _half(scales.max(1) / 63), _half(minima.max(1) / 63)
    found = None
    for _ in range(3):
        factors = np.clip(np.rint(scales * _inverse(d)[:, None]), 0, 63)
        whole = np.clip(np.rint(minima * _inverse(dmin)[:, None]), 0, 63)
        step, less = d[:, None] * factors, dmin[:, None] * whole
        q = np.clip(np.rint((x + less[..., None]) * _inverse(step)[..., None]), 0, most)
        error = _sum(w, np.square(step[..., None] * q - less[..., None] - x)).sum(1)
        if found is None:
            found = [error, d, dmin, factors, whole, q]
        else:
            better = error < found[0]
            for index, new in enumerate((error, d, dmin, factors, whole, q)):
                found[index] = np.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, found[index])
        # Both scales of least error for these whole numbers.
        fq, fm = factors[..., None] * q, np.broadcast_to(whole[..., None], q.shape)
        aa, bb, ab = (_sum(w * one, other).sum(1) for one, other in ((fq, fq), (fm, fm), (fq, fm)))
        ax, bx = _sum(w * fq, x).sum(1), _sum(w * fm, x).sum(1)
        determinant = aa * bb - ab * ab
        good = determinant > 1e-6 * aa * bb
        safe = np.where(good, determinant, 1)
        d = _half(np.where(good, (ax * bb - bx * ab) / safe, ax / np.maximum(aa, _TINY)).astype(np.float32))
        dmin = _half(np.where(good, (ax * ab - bx * aa) / safe, 0).astype(np.float32))
        d, dmin = np.maximum(d, 0), np.maximum(dmin, 0)
    assert found is not None
    _, d, dmin, factors, whole, q = found
    return d, dmin, factors.astype(np.int32), whole.astype(np.int32), q.astype(np.int32)


def _write_with_minima(x: Floats, w: Floats, bits: int) -> Bytes:
    d, dmin, factors, minima, q = _with_minima(x, w, bits)
    head = np.concatenate((factors[:, :4] | factors[:, 4:] >> 4 << 6, minima[:, :4] | minima[:, 4:] >> 4 << 6), 1)
    tail = factors[:, 4:] & 15 | (minima[:, 4:] & 15) << 4
    parts = [_half_bytes(d), _half_bytes(dmin), head.astype(np.uint8), tail.astype(np.uint8)]
    if bits == 5:
        parts.append((q >> 4 << np.arange(8)[:, None]).sum(1).astype(np.uint8))
    pairs = (q & 15).reshape(-1, 4, 2, 32)
    return np.concatenate((*parts, (pairs[:, :, 0] | pairs[:, :, 1] << 4).astype(np.uint8).reshape(-1, 128)), 1)


def _in_superblocks(
    x: Floats, w: Floats, scales: Floats, least: int, round_to: Callable[[Floats], Floats]
) -> tuple[Floats, Whole, Floats]:
    """Superblocks of signed factors from `least` to -least - 1: their scales (n,), factors (n, groups), and values.

    x, w: (n, groups, size). scales: (n, groups), as searched.
    """
    at = np.abs(scales).argmax(1)[:, None]
    d = _half(np.take_along_axis(scales, at, 1)[:, 0] / np.float32(least))
    found = None
    for _ in range(3):
        factors = np.clip(np.rint(scales * _inverse(d)[:, None]), least, -least - 1)
        step = d[:, None] * factors
        q = round_to(x * _inverse(step)[..., None])
        error = _sum(w, np.square(step[..., None] * q - x)).sum(1)
        if found is None:
            found = [error, d, factors, q]
        else:
            better = error < found[0]
            for index, new in enumerate((error, d, factors, q)):
                found[index] = np.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, found[index])
        fq = factors[..., None] * q
        d = _half(_sum(w * fq, x).sum(1) / np.maximum(_sum(w * fq, fq).sum(1), _TINY))
    assert found is not None
    return found[1], found[2].astype(np.int32), found[3]


def _six_bits(x: Floats) -> Floats:
    return np.clip(np.rint(x), -32, 31)


def _write_q6(x: Floats, w: Floats) -> Bytes:
    x, w = x.reshape(-1, 16, 16), w.reshape(-1, 16, 16)
    scales = _symmetric(x, w, _six_bits, -32.0)
    d, factors, values = _in_superblocks(x, w, scales, -128, _six_bits)
    codes = (values.astype(np.int32) + 32).reshape(-1, 2, 4, 32)
    low = codes & 15
    bits = (codes >> 4 << np.arange(0, 8, 2)[:, None]).sum(2)
    parts = (
        np.stack((low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4), 2).astype(np.uint8),
        bits.astype(np.uint8),
        factors.astype(np.int8).view(np.uint8),
        _half_bytes(d),
    )
    return np.concatenate([part.reshape(len(x), -1) for part in parts], 1)


def _iq4_codes(x: Floats) -> NDArray[np.int8]:
    return _NEAREST[np.rint((np.clip(x, -128, 128) + 128) * 4).astype(np.int32)]


def _iq4_round(x: Floats) -> Floats:
    return IQ4_VALUES[_iq4_codes(x)]


def _halves(codes: NDArray[np.int8]) -> Bytes:
    """Codes (…, 32) as 16 bytes, of which the lower nibbles are the first half."""
    unsigned: Bytes = codes.astype(np.uint8)
    return np.bitwise_or(unsigned[..., :16], np.left_shift(unsigned[..., 16:], 4), dtype=np.uint8)


def _write_iq4_nl(x: Floats, w: Floats) -> Bytes:
    d = _half(_symmetric(x, w, _iq4_round, -127.0))
    return np.concatenate((_half_bytes(d), _halves(_iq4_codes(x * _inverse(d)[:, None]))), 1)


def _write_iq4_xs(x: Floats, w: Floats) -> Bytes:
    x, w = x.reshape(-1, 8, 32), w.reshape(-1, 8, 32)
    d, factors, values = _in_superblocks(x, w, _symmetric(x, w, _iq4_round, -127.0), -32, _iq4_round)
    stored = factors + 32
    high = (stored >> 4 << np.arange(0, 16, 2)).sum(1).astype(np.uint16).reshape(-1, 1).view(np.uint8)
    low = (stored & 15).reshape(-1, 4, 2)
    codes = _halves(_iq4_codes(values)).reshape(-1, 128)
    return np.concatenate((_half_bytes(d), high, (low[:, :, 0] | low[:, :, 1] << 4).astype(np.uint8), codes), 1)


_WRITERS: dict[int, Callable[[Floats, Floats], Bytes]] = {
    Q4_K: lambda x, w: _write_with_minima(x, w, 4),
    Q5_K: lambda x, w: _write_with_minima(x, w, 5),
    Q6_K: _write_q6,
    IQ4_NL: _write_iq4_nl,
    IQ4_XS: _write_iq4_xs,
}
