"""A calibration that others disturbed: texts of an invented clock must not believe it for ever, nor measure for ever.

A world has true costs, and a calibration takes 1.5 s of its time. A process is a PairCache, as a start of the program
is one; its texts go through Drafting as a model's texts do.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from drafted_texts import Draft, Run, simulate, steady
from planned import PlannedText, RoundResult, state_of

from ipex_assist.executors.blocks import NoBlocksError
from ipex_assist.speculative.costs.acceptance import Acceptance
from ipex_assist.speculative.costs.pair_cache import PairCache
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import DraftOptions

pytestmark = pytest.mark.one_stack

ADAPTIVE = DraftOptions(True, None, "adaptive")
QUIET = Costs(tuple(0.05 + 0.0005 * i for i in range(16)), 0.01, tuple(0.01 + 0.001 * i for i in range(16)), 0.002)
# What the cache folder held: every pass looks the same, and a draft step like a pass of the target.
FLAT = Costs((0.148,) * 9, 0.148, (0.148,) * 16, 0.148)
DEAR = replace(QUIET, draft=0.2, rows=tuple(0.2 + 0.02 * i for i in range(16)), read=0.04)
SLOW = Costs(QUIET.verify, 0.2, tuple(0.2 + 0.02 * i for i in range(16)), 0.04)  # a pair that never pays, in truth


@pytest.fixture(autouse=True)
def _cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@dataclass
class World:
    """A machine with true costs, whose clock only texts and calibrations move. disturbed: what is measured instead."""

    true: Costs
    disturbed: Costs | None = None
    now: float = 0.0
    calibrations: int = 0

    def process(self) -> Drafting:
        """A start of the program, which loads the pair."""
        drafting = Drafting(100, self._measure, lookup=True)
        drafting.go_on_from(PairCache({"target": "large"}, {"threads": 2}, clock=lambda: self.now))
        _ = drafting.costs
        return drafting

    def _measure(self) -> Costs:
        self.calibrations += 1
        self.now += 1.5
        return self.disturbed or self.true

    def text(self, drafting: Drafting, draft: Draft, tokens: int = 64, seed: int = 0) -> Run:
        """Generate one text, at whose end `drafting` learns from it."""
        planned = PlannedText(drafting.costs, tokens, planner=drafting.planner())
        run = simulate(planned, draft, self.true, tokens=tokens, seed=seed)
        drafting.learn(planned.planner, planned.request)
        self.now += run.seconds
        return run


@pytest.mark.parametrize("wrong", [FLAT, DEAR], ids=["all passes alike", "a draft dearer than four passes"])
@pytest.mark.parametrize("processes", [1, 40], ids=["in one process", "each text in a process"])
def test_costs_that_forbid_drafts_are_measured_again(wrong: Costs, processes: int) -> None:
    """A good pair, calibrated beside other work: passes faster than that are measured again; drafts tell."""
    world = World(QUIET, disturbed=wrong)
    drafting = world.process()
    first = world.text(drafting, steady(0.9))
    if wrong is DEAR:
        assert first.drafted <= 1, "a trial"
    world.disturbed = None
    runs = []
    for number in range(40):
        if processes > 1:
            drafting = world.process()
        runs.append(world.text(drafting, steady(0.9), seed=number))
    assert world.calibrations == (1 if wrong is DEAR else 2)
    assert runs[-1].drafted > 40
    assert runs[-1].seconds < 0.6 * 64 * QUIET.verifying(1)


def test_passes_faster_than_calibrated_are_believed_at_once() -> None:
    """148 ms for every pass, and the first text's take 50: the next process measures, whatever it drafts by then."""
    world = World(QUIET, disturbed=FLAT)
    world.text(world.process(), steady(0.9))
    world.disturbed = None
    drafting = world.process()
    assert world.calibrations == 2
    assert drafting.costs == QUIET


def test_drafts_that_looked_too_cheap_are_corrected() -> None:
    """The target was disturbed and the assistant was not: each text knows more than the one before it."""
    true = replace(QUIET, draft=0.06, rows=tuple(0.06 + 0.006 * i for i in range(16)), read=0.012)
    cheap = replace(true, draft=0.004, rows=tuple(0.004 + 0.0004 * i for i in range(16)), read=0.0008)
    world = World(true, disturbed=cheap)
    found = []
    for number in range(8):
        drafting = world.process()
        found.append(drafting.costs.draft)
        world.text(drafting, steady(0.5), tokens=128, seed=number)
        world.now += 10
    assert world.calibrations == 1
    assert all(after > 0.9 * min(before, true.draft) for before, after in itertools.pairwise(found))
    assert found[1] > 1.5 * cheap.draft
    assert found[-1] > 0.5 * true.draft
    assert world.process().costs.verifying(1) == pytest.approx(true.verifying(1), rel=0.25)


def test_relations_of_a_busy_hour_do_not_stay() -> None:
    """Beside other work a draft took as long as a pass, and that was kept; in peace it is tried and corrected."""
    busy = Costs(tuple(4 * seconds for seconds in QUIET.verify), 0.25, tuple([0.25] * 16), 0.25)
    world = World(QUIET)
    world.process()
    world.true = busy
    for number in range(10):
        world.text(world.process(), steady(0.9), tokens=128, seed=number)
        world.now += 10
    known = world.process().costs
    assert known.draft + known.reading(8) > 0.6 * known.verifying(1)
    world.true = QUIET
    for number in range(30):
        run = world.text(world.process(), steady(0.9), tokens=128, seed=number)
        world.now += 10
    assert run.seconds < 0.5 * 128 * QUIET.verifying(1)


def test_a_pair_that_never_pays_is_not_measured_for_ever() -> None:
    """Right costs that forbid drafting: 300 starts of 64 tokens, 1,000 s, and measuring stays below 2 % of it."""
    world = World(SLOW)
    for number in range(300):
        world.text(world.process(), steady(0.9), seed=number)
    assert world.calibrations <= 5
    assert 1.5 * (world.calibrations - 1) <= 0.02 * world.now


def test_no_memory_to_measure_again() -> None:
    """While texts have all blocks the known costs serve; a later text measures."""
    world = World(QUIET, disturbed=FLAT)
    drafting = world.process()
    measure = drafting.measure
    refused = 0

    def no_blocks() -> Costs:
        nonlocal refused
        refused += 1
        raise NoBlocksError(1, 0, 60)

    drafting.measure = no_blocks
    world.text(drafting, steady(0.9))
    known = drafting.costs
    assert (drafting.costs, refused, world.calibrations) == (known, 2, 1)
    assert known != QUIET
    drafting.measure, world.disturbed = measure, None
    assert (drafting.costs, world.calibrations) == (QUIET, 2)


def test_once_a_process() -> None:
    """A long-lived process that stays beside other work does not measure again and again."""
    world = World(QUIET, disturbed=FLAT)
    drafting = world.process()
    for number in range(400):
        world.text(drafting, steady(0.9), seed=number)
    assert world.calibrations == 2


def test_what_a_text_found_of_older_costs_is_dropped() -> None:
    """Two streams began with the same costs: the second to end must not undo what the first one brought."""
    world = World(QUIET)
    drafting = world.process()
    texts = [PlannedText(drafting.costs, 64, planner=drafting.planner()) for _ in range(2)]
    for text, true in zip(texts, (SLOW, QUIET), strict=True):
        simulate(text, steady(0.9), true, tokens=64)
    drafting.learn(texts[0].planner, texts[0].request)
    corrected = drafting.costs
    assert corrected != QUIET
    drafting.learn(texts[1].planner, texts[1].request)
    assert drafting.costs == corrected


def test_a_text_without_a_round_says_nothing() -> None:
    """Its reader left at once: doubts stay as they are."""
    world = World(QUIET, disturbed=FLAT)
    drafting = world.process()
    world.text(drafting, steady(0.9))
    planner = drafting.planner()
    drafting.learn(planner, planner.join(64))
    world.process()
    assert world.calibrations == 2


def test_which_of_the_kept_figures_forbids_drafting() -> None:
    """Kept costs can: not one of 63 rounds has a draft. Kept acceptance cannot: the first trial does not ask it."""

    def drafted(costs: Costs, right: int) -> int:
        known = Acceptance()
        for _ in range(50):
            known.observe([0.99] * 4, 4, right)
        schedule, total = PlannedText(costs, 64, model_acceptance=known), 0
        for round_ in range(63):
            k = schedule.plan(state_of(20 + round_, 64 - round_, 20 if round_ == 0 else 8)).k
            total += k
            schedule.observe(RoundResult(k, 0, [0.99] * k, costs.draft * k, costs.verifying(k + 1)))
        return total

    assert drafted(DEAR, right=4) == 0
    assert drafted(QUIET, right=0) >= 1


def test_what_a_block_costs_is_kept() -> None:
    """Of a head that drafts blocks: without it, the next process would take them to cost nothing."""
    block = Costs(QUIET.verify, 0.0, QUIET.rows, 0.002, block=(0.02, 0.025, 0.03))
    World(block).process()
    again = World(QUIET)
    assert again.process().costs == block
    assert again.calibrations == 0
