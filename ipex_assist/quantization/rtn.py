"""Round-to-nearest 4-bit quantization of a matrix, with a search for the best range in each group.

It needs no calibration data. Scales are fp16 and zeros 1 to 15, so that every reader of GPTQ files gives the same
matrix: a zero of 0 is stored as -1 there, which some readers take for 16.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from ipex_assist.quantization.int4_weight import Int4Weight

CLIPS = tuple(1.0 - 0.04 * step for step in range(10))  # factors of the range from smallest to largest
# Weights that one task works on: they and their candidates fit the cache, and torch starts no threads of its own.
_CHUNK = 1 << 15


def quantize(weight: torch.Tensor, group: int, *, sym: bool = False) -> Int4Weight:
    """Quantize a matrix (columns, width) of any float type in groups of `group` input columns; sym: every zero is 8.

    Candidates for a group are the full range, clipped in steps of 4 %, and the symmetric range, each with a scale
    fitted by least squares; the one with the smallest squared error is taken.
    """
    columns, width = weight.shape
    groups = -(-width // group)
    values = torch.empty(columns, groups * group, dtype=torch.uint8)
    scales = torch.empty(columns, groups)
    zeros = torch.empty(columns, groups, dtype=torch.uint8)
    rows = max(1, _CHUNK // (groups * group))

    def work(first: int) -> None:
        part = weight[first : first + rows].float()
        part = torch.nn.functional.pad(part, (0, groups * group - width)).view(-1, group)
        scale, zero = _search(part, sym)
        last = first + len(part) // groups
        values[first:last] = _round(part, scale, zero).to(torch.uint8).view(-1, groups * group)
        scales[first:last] = scale.view(-1, groups)
        zeros[first:last] = zero.to(torch.uint8).view(-1, groups)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(work, range(0, columns, rows)))
    return Int4Weight(values[:, :width].contiguous(), scales, zeros, group)


def relative_error(weight: torch.Tensor, stored: Int4Weight) -> tuple[float, float]:
    """Squared error and squared norm of weight (out, in), from which a caller gets the RMS of several matrices."""
    exact = weight.float()
    return float((stored.dequantized() - exact).square().sum()), float(exact.square().sum())


def _search(x: torch.Tensor, sym: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The best scale and zero, each (rows, 1), of groups x (rows, group)."""
    best_error = torch.full_like(x[:, :1], torch.inf)
    best_scale, best_zero = torch.ones_like(best_error), torch.full_like(best_error, 8.0)
    for scale, zero in _candidates(x, sym):
        scale = _storable(scale)
        product, square = _sums(x, scale, zero)
        fitted = _storable(torch.where(square > 0, product / square, scale))
        # |x - s q|² = |x|² - 2 s q·x + s² |q|²; the first term is the same for all candidates. Values are rounded again
        # with the scale that wins, which can only bring them nearer.
        error = fitted * (fitted * square - 2 * product)
        better = error < best_error
        best_error = torch.where(better, error, best_error)
        best_scale, best_zero = torch.where(better, fitted, best_scale), torch.where(better, zero, best_zero)
    return best_scale, best_zero


def _candidates(x: torch.Tensor, sym: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Scales and zeros (rows, 1) to try."""
    low, high = x.amin(1, keepdim=True).clamp(max=0), x.amax(1, keepdim=True).clamp(min=0)
    eight = torch.full_like(low, 8.0)
    if sym:
        widest = torch.maximum(high / 7, -low / 8)
        yield from ((widest * clip, eight) for clip in CLIPS)
        return
    span = (high - low) / 15
    zero = torch.round(-low / span).nan_to_num(8.0).clamp(1, 15)
    # Where almost nothing is below zero, a zero of 1 leaves 14 steps above it instead of 15.
    span = torch.where(-low < span / 2, high / 14, span)
    yield from ((span * clip, zero) for clip in CLIPS)
    upward = high > -low
    yield torch.where(upward, high, -low) / 8, torch.where(upward, eight - 1, eight)


def _sums(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """q · x and q · q, each (rows, 1), where q = values - zero is x after rounding."""
    q = (x * (1 / scale)).round_().clamp_(-zero, 15 - zero)
    return (q * x).sum(1, keepdim=True), q.square_().sum(1, keepdim=True)


def _storable(scale: torch.Tensor) -> torch.Tensor:
    """The scale rounded to fp16, and never 0: for a group of zeros or tiny numbers it is fp16's smallest number."""
    return scale.to(torch.float16).float().clamp(min=2.0**-24, max=65504.0)


def _round(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    return torch.round(x / scale).add_(zero).clamp_(0, 15)
