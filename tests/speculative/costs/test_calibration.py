"""Calibration on models with a clock of their own: what is measured, and how long it takes."""

from __future__ import annotations

import random
from collections import abc
from collections.abc import Callable

import pytest
import torch
from model_specs import fake_spec

from ipex_assist.executors.interface import Model, Rows
from ipex_assist.speculative.costs import calibration
from ipex_assist.speculative.costs.pair_costs import Costs

pytestmark = pytest.mark.one_stack


class Clock:
    """A clock whose time only passes take."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedModel(Model):
    """A model without weights: `seconds` of a pass by its rows."""

    def __init__(self, clock: Clock, seconds: Callable[[int], float], context: int = 4096) -> None:
        self.clock, self.seconds = clock, seconds
        self.spec = fake_spec(50, context=context)
        self.passes = 0

    @property
    def exact_rows(self) -> int:
        return 16

    def new_sequence(self, capacity: int) -> CountingSequence:
        assert capacity <= self.spec.context_length
        return CountingSequence(capacity)

    def forward(self, rows: abc.Sequence[Rows], vocabulary: int | None = None) -> torch.Tensor:
        for each in rows:
            each.sequence.length += len(each.tokens)  # type: ignore[misc]
            assert each.sequence.length <= each.sequence.capacity
        self.clock.now += self.seconds(sum(len(each.tokens) for each in rows))
        self.passes += 1
        return torch.zeros(sum(each.last for each in rows), vocabulary or 50)


class CountingSequence:
    """A sequence that holds nothing."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0

    def truncate(self, length: int) -> None:
        assert length <= self.length
        self.length = length


def flat(rows: int) -> float:
    """A pass that costs its rows little."""
    return 0.010 + 0.001 * rows


def test_costs_are_those_of_the_passes() -> None:
    """Target by rows, draft step, catching up, reading a stretch."""
    clock = Clock()
    target = TimedModel(clock, flat)
    assistant = TimedModel(clock, lambda rows: 0.002 + 0.0001 * rows)
    costs = calibration.calibrate(target, assistant, clock=clock)
    assert costs.verify == pytest.approx([flat(rows) for rows in range(1, 65)])
    assert costs.draft == pytest.approx(0.0021)
    assert costs.rows == pytest.approx([0.002 + 0.0001 * rows for rows in range(1, 17)])
    assert costs.read == pytest.approx(0.0084 / 64)


def test_steps_behind_full_tiles_are_seen() -> None:
    """A pass of 17 rows that costs as much as one of 32, on hardware that takes rows by sixteen."""
    clock = Clock()
    costs = calibration.calibrate(TimedModel(clock, lambda rows: 0.01 * -(-rows // 16)), None, clock=clock)
    assert costs.verify == pytest.approx([0.01 * -(-rows // 16) for rows in range(1, 65)], rel=0.35)
    assert costs.verify[16:32] == pytest.approx([0.02] * 16)


def test_noise_makes_no_pass_look_cheaper_than_a_smaller_one() -> None:
    """Every third pass is disturbed, up to four times as long: the fastest counts, and costs never fall with rows."""
    clock, generator = Clock(), random.Random(0)

    def noisy(rows: int) -> float:
        return flat(rows) * (generator.uniform(1.5, 4) if generator.random() < 0.33 else generator.uniform(1, 1.04))

    verify = calibration.calibrate(TimedModel(clock, noisy), None, clock=clock).verify
    assert list(verify) == sorted(verify)
    assert verify[:16] == pytest.approx([flat(rows) for rows in range(1, 17)], rel=0.06)


def test_a_disturbed_reading_is_timed_again() -> None:
    """Others take the cores during the first long chunk: a token of a prompt looked ten times too expensive."""
    clock = Clock()

    def seconds(rows: int) -> float:
        chunks.append(rows) if rows == calibration.READ_TOKENS else None
        return (0.002 + 0.0001 * rows) * (10 if rows == calibration.READ_TOKENS and len(chunks) == 1 else 1)

    chunks: list[int] = []
    costs = calibration.calibrate(TimedModel(clock, flat), TimedModel(clock, seconds), clock=clock)
    assert len(chunks) == 2
    assert costs.read == pytest.approx(0.0084 / 64)


@pytest.mark.parametrize("disturbed", [False, True])
def test_passes_get_more_time_while_others_disturb_them(disturbed: bool) -> None:
    """A process that takes the cores for a third of a second: the time that is over then would be all that is known."""
    clock, generator = Clock(), random.Random(0)

    def seconds(rows: int) -> float:
        return (0.002 + 0.0001 * rows) * (generator.uniform(4, 12) if disturbed and clock.now < 0.3 else 1)

    rows = calibration.time_passes(TimedModel(clock, seconds), calibration.DRAFT_ROWS, 0.25, clock, {})
    assert rows == pytest.approx([0.002 + 0.0001 * count for count in range(1, 17)])
    assert clock.now <= (0.51 if disturbed else 0.26)


def test_reading_a_token_takes_no_longer_than_a_step() -> None:
    """Whatever was measured: a source could read token by token."""
    costs = Costs((0.1,), 0.02, tuple(0.02 + 0.2 * i for i in range(16)), 0.2).plausible()
    assert [costs.reading(count) for count in (1, 2, 16, 100)] == pytest.approx([0, 0.02, 15 * 0.02, 100 * 0.02])


@pytest.mark.parametrize("one", [0.05, 0.1])
def test_many_rows_are_measured_of_large_models_too(one: float) -> None:
    """Where a pass takes so long that the sizes between are left out, those at the ends are not: several texts that
    draft have rows beyond 9, which were taken to cost as much as a pass of the first ones each."""
    clock = Clock()
    target = TimedModel(clock, lambda rows: one * (1 + 0.01 * rows))
    verify = calibration.calibrate(target, None, clock=clock).verify
    assert verify[11] == pytest.approx(one * 1.12)
    assert verify[15] == pytest.approx(one * 1.16)
    assert verify[31] == pytest.approx(one * 1.32)


@pytest.mark.parametrize(("one", "most"), [(0.001, 2.0), (0.02, 3.0), (0.1, 4.0), (2.0, 20.0)])
def test_time_is_bounded(one: float, most: float) -> None:
    """Small models get many passes; of a huge one only what a line through two points needs."""
    clock = Clock()
    target = TimedModel(clock, lambda rows: one * (1 + 0.01 * rows))
    assistant = TimedModel(clock, lambda rows: one / 5 * (1 + 0.01 * rows))
    costs = calibration.calibrate(target, assistant, clock=clock)
    assert clock.now <= most
    assert costs.verify[0] == pytest.approx(one * 1.01)
    assert costs.verify[4] == pytest.approx(one * 1.05)


def test_a_context_of_few_tokens() -> None:
    """No pass is longer than what the model can hold."""
    clock = Clock()
    costs = calibration.calibrate(TimedModel(clock, flat, 12), TimedModel(clock, flat, 16), clock=clock)
    assert costs.verify == pytest.approx([flat(rows) for rows in range(1, 5)])
    assert costs.draft == pytest.approx(flat(1))


def test_a_longer_pass_corrects_shorter_ones() -> None:
    """What was slower than more work later was slowed down by somebody else; a rising sequence stays."""
    assert calibration.rising([1, 3, 2, 4]) == [1, 2, 2, 4]
    assert calibration.rising([5, 4, 3]) == [3, 3, 3]
    assert calibration.rising([1, 2, 2, 7]) == [1, 2, 2, 7]
    assert calibration.rising([]) == []


def test_interpolation() -> None:
    """Straight between what is known, level outside."""
    assert calibration.interpolate([1, 5, 9], [10, 14, 30], [1, 2, 5, 7, 9, 12]) == [10, 11, 14, 22, 30, 30]
    assert calibration.interpolate([3], [7], [1, 3, 8]) == [7, 7, 7]
