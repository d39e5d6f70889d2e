"""How many times as fast as plain decoding: by an invented clock, against a plain run under the same clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny_models
import torch
from decoding import GREEDY, PROMPT, run

from ipex_assist.engine import request as request_module
from ipex_assist.executors import interface
from ipex_assist.executors.interface import Model, Rows
from ipex_assist.generation import stats as stats_module
from ipex_assist.generation.stats import Statistics
from ipex_assist.speculative.costs.calibration import calibrate
from ipex_assist.speculative.planned_assistant import KnownAssistant
from ipex_assist.speculative.planner import Planner
from ipex_assist.speculative.round import Round
from ipex_assist.speculative.schedule import ConstantSchedule, DraftPlan, Schedule
from ipex_assist.speculative.sources.assistant_model import AssistantModel
from ipex_assist.speculative.sources.batched_proposals import Steps
from ipex_assist.speculative.sources.proposal import Proposal

pytestmark = pytest.mark.one_stack

NEW = 100


class Clock:
    """Stands for the module `time`: seconds pass when a pass is run, `slower` times as many as it takes undisturbed."""

    def __init__(self) -> None:
        self.now, self.slower = 100.0, 1.0

    def perf_counter(self) -> float:
        return self.now


class Timed(Model):
    """A model whose passes take so long by that clock."""

    def __init__(self, model: Model, clock: Clock, seconds: float, row: float) -> None:
        self.model, self.clock, self.seconds, self.row = model, clock, seconds, row
        self.spec = model.spec

    @property
    def exact_rows(self) -> int:
        return self.model.exact_rows

    def new_sequence(self, capacity: int) -> interface.Sequence:
        return self.model.new_sequence(capacity)

    def forward(self, rows: Sequence[Rows], vocabulary: int | None = None) -> torch.Tensor:
        tokens = sum(len(each.tokens) for each in rows)
        self.clock.now += (self.seconds + self.row * tokens) * self.clock.slower
        return self.model.forward(rows, vocabulary)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Clock, Timed, Timed]:
    """A target, and a draft of the same weights whose passes take a fifth: all it drafts is right."""
    clock = Clock()
    monkeypatch.setattr(stats_module, "time", clock)
    monkeypatch.setattr(request_module, "time", clock)  # where rounds end
    tiny_models.save(tmp_path / "target", "llama")
    target = Timed(tiny_models.model(tmp_path / "target"), clock, 0.010, 0.0002)
    return clock, target, Timed(tiny_models.model(tmp_path / "target"), clock, 0.002, 0.0001)


class Hesitant(AssistantModel):
    """Proposes something every other round, as a source does that has to find it in the text."""

    asked = 0

    def steps(self, tokens: Sequence[int], plan: DraftPlan, left_out: tuple[int, int] = (0, 0)) -> Steps:
        self.asked += 1
        return (yield from super().steps(tokens, plan, left_out)) if self.asked % 2 else Proposal([])


def statistics(
    clock: Clock,
    target: Timed,
    draft: Timed | None,
    schedule: Schedule | Planner | None,
    source_class: type[AssistantModel] = AssistantModel,
) -> Statistics:
    """Return the statistics of one text of NEW tokens, each of which costs half a millisecond outside of the passes."""
    source = None
    if draft is not None:
        source = source_class(draft, GREEDY, tiny_models.VOCAB)
    counts = Statistics(len(PROMPT), _started=clock.now)
    rounds: list[Round] = run(
        target, source, new=NEW, schedule=schedule, each=lambda round_: count(counts, round_), clock=clock.perf_counter
    )
    assert len(rounds) > 5
    return counts


def count(counts: Statistics, round_: Round) -> None:
    clock = stats_module.time
    clock.now += 0.0005 * len(round_.tokens)  # type: ignore[attr-defined]
    counts.count(round_, len(round_.tokens))


@pytest.mark.parametrize("slower", [1.0, 1.6])
def test_it_is_what_a_plain_run_takes(pair: tuple[Clock, Timed, Timed], slower: float) -> None:
    """Also where the machine has become slower since it was calibrated, and never by what the draft was hoped to do."""
    clock, target, draft = pair
    costs = calibrate(target, draft, clock=clock.perf_counter)
    clock.slower = slower
    assisted = statistics(clock, target, draft, Planner([KnownAssistant(costs)]))
    plain = statistics(clock, target, None, None)
    assert assisted.new_tokens == plain.new_tokens
    true = plain.decode_s / assisted.decode_s
    assert true > 1.5
    assert assisted.speedup == pytest.approx(true, rel=0.04)


def test_a_draft_that_does_not_pay(pair: tuple[Clock, Timed, Timed]) -> None:
    """A fixed number of tokens, drafted slower than the target decodes: less than 1, by plain rounds of this text.

    Where every round had a draft, no plain pass was timed, and there is nothing to say.
    """
    clock, target, draft = pair
    draft.seconds = 0.030
    plain = statistics(clock, target, None, None)
    slow = statistics(clock, target, draft, ConstantSchedule(3), Hesitant)
    assert slow.speedup == pytest.approx(plain.decode_s / slow.decode_s, rel=0.01)
    assert slow.speedup < 1
    assert statistics(clock, target, draft, ConstantSchedule(3)).speedup is None


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[Clock, Statistics]:
    """The clock, and statistics of a text whose prompt was read."""
    clock = Clock()
    monkeypatch.setattr(stats_module, "time", clock)
    counts = Statistics(3, _started=clock.now)
    counts.count(Round([7], target_s=0.1, prompt=True), 1)
    return clock, counts


def test_nothing_drafted_has_no_factor(counted: tuple[Clock, Statistics]) -> None:
    """Catches plain rounds that are compared with a price kept from another day, and are "1.18x plain"."""
    clock, counts = counted
    for _ in range(5):
        clock.now += 0.1
        counts.count(Round([1], target_s=0.1, plain_s=0.118), 1)
    assert counts.drafted == 0
    assert counts.speedup is None
    clock.now += 0.1
    counts.count(Round([2, 3], 1, 1, 0.01, 0.09, plain_s=0.118), 2)
    assert counts.speedup is not None


def test_wrong_drafts_never_make_it_faster(counted: tuple[Clock, Statistics]) -> None:
    """Catches "2.26x plain, acceptance rate 0%": a price of the time when the machine was busy, after that time."""
    clock, counts = counted
    for _ in range(10):
        clock.now += 0.12
        counts.count(Round([1], 1, 0, 0.01, 0.1, plain_s=0.3), 1)
    assert counts.speedup == pytest.approx(0.11 / 0.12)


def test_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """5 tokens of 0.1 s each and 0.17 s of text against 0.45 s; the token that a stop cut off is not counted."""
    clock = Clock()
    monkeypatch.setattr(stats_module, "time", clock)
    counts = Statistics(3, _started=clock.now)
    assert counts.speedup is None
    clock.now += 1.0
    counts.count(Round([7], target_s=1.0, prompt=True), 1)
    assert counts.speedup is None
    clock.now += 0.3
    counts.count(Round([1, 2, 3, 4], 3, 3, 0.05, 0.11, plain_s=0.1), 4)
    clock.now += 0.15
    counts.count(Round([5, 6], 1, 1, 0.02, 0.10, plain_s=0.1), 1)
    assert counts.speedup == pytest.approx((5 * 0.1 + 0.17) / 0.45)
    clock.now += 0.5
    counts.count(Round([8, 9], 1, 1, 0.02, 0.08), 2)  # what a plain pass takes is not known here
    assert counts.speedup is None
