"""Assisted beside plain decoding for many texts at once, replayed: costs of real machines, drafts of a real pair."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import simulated

from ipex_assist.engine.draft_scheduler import DraftScheduler
from ipex_assist.engine.scheduled_request import ScheduledRequest
from ipex_assist.speculative.costs.calibration import interpolate
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.costs.pass_times import PassTimes

pytestmark = pytest.mark.one_stack

# Milliseconds of a pass of the 1.5B target by its rows, on two cores with AMX, and of its 0.5B assistant in int4 by the
# texts it drafts for.
TARGET = {
    "int8": {1: 52, 8: 55, 9: 62, 16: 64, 17: 100, 32: 100, 33: 117, 48: 130, 64: 167, 256: 523, 512: 1015},
    "int4": {1: 36, 4: 38, 8: 41, 9: 50, 16: 52, 17: 87, 32: 88, 33: 110, 48: 140, 64: 172, 256: 650, 512: 1284},
}
DRAFT = tuple(interpolate([1, 8, 16], [0.0115, 0.0142, 0.0207], range(1, 17)))
READ = 0.57e-3
MEASURED = 64  # rows that calibration measures


def true_costs(precision: str) -> Costs:
    """Return what passes take, of prompts too."""
    known = sorted(TARGET[precision])
    seconds = interpolate(known, [1e-3 * TARGET[precision][rows] for rows in known], range(1, known[-1] + 1))
    return Costs(tuple(seconds), DRAFT[0], DRAFT, READ)


def ratio(true: Costs, believed: Costs, texts: int, at_a_time: int, **others: Any) -> float:
    """Return the tokens per second of assisted ÷ those of plain decoding."""
    plain = simulated.serve(true, texts, at_a_time, assisted=False)
    return simulated.serve(true, texts, at_a_time, believed=believed, **others).tokens_per_s / plain.tokens_per_s


@pytest.mark.parametrize("precision", TARGET)
@pytest.mark.parametrize("at_a_time", [2, 4, 8, 16, 32])
def test_drafting_never_costs_more_than_it_may(precision: str, at_a_time: int) -> None:
    """However many texts there are: of a pair that nobody knows, prompts and their reading included."""
    true = true_costs(precision)
    believed = Costs(true.verify[:MEASURED], true.draft, true.rows, true.read)
    assert ratio(true, believed, 4 * max(4, at_a_time), at_a_time) >= 0.97


@pytest.mark.parametrize("at_a_time", [4, 16])
def test_a_calibration_that_missed_a_step_costs_little(at_a_time: int) -> None:
    """Behind 16 rows a pass takes half as much again, of which a line from 16 to 32 rows knows nothing."""
    true = true_costs("int8")
    line = interpolate([1, 16, 32, 64], [true.verifying(rows) for rows in (1, 16, 32, 64)], range(1, MEASURED + 1))
    assert ratio(true, Costs(tuple(line), true.draft, true.rows, true.read), 4 * at_a_time, at_a_time) >= 0.97


@pytest.mark.parametrize("at_a_time", [2, 4, 8, 16])
def test_neighbours_that_slow_down_arithmetic_cost_little(at_a_time: int) -> None:
    """Others on the machine's cores make many rows and drafts dear, and plain passes, which wait for memory, hardly: as
    seen on a shared machine minutes behind the calibration. Where every pass has drafts, nothing else tells."""
    calibrated = true_costs("int8")
    known = {1: 60, 4: 62, 8: 76, 9: 95, 16: 120, 17: 170, 32: 180, 64: 320, 256: 900, 512: 1800}
    seconds = interpolate(sorted(known), [1e-3 * known[rows] for rows in sorted(known)], range(1, 513))
    true = Costs(tuple(seconds), 1.8 * DRAFT[0], tuple(1.8 * row for row in DRAFT), 1.8 * READ)
    believed = Costs(calibrated.verify[:MEASURED], calibrated.draft, calibrated.rows, calibrated.read)
    assert ratio(true, believed, 4 * at_a_time, at_a_time) >= 0.97


def test_drafting_pays_for_a_few() -> None:
    """Four texts at a time, whose passes have rows to spare."""
    true = true_costs("int8")
    believed = Costs(true.verify[:MEASURED], true.draft, true.rows, true.read)
    assert ratio(true, believed, 16, 4) >= 1.1


@pytest.mark.parametrize(("at_a_time", "without", "tried"), [(1, 1, 0.3), (2, 1, 0.05), (4, 1, 0.05), (8, 3, 0.05)])
def test_an_adapter_that_changes_all_texts_stops_its_own_drafts_alone(
    at_a_time: int, without: int, tried: float
) -> None:
    """Drafts are right for texts without an adapter and never for those with one, in turn and in the same passes.

    Finds rates over both, by which all of them draft or none. without: texts without the adapter, for each with it.
    tried: drafted tokens a pass, to notice when they become right.
    """
    true = true_costs("int8")
    true = replace(true, draft=true.draft / 2, rows=tuple(row / 2 for row in true.rows), read=true.read / 2)
    adapters = [None] * without + ["changes"]
    mixed = simulated.serve(true, 8 * at_a_time, at_a_time, adapters=adapters)
    for adapter, worthwhile in ((None, True), ("changes", False)):
        later = mixed.rounds[adapter][len(mixed.rounds[adapter]) // 3 :]
        drafted, accepted = (sum(each) for each in zip(*later, strict=True))
        assert (accepted > 0.5 * len(later)) == worthwhile
        assert worthwhile or drafted < tried * len(later), f"{drafted} tokens in {len(later)} passes"
    plain = simulated.serve(true, 8 * at_a_time, at_a_time, adapters=adapters, assisted=False)
    assert mixed.tokens_per_s > 1.03 * plain.tokens_per_s


@pytest.mark.parametrize("at_a_time", [1, 4, 8])
def test_an_adapter_after_a_pair_that_did_well_costs_no_more_than_any_text(at_a_time: int) -> None:
    """Finds what the model without an adapter has earned, trust and credit, spent on texts that nothing drafts for."""
    true = true_costs("int8")
    adapters = [None] * (2 * at_a_time) + [f"a{i}" for i in range(8)] * at_a_time
    count = len(adapters)
    assisted = simulated.serve(true, count, at_a_time, adapters=adapters)
    plain = simulated.serve(true, count, at_a_time, adapters=adapters, assisted=False)
    assert assisted.tokens_per_s >= 0.97 * plain.tokens_per_s


def head_costs(precision: str, kind: str) -> Costs:
    """A head of one layer beside a target of 28: it reads as much faster, and a step is mostly the lm_head."""
    true = true_costs(precision)
    step = tuple(true.verifying(rows) / 9 for rows in range(1, 17))
    read = (true.verifying(512) - true.verifying(256)) / 256 / 28
    if kind == "block":
        return replace(true, draft=0.0, rows=step, read=read, block=tuple(1.5 * row for row in step[:8]))
    return replace(true, draft=step[0], rows=step, read=read)


@pytest.mark.parametrize("precision", TARGET)
@pytest.mark.parametrize("at_a_time", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("kind", ["step", "block"])
def test_a_head_of_random_weights_costs_little(precision: str, at_a_time: int, kind: str) -> None:
    """One that nobody knows, is never right and as sure as a good one: reading prompts into it included."""
    true = head_costs(precision, kind)
    believed = replace(true, verify=true.verify[:MEASURED])
    assert ratio(true, believed, 4 * max(4, at_a_time), at_a_time, head="random") >= 0.97


@pytest.mark.parametrize("kind", ["step", "block"])
@pytest.mark.parametrize("at_a_time", [1, 4])
def test_a_head_as_good_as_an_assistant_pays_more(kind: str, at_a_time: int) -> None:
    """It drafts what the assistant does, in half the time."""
    true = head_costs("int8", kind)
    believed = replace(true, verify=true.verify[:MEASURED])
    with_head = ratio(true, believed, 4 * max(4, at_a_time), at_a_time, head="recorded")
    true = true_costs("int8")
    assert with_head > max(1.2, ratio(true, replace(true, verify=true.verify[:MEASURED]), 16, at_a_time))


@pytest.mark.parametrize(
    ("drafts", "rests", "head", "grammar", "plain"),
    [
        (False, False, False, False, True),
        (True, False, False, False, False),
        (True, True, False, False, True),
        (True, True, True, False, False),
        (True, True, False, True, False),
    ],
)
def test_a_round_of_a_pause_is_a_plain_step(drafts: bool, rests: bool, head: bool, grammar: bool, plain: bool) -> None:
    """Otherwise each round of an assistant that never helps is made between two passes. A head wants hidden states."""
    draft, known = (Mock() if each else None for each in (drafts, head))
    request = Mock(draft=draft, head=known, logprobs=None, grammar=Mock() if grammar else None)
    assert ScheduledRequest(request, 1, 9, rests=rests).is_plain_step == plain


def test_what_is_done_in_a_pause_is_charged() -> None:
    """Milliseconds of Python around passes of a few: charged to nobody they come on top of what drafts may cost."""
    ticks = itertools.count()
    planner = Mock(**{"rests.return_value": 5})
    scheduled = Mock(remaining=9, request=Mock(planner=planner, may_pause=True, copies=False))
    scheduler = DraftScheduler(True, lambda: float(next(ticks)))
    for _ in range(2):
        took = PassTimes(1, 10.0, scheduler.draft([scheduled], 0, 0, Mock()))
        scheduler.observe_pass(took)
    first, second = (call.args[0] for call in planner.rest.call_args_list)
    assert (first.seconds, first.draft_s, first.overhead_s) == (10.0, 0.0, 1.0)
    assert second.overhead_s == 2.0, "and what the pass before took afterwards"


def test_passes_of_one_request_each_are_shared_out() -> None:
    """Where a pass holds one request, three of them are planned by a third of what all took; experts are not known."""
    took = PassTimes(6, 9.0, 6.0, experts=4.0, overhead_s=3.0).of_one(3)
    assert took == PassTimes(6, 3.0, 2.0, overhead_s=1.0)
    assert took.without_drafts() == PassTimes(6, 3.0, overhead_s=3.0)
