"""Seconds of passes of any number of rows."""

from __future__ import annotations

import numpy as np
import pytest

from ipex_assist.speculative.costs.by_rows import seconds_at_most, seconds_of, seconds_of_many

pytestmark = pytest.mark.one_stack

MEASURED = [1.0, 2.0, 4.0]


def test_seconds_between_and_beyond_measured_rows() -> None:
    assert [seconds_of(MEASURED, rows) for rows in (0.5, 1, 1.5, 2.5, 3, 5)] == [1.0, 1.0, 1.5, 3.0, 4.0, 7.0]
    assert seconds_of([1.0], 3) == 3.0, "a pass of which nothing else is known"


def test_many_rows_are_judged_by_many_rows() -> None:
    """Catches a mixture's hundredth row at the price of its second."""
    mixture = [1.0, 3.0, 5.0, 6.0, 6.5, 6.8, 7.0, 7.2]  # the second half: 0.3 a row
    assert [seconds_of_many(mixture, rows) for rows in (1, 2.5, 8, 18)] == pytest.approx([1.0, 4.0, 7.2, 10.2])
    assert seconds_of_many(MEASURED, 5) == seconds_of(MEASURED, 5), "too few to have halves"


def test_seconds_that_are_not_exceeded() -> None:
    """One number of rows, or many at once: the same; between measured ones as above."""
    rows, expected = (0.5, 1, 1.5, 2.5, 3, 6), [1.0, 1.0, 1.5, 3.0, 4.0, 8.0]
    assert seconds_at_most(np.array(MEASURED), np.array(rows)).tolist() == expected
    assert [float(seconds_at_most(np.array(MEASURED), each)) for each in rows] == expected
