"""How many threads run a draft's passes: measured, since those of small models wait for each other much of the time."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import NamedTuple

from ipex_assist.executors.interface import ALL_THREADS, FewerThreads, PassThreads

GAIN = 0.03  # what fewer threads must save of the time, to be taken instead
WON = 0.75  # … in so many of the comparisons: less is what others do on the machine
TURNS, FEWEST_TURNS, TURN_SECONDS = 9, 5, 0.025  # of two numbers of threads: as many as there is time for
# A draft step that takes longer reads so much memory that waiting, some hundred times 2 µs, is no matter.
LONG_STEP = 0.005
ROWS = (2, 4, 8, 16)  # of passes that several texts share, or that catch up

Time = Callable[[], float]


class TimingComparison(NamedTuple):
    """Of pairs of measured times: the median of second ÷ first, and how often the second was less."""

    ratio: float
    won: float

    @property
    def faster(self) -> bool:
        """Whether the second is clearly faster."""
        return self.ratio < 1 - GAIN and self.won >= WON


def choose_threads(model: FewerThreads, step: Time, of_rows: Callable[[int], float], most_rows: int) -> PassThreads:
    """Return the threads whose passes are fastest, and leave the model with them.

    All of them, unless fewer are clearly faster. step: the seconds of a draft step as the model is then, measured anew
    at each call; of_rows: those of a pass over so many rows; most_rows: that there is room for.
    """
    choices = model.thread_choices
    if len(choices) < 2:
        return model.pass_threads
    model.pass_threads = ALL_THREADS
    if min(step(), step()) > LONG_STEP:
        return model.pass_threads
    best = choices[0]
    for number in choices[1:]:
        found = _compare(model, PassThreads(best, 1), PassThreads(number, 1), step)
        if found.faster:
            best = number
        elif found.ratio > 1:
            break
    rows = _rows_of(model, best, of_rows, most_rows) if best != choices[0] else 0
    model.pass_threads = PassThreads(best, rows) if rows else ALL_THREADS
    return model.pass_threads


def _rows_of(model: FewerThreads, number: int, of_rows: Callable[[int], float], most_rows: int) -> int:
    """Up to how many rows so many threads are no slower than all are: more rows are more to compute."""
    rows = 1
    for more in (size for size in ROWS if size <= most_rows):
        found = _compare(model, ALL_THREADS, PassThreads(number, more), functools.partial(of_rows, more))
        if found.ratio > 1:
            break
        rows = more
    return rows


def _compare(model: FewerThreads, first: PassThreads, second: PassThreads, measure: Time) -> TimingComparison:
    """By turns, so that what others do on the machine meets both alike."""
    ratios: list[float] = []
    spent = 0.0
    while len(ratios) < FEWEST_TURNS or (len(ratios) < TURNS and spent < TURN_SECONDS):
        pair = []
        for threads in (first, second):
            model.pass_threads = threads
            pair.append(measure())
        spent += sum(pair)
        ratios.append(pair[1] / max(pair[0], 1e-9))
    return TimingComparison(statistics.median(ratios), sum(ratio < 1 for ratio in ratios) / len(ratios))
