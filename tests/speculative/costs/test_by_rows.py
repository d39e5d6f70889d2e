"""Seconds of passes of any number of rows."""

from __future__ import annotations

import numpy as np
import pytest

from ipex_assist.speculative.costs.by_rows import seconds_at_most, seconds_of

pytestmark = pytest.mark.one_stack

MEASURED = [1.0, 2.0, 4.0]


def test_seconds_between_and_beyond_measured_rows() -> None:
    assert [seconds_of(MEASURED, rows) for rows in (0.5, 1, 1.5, 2.5, 3, 5)] == [1.0, 1.0, 1.5, 3.0, 4.0, 7.0]
    assert seconds_of([1.0], 3) == 3.0, "a pass of which nothing else is known"


def test_seconds_that_are_not_exceeded() -> None:
    """One number of rows, or many at once: the same; between measured ones as above."""
    rows, expected = (0.5, 1, 1.5, 2.5, 3, 6), [1.0, 1.0, 1.5, 3.0, 4.0, 8.0]
    assert seconds_at_most(np.array(MEASURED), np.array(rows)).tolist() == expected
    assert [float(seconds_at_most(np.array(MEASURED), each)) for each in rows] == expected
