"""GGUF's block formats by their definition, in NumPy: a file's numbers, random blocks, and what a linear computes."""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import NamedTuple

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import quants
from numpy.typing import NDArray


class Floats4(IntEnum):
    """Blocks of bitsandbytes: 64 columns, an fp32 scale, and nibbles of which the upper one is the first."""

    NF4 = 200
    FP4 = 201


class Integers(IntEnum):
    """Blocks of GPTQ's integers: an fp16 scale, third bits, and two bits of each of 32 columns in 8 bytes."""

    INT2_32 = 202
    INT2_128 = 203
    INT3_32 = 204
    INT3_128 = 205


Kind = Type | Floats4 | Integers

# The formats, and where in a block its scales lie, or the number of each where they are no fp16.
SCALES: dict[Kind, tuple[int, ...]] = {
    **{Type.Q4_0: (0,), Type.Q4_1: (0, 2), Type.Q5_0: (0,), Type.Q5_1: (0, 2), Type.Q8_0: (0,), Type.IQ4_NL: (0,)},
    **{Type.Q2_K: (80, 82), Type.Q3_K: (108,), Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,)},
    **{Type.IQ4_XS: (0,), Type.IQ2_XXS: (0,), Type.IQ2_XS: (0,), Type.IQ2_S: (0,), Type.IQ3_XXS: (0,)},
    **{Type.IQ3_S: (0,), Type.IQ1_S: (0,), Type.IQ1_M: (0,), Type.TQ1_0: (52,), Type.TQ2_0: (64,)},
    **{Type.MXFP4: (0,), Type.NVFP4: (0, 1, 2, 3), Floats4.NF4: (0,), Floats4.FP4: (0,)},
    **dict.fromkeys(Integers, (0,)),
}
ALL_KINDS = list(SCALES)
KINDS = [kind for kind in ALL_KINDS if isinstance(kind, Type)]
SUPER = [kind for kind in KINDS if gguf.GGML_QUANT_SIZES[kind][0] == 256]
# Of these, those whose whole numbers the gguf package gives when their scale is this.
_UNIT_SCALE = {
    **dict.fromkeys((Type.IQ2_XXS, Type.IQ2_XS, Type.IQ2_S, Type.IQ1_S, Type.IQ1_M), 8.0),
    **{Type.IQ3_XXS: 4.0, Type.IQ3_S: 1.0, Type.TQ1_0: 1.0, Type.TQ2_0: 1.0, Type.MXFP4: 1.0, Type.NVFP4: 1.0},
}
# bitsandbytes' values, as whole numbers of 16 bits.
_NF4 = [-1.0, -0.6961928, -0.5250731, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0]
_NF4 += [0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]
_FP4 = [0, 1, 128, 192, 64, 96, 32, 48]
STEPS = {Floats4.NF4: 32767, Floats4.FP4: 192}
NUMBERS = {
    Floats4.NF4: np.rint(np.array(_NF4) * 32767).astype(np.int64),
    Floats4.FP4: np.array([*_FP4, *(-each for each in _FP4)]),
}
_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
_EACH_TWO_BITS = 2 * np.arange(4)[:, None]

Whole = NDArray[np.int64]
Floats = NDArray[np.float32]


class Numbers(NamedTuple):
    """A matrix as stored: scale · factor · code, and minima that are subtracted, or added where they are no whole ones.

    scales, minima: (rows, blocks), or a scale for fewer columns; codes, factors, whole_minima: (rows, columns).
    """

    scales: Floats
    codes: Whole
    factors: Whole | None = None
    minima: Floats | None = None
    whole_minima: Whole | None = None


def block_size(kind: Kind) -> tuple[int, int]:
    """Columns and bytes."""
    if isinstance(kind, Integers):
        columns = int(kind.name.partition("_")[2])
        return columns, 2 + columns * _bits(kind) // 8
    return gguf.GGML_QUANT_SIZES[kind] if isinstance(kind, Type) else (64, 36)


def _bits(kind: Integers) -> int:
    return int(kind.name[3])


def numbers(kind: Kind, raw: NDArray[np.uint8]) -> Numbers:
    """The numbers of rows in blocks (rows, bytes)."""
    columns, size = block_size(kind)
    blocks = raw.reshape(len(raw), -1, size)
    if isinstance(kind, Floats4):
        scales = np.ascontiguousarray(blocks[..., :4]).view(np.float32)[..., 0] / np.float32(STEPS[kind])
        nibbles = np.stack((blocks[..., 4:] >> 4, blocks[..., 4:] & 15), -1)
        return Numbers(np.repeat(scales, 2, 1), NUMBERS[kind][nibbles].reshape(len(raw), -1))
    if kind in _UNIT_SCALE:
        unit = blocks.copy()
        set_scales(kind, unit, [_UNIT_SCALE[kind]] * len(SCALES[kind]))
        codes = gguf.dequantize(unit.reshape(len(raw), -1), kind)
        assert np.array_equal(codes, np.rint(codes))
        return Numbers(_scales(kind, blocks) / np.float32(_UNIT_SCALE[kind]), codes.astype(np.int64))
    if isinstance(kind, Integers):
        scales = np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0].astype(np.float32)
        return Numbers(scales, _integers(kind, blocks.astype(np.int64)).reshape(len(raw), -1))
    d, *m = (np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0] for at in SCALES[kind])
    scales, minima = d.astype(np.float32), m[0].astype(np.float32) if m else None
    parts = (_superblocks if columns == 256 else _blocks)(kind, blocks.astype(np.int64))
    codes, factors, whole = (None if each is None else _spread(each, columns) for each in parts)
    assert codes is not None
    return Numbers(scales, codes, factors, minima, whole)


def _scales(kind: Type, blocks: NDArray[np.uint8]) -> Floats:
    """The scales of blocks (rows, blocks, bytes) whose whole numbers the gguf package gives."""
    if kind == Type.MXFP4:
        return np.asarray(quants.MXFP4.e8m0_to_fp32_half(blocks[..., 0]))
    if kind == Type.NVFP4:
        return quants.NVFP4.ue4m3_to_fp32(blocks[..., :4]).astype(np.float32).reshape(len(blocks), -1)
    if kind == Type.IQ1_M:
        bits = (blocks[..., 49::2].astype(np.uint16) >> 4 << np.array([0, 4, 8, 12], np.uint16)).sum(-1, np.uint16)
        return bits.view(np.float16).astype(np.float32)
    at = SCALES[kind][0]
    return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0].astype(np.float32)


def floats(kind: Kind, raw: NDArray[np.uint8]) -> Floats:
    """The matrix in fp32."""
    stored, columns = numbers(kind, raw), block_size(kind)[0]
    found = np.repeat(stored.scales, stored.codes.shape[1] // stored.scales.shape[1], 1)
    if stored.factors is not None:
        found = found * stored.factors.astype(np.float32)
    found = found * stored.codes.astype(np.float32)
    if stored.minima is None:
        return found
    minima = np.repeat(stored.minima, columns, 1)
    return found + minima if stored.whole_minima is None else found - minima * stored.whole_minima.astype(np.float32)


def linear(kind: Kind, raw: NDArray[np.uint8], x: Floats) -> Floats:
    """x (rows, columns) in int8 times the matrix, in the order of native/formats/blocks/linear.h."""
    stored = numbers(kind, raw)
    columns = x.shape[1] // stored.scales.shape[1]
    values, row_scales = quantized_rows(x)
    total = np.zeros((len(x), len(raw)), np.float32)
    step = min(columns, 128)
    for k in range(0, x.shape[1], step):
        part, scale, block = slice(k, k + step), row_scales[:, k // 128, None], k // columns
        if stored.minima is not None:
            each = values[:, part].sum(1)[:, None]
            if stored.whole_minima is not None:
                each = -(values[:, part] @ stored.whole_minima[:, part].T)
            total = _add(total, each, stored.minima[:, block] * scale)
        weights = stored.codes[:, part] if stored.factors is None else (stored.codes * stored.factors)[:, part]
        total = _add(total, values[:, part] @ weights.T, stored.scales[:, block] * scale)
    return total


def quantized_rows(x: Floats) -> tuple[Whole, Floats]:
    """Rows as whole numbers from -127 to 127, and a scale for each 128 columns."""
    spans = np.pad(x, ((0, 0), (0, -x.shape[1] % 128))).reshape(len(x), -1, 128)
    most = np.abs(spans).max(2)
    factor = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
    values = np.rint(spans * factor[..., None]).astype(np.int64).reshape(len(x), -1)
    return values[:, : x.shape[1]], most / np.float32(127)


def blocks_of(values: Floats, kind: Type) -> NDArray[np.uint8]:
    """Rows in blocks; of types that the gguf package cannot write random ones of about the same size."""
    if kind not in SUPER and kind not in (Type.IQ4_NL, Type.NVFP4):
        return np.asarray(quants.quantize(values, kind))
    columns, size = gguf.GGML_QUANT_SIZES[kind]
    rows = []
    for row in np.atleast_2d(values):
        rng = np.random.default_rng(zlib.crc32(row.tobytes()))
        blocks = rng.integers(0, 256, (len(row) // columns, size), dtype=np.uint8)
        set_scales(kind, blocks, [1.0] * len(SCALES[kind]))
        plain = floats(kind, blocks.reshape(1, -1))
        size_of = float(row.std() / (plain.std() or 1))
        minima = 2.0 if kind != Type.NVFP4 else 1.0
        set_scales(kind, blocks, [size_of, *[size_of * minima] * (len(SCALES[kind]) - 1)])
        rows.append(blocks.reshape(-1))
    return np.stack(rows)


def set_scales(kind: Kind, blocks: NDArray[np.uint8], scales: list[float]) -> None:
    """Give all blocks (…, bytes) these scales of codes and of minima."""
    for at, scale in zip(SCALES[kind], scales, strict=True):
        set_scale(kind, blocks, at, np.full(blocks.shape[:-1], scale, np.float32))


def set_scale(kind: Kind, blocks: NDArray[np.uint8], at: int, scales: Floats) -> None:
    """Give blocks (…, bytes) one of SCALES each, or what is nearest to it and NaN where it is none."""
    bad = ~np.isfinite(scales)
    if isinstance(kind, Floats4):
        blocks[..., :4] = scales.astype(np.float32)[..., None].view(np.uint8)
    elif kind == Type.MXFP4:
        exponent = np.frexp(np.where(bad, 1, scales))[1] + 127
        blocks[..., 0] = np.where(bad, 255, np.where(scales == 0, 0, exponent)).astype(np.uint8)
    elif kind == Type.NVFP4:
        blocks[..., at] = np.where(bad, 0x7F, quants.NVFP4.fp32_to_ue4m3(np.abs(np.where(bad, 0, scales)) * 2))
    elif kind == Type.IQ1_M:
        bits = scales.astype(np.float16)[..., None].view(np.uint16) >> np.array([0, 4, 8, 12], np.uint16) & 15
        blocks[..., 49::2] = blocks[..., 49::2] & 15 | bits.astype(np.uint8) << 4
    else:
        blocks[..., at : at + 2] = scales.astype(np.float16)[..., None].view(np.uint8)


def random_blocks(kind: Kind, rows: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """Blocks with any bits and scales of any size, zero among them: (rows, bytes)."""
    columns, size = block_size(kind)
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (rows, width // columns, size), dtype=np.uint8)
    for at in SCALES[kind]:
        scales = rng.standard_normal(raw.shape[:2]) * rng.choice([0, 1e-6, 1e-3, 1, 300], raw.shape[:2])
        set_scale(kind, raw, at, scales.astype(np.float32))
    return raw.reshape(rows, -1)


def _add(total: Floats, whole: Whole, factor: Floats) -> Floats:
    """A multiply-add: what fp64 drops of the sum, however small, decides where fp32 would see a tie."""
    product, before = whole.astype(np.float32).astype(np.float64) * factor, total.astype(np.float64)
    found = product + before
    taken = found - product
    rest = (product - (found - taken)) + (before - taken)
    even = (rest != 0) & (found.view(np.int64) % 2 == 0)
    return np.where(even, np.nextafter(found, np.copysign(np.inf, rest)), found).astype(np.float32)


def _spread(each: Whole, columns: int) -> Whole:
    """Numbers of groups (rows, blocks, groups) as those of columns (rows, columns)."""
    return np.repeat(each, columns // each.shape[2], 2).reshape(len(each), -1)


def _integers(kind: Integers, b: Whole) -> Whole:
    """Codes (rows, blocks, columns) less half their range, column by column."""
    columns, _ = block_size(kind)
    found = np.empty((*b.shape[:2], columns), np.int64)
    thirds = 2 + (columns // 8 if _bits(kind) == 3 else 0)  # where the lower bits begin
    for column in range(columns):
        part, within = divmod(column, 32)
        code = b[..., thirds + part * 8 + within % 8] >> within // 8 * 2 & 3
        if _bits(kind) == 3:
            code = code | (b[..., 2 + column // 8] >> column % 8 & 1) << 2
        found[..., column] = code - (1 << _bits(kind) - 1)
    return found


def _nibbles(codes: Whole) -> Whole:
    """Lower nibbles of each 16 bytes, then the upper ones."""
    return np.concatenate((codes & 15, codes >> 4), -1)


def _blocks(kind: Type, b: Whole) -> tuple[Whole, None, None]:
    if kind == Type.Q8_0:
        return (b[..., 2:] + 128) % 256 - 128, None, None
    codes = _nibbles(b[..., -16:])
    if kind == Type.IQ4_NL:
        return _IQ4[codes], None, None
    if kind in (Type.Q5_0, Type.Q5_1):
        bits = b[..., -20:-16, None] >> np.arange(8) & 1
        codes = codes + 16 * bits.reshape(codes.shape)
    return codes - {Type.Q4_0: 8, Type.Q5_0: 16}.get(kind, 0), None, None


def _superblocks(kind: Type, b: Whole) -> tuple[Whole, Whole, Whole | None]:
    shape = (*b.shape[:2], 256)
    if kind == Type.Q6_K:
        low = b[..., :128].reshape(*b.shape[:2], 2, 2, 32)
        low = np.stack((low & 15, low >> 4), 3).reshape(*b.shape[:2], 2, 4, 32)
        high = b[..., 128:192].reshape(*b.shape[:2], 2, 1, 32) >> _EACH_TWO_BITS & 3
        return (low + 16 * high - 32).reshape(shape), (b[..., 192:208] + 128) % 256 - 128, None
    if kind in (Type.Q4_K, Type.Q5_K):
        low = b[..., -128:].reshape(*b.shape[:2], 4, 1, 32) >> np.array([0, 4])[:, None] & 15
        high = b[..., None, 16:48] >> np.arange(8)[:, None] & 1 if kind == Type.Q5_K else np.zeros(1, np.int64)
        s = b[..., 4:16]
        factors = np.concatenate((s[..., :4] & 63, s[..., 8:] & 15 | s[..., :4] >> 6 << 4), -1)
        minima = np.concatenate((s[..., 4:8] & 63, s[..., 8:] >> 4 | s[..., 4:8] >> 6 << 4), -1)
        return (low.reshape(*b.shape[:2], 8, 32) + 16 * high).reshape(shape), factors, minima
    if kind == Type.IQ4_XS:
        low = b[..., 4:8, None] >> np.array([0, 4]) & 15
        high = (b[..., 2:3] | b[..., 3:4] << 8) >> 2 * np.arange(8) & 3
        factors = (low.reshape(*b.shape[:2], 8) | high << 4) - 32
        return _IQ4[_nibbles(b[..., 8:].reshape(*b.shape[:2], 8, 16))].reshape(shape), factors, None
    first = {Type.Q2_K: 16, Type.Q3_K: 32}[kind]
    codes = b[..., first : first + 64].reshape(*b.shape[:2], 2, 1, 32) >> _EACH_TWO_BITS & 3
    if kind == Type.Q2_K:
        return codes.reshape(shape), b[..., :16] & 15, b[..., :16] >> 4
    high = b[..., None, :32] >> np.arange(8)[:, None] & 1
    low = np.concatenate((b[..., 96:104] & 15, b[..., 96:104] >> 4), -1)
    upper = (b[..., None, 104:108] >> _EACH_TWO_BITS & 3).reshape(low.shape)
    return (codes.reshape(shape) + 4 * high.reshape(shape) - 4), (low | upper << 4) - 32, None
