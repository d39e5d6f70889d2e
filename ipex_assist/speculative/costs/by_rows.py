"""Seconds of passes by their rows, from those measured of 1, 2, … rows. No torch here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ipex_assist.speculative.costs.position_ratios import Array


def seconds_of(measured: Sequence[float], rows: float) -> float:
    """Return the seconds of `rows` rows: between those measured, and beyond on a line, by their mean slope."""
    known = len(measured)
    if rows >= known:
        slope = (measured[-1] - measured[0]) / (known - 1) if known > 1 else measured[0]
        return measured[-1] + slope * (rows - known)
    lower = max(1, int(rows))
    first = measured[lower - 1]
    return first + (max(1.0, rows) - lower) * (measured[lower] - first)


def seconds_of_many(measured: Sequence[float], rows: float) -> float:
    """The same, but beyond those measured by the mean slope of their second half.

    The first rows of a mixture read most of its experts, and those of a dense model wait for its weights: neither says
    what the hundredth row costs.
    """
    known = len(measured)
    if rows <= known or known < 4:
        return seconds_of(measured, rows)
    return measured[-1] + (measured[-1] - measured[known // 2 - 1]) / (known - known // 2) * (rows - known)


def seconds_at_most(measured: Array, rows: float | Array) -> Array:
    """Return no less than the seconds of passes of `rows` rows: beyond those measured in proportion to the rows.

    For what must not turn out dearer: where rows are nearly free as far as was measured, a line knows nothing of the
    number from which on they are not.
    """
    known = len(measured)
    if isinstance(rows, int) and 1 <= rows <= known:  # what is interpolated below, in a fraction of the time
        one: Array = measured[rows - 1]
        return one
    between = np.interp(rows, np.arange(1, known + 1), measured)
    seconds: Array = between * np.maximum(1.0, np.asarray(rows) / known)
    return seconds
