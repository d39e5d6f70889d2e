"""The number of threads for a draft's passes: measured, since synchronisation dominates passes of small models."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import NamedTuple

from ipex_assist.executors.interface import ALL_THREADS, FewerThreads, PassThreads

GAIN = 0.03  # share of the time that fewer threads must save to be chosen
WON = 0.75  # … in this share of the comparisons: less may be noise from other processes
TURNS, FEWEST_TURNS, TURN_SECONDS = 9, 5, 0.025  # repetitions of a comparison, as many as fit into the seconds
# In a longer draft step reading weights dominates, and some hundred barriers of 2 µs do not matter.
LONG_STEP = 0.005
ROWS = (2, 4, 8, 16)  # of passes that several requests share, or that catch up

Time = Callable[[], float]


class TimingComparison(NamedTuple):
    """Of pairs of measured times: the median ratio second ÷ first, and how often the second was faster."""

    ratio: float
    won: float

    @property
    def faster(self) -> bool:
        """Whether the second is clearly faster."""
        return self.ratio < 1 - GAIN and self.won >= WON


def choose_threads(model: FewerThreads, step: Time, of_rows: Callable[[int], float], most_rows: int) -> PassThreads:
    """Choose the number of threads with the fastest passes, and set it on the model.

    All of them, unless fewer are clearly faster. step: measures a draft step with the model's current threads, in
    seconds; of_rows: the same for a pass over that many rows; most_rows: the largest pass that fits the context.
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
    """Return up to how many rows `number` threads are no slower than all: more rows are more arithmetic."""
    rows = 1
    for more in (size for size in ROWS if size <= most_rows):
        found = _compare(model, ALL_THREADS, PassThreads(number, more), functools.partial(of_rows, more))
        if found.ratio > 1:
            break
        rows = more
    return rows


def _compare(model: FewerThreads, first: PassThreads, second: PassThreads, measure: Time) -> TimingComparison:
    """Alternate between the two, so that other processes disturb both alike."""
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
