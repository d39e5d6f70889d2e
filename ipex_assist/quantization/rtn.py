"""Round-to-nearest 4-bit quantization of a matrix: in each group the range that loses least is searched for.

It needs no data. Scales are fp16 and zeros 1 to 15, so that every reader of GPTQ files gives the same matrix: a zero of
0 is stored as -1 there, which some of them read as 16.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from ipex_assist.quantization.int4_weight import Int4Weight

CLIPS = tuple(1.0 - 0.04 * step for step in range(10))  # of the range from smallest to largest
# Weights that are compared with their candidates in the cache. Torch starts no threads for so few; ours take chunks.
_CHUNK = 1 << 15


def quantize(weight: torch.Tensor, group: int, *, sym: bool = False) -> Int4Weight:
    """A matrix (columns, width) of any float type in groups of `group` input columns; sym: every zero is 8.

    Each group gets, of the full range clipped in steps of 4 % and of the symmetric range, each with its scale fitted by
    least squares, the one of least squared error.
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
    """Return squared error and squared norm of weight (out, in), for a root mean square over several matrices."""
    exact = weight.float()
    return float((stored.dequantized() - exact).square().sum()), float(exact.square().sum())


def _search(x: torch.Tensor, sym: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and zero (rows, 1) for each group, a row of x."""
    best_error = torch.full_like(x[:, :1], torch.inf)
    best_scale, best_zero = torch.ones_like(best_error), torch.full_like(best_error, 8.0)
    for scale, zero in _candidates(x, sym):
        scale = _storable(scale)
        product, square = _sums(x, scale, zero)
        fitted = _storable(torch.where(square > 0, product / square, scale))
        # |x - s q|² = |x|² - 2 s q·x + s² |q|²; the first term is the same for all candidates. Values are rounded anew
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
    """q · x and q · q (rows, 1) of the values q = values - zero that x is rounded to."""
    q = (x * (1 / scale)).round_().clamp_(-zero, 15 - zero)
    return (q * x).sum(1, keepdim=True), q.square_().sum(1, keepdim=True)


def _storable(scale: torch.Tensor) -> torch.Tensor:
    """Rounded to fp16, and never 0: a group of zeros, or one too small for fp16, gets fp16's smallest number."""
    return scale.to(torch.float16).float().clamp(min=2.0**-24, max=65504.0)


def _round(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    return torch.round(x / scale).add_(zero).clamp_(0, 15)
