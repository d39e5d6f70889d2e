"""Hidden states that wait for a draft head: rows are those of their positions, whatever came, and in which parts."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ipex_assist.speculative.sources.hidden_window import HiddenStates, HiddenWindow

pytestmark = pytest.mark.one_stack


def states(first: int, end: int, version: int = 0) -> HiddenStates:
    """Rows that say their position, and when they were computed."""
    return np.array([[position, version] for position in range(first, end)], np.float32).reshape(-1, 2)


def test_rows_are_those_of_their_positions() -> None:
    """Against a dictionary: parts that continue, that replace the last ones, and that leave a gap."""
    chance = random.Random(0)
    for _ in range(200):
        window, known = HiddenWindow(), dict[int, int]()
        for version in range(12):
            first = max(0, window.end + chance.choice((0, 0, 0, -1, -3, -20, 4)))
            count = chance.randrange(1, 6)
            if first > window.end or first < window.first:
                known.clear()
            known = {position: of for position, of in known.items() if position < first}
            known |= dict.fromkeys(range(first, first + count), version)
            window.add(first, states(first, first + count, version))
            if chance.random() < 0.3:
                window.keep_last(kept := chance.randrange(1, 5))
                known = dict(sorted(known.items())[-kept:])
            assert (window.first, window.end, len(window)) == (min(known), max(known) + 1, len(known))
            expected = [[position, of] for position, of in sorted(known.items())]
            assert window.rows(window.first, window.end).tolist() == expected


def test_what_is_kept_is_a_copy() -> None:
    """A pass writes into the same memory again."""
    window, rows = HiddenWindow(), states(0, 8)
    window.add(0, rows)
    window.keep_last(3)
    rows[:] = -1
    assert window.rows(5, 8).tolist() == states(5, 8).tolist()
