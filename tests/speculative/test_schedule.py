"""Draft lengths against simulated drafts and costs: what is promised must hold whatever the assistant."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from drafted_texts import Draft, costs, honest, known, simulate, steady
from planned import PlannedText, RoundResult, record, state_of

from ipex_assist.env.errors import UsageError
from ipex_assist.speculative.account import FIRST_TOKENS, KEPT_PASSES, LOST_SHARE
from ipex_assist.speculative.costs.acceptance import EDGES, Acceptance, bin_of
from ipex_assist.speculative.costs.batch_costs import BatchCosts
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.draft_lengths import DraftLength, best_length
from ipex_assist.speculative.options import DraftOptions
from ipex_assist.speculative.planned_assistant import KnownAssistant
from ipex_assist.speculative.planner import Planner
from ipex_assist.speculative.schedule import ALL_UNREAD, ConstantSchedule, HeuristicSchedule, Schedule
from ipex_assist.speculative.sources.proposal import Proposal

pytestmark = pytest.mark.one_stack


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("draft", [0.05, 0.3, 0.8])
def test_without_confidence_it_is_the_published_formula(rate: float, draft: float) -> None:
    """(1 - a^(k+1)) / (1 - a) tokens in k·draft + verify(k+1) seconds, and no k is better."""
    acceptance = Acceptance()
    for classes in (acceptance.first, acceptance.later):
        classes.proposed[-1], classes.drafted[-1], classes.accepted[-1] = 1e9, 1e9, 1e9 * rate
        classes.prior = 0.0
    true = costs(draft)

    def speed(k: int) -> float:
        return (1 - rate ** (k + 1)) / (1 - rate) / (k * draft + true.verifying(k + 1))

    choice = best_length(acceptance, BatchCosts(true, 1), 1, 12)
    assert choice.k == max(range(13), key=speed)
    assert choice.rate == pytest.approx(speed(choice.k))


@pytest.mark.parametrize("draft", [0.02, 0.1, 0.3, 0.6, 1.5])
@pytest.mark.parametrize("row", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("reading", [0.02, 0.3])
@pytest.mark.parametrize(("prompt", "tokens"), [(20, 128), (20, 600), (2000, 128), (300, 40)])
def test_always_wrong_costs_less_than_three_percent(
    draft: float, row: float, reading: float, prompt: int, tokens: int
) -> None:
    """Reading a prompt, drafting, and trying again later, all in all; a sure assistant that is always wrong."""
    true = costs(draft, row, reading)
    wrong: Draft = lambda _: (False, 0.999)  # noqa: E731
    run = simulate(PlannedText(true, tokens), wrong, true, prompt=prompt, tokens=tokens)
    unknown = max(0.0, draft * (1 + reading) + row - 1)  # of the first draft, beyond a pass
    assert run.seconds - tokens <= LOST_SHARE * max(FIRST_TOKENS, tokens) + unknown + 1e-9


def test_always_wrong_again_and_again() -> None:
    """One model object serves many texts: what was learnt of one must not cost the next one more."""
    true = costs(0.3)
    text = PlannedText(true, 128)
    spent = 0.0
    for seed in range(5):
        spent += simulate(text, steady(0.0), true, seed=seed).seconds
        assert spent <= (1 + LOST_SHARE) * 128 * (seed + 1)
        text = text.next_text(128)


def test_a_pair_that_was_good_and_is_wrong_now() -> None:
    """What it gained lets it read the prompt and a few tokens more, and no further."""
    true = costs(0.2)
    text = PlannedText(true, 128)
    simulate(text, steady(0.9), true)
    run = simulate(text.next_text(128), steady(0.0), true)
    assert run.seconds <= 128 + KEPT_PASSES + LOST_SHARE * 128


@pytest.mark.parametrize("prompt", [20, 120, 1000, 4000])
@pytest.mark.parametrize("tokens", [20, 128, 1024])
@pytest.mark.parametrize("reading", [0.02, 0.3])
def test_what_earlier_gains_may_lose_is_bounded(prompt: int, tokens: int, reading: float) -> None:
    """A good pair meets a text of which it knows nothing, which may be long and ends early: KEPT_PASSES at most.

    With all that earlier texts gained, it would read any prompt for an answer of one line.
    """
    true = costs(0.2, reading=reading)
    text = PlannedText(true, 128)
    simulate(text, steady(0.9), true)
    wrong: Draft = lambda _: (False, 0.999)  # noqa: E731
    run = simulate(text.next_text(1024), wrong, true, prompt=prompt, tokens=tokens, limit=1024)
    lost = run.seconds / true.verifying(1) - tokens
    assert lost <= KEPT_PASSES + LOST_SHARE * max(FIRST_TOKENS, tokens) + 0.5


def test_calibration_that_was_wrong_about_the_draft() -> None:
    """Drafts take three times what was measured at load: the run itself tells."""
    true = costs(0.3)
    measured = costs(0.1)
    run = simulate(PlannedText(measured, 256), steady(0.0), true, tokens=256)
    assert run.seconds <= 1.05 * 256
    # At 0.3 a step this draft pays, at 0.1 it would be drafted from more freely: the true optimum is found.

    def mean(make: Callable[[], PlannedText | Schedule]) -> float:
        return sum(simulate(make(), steady(0.6), true, tokens=512, seed=seed).seconds for seed in range(16)) / 16

    best = min(mean(lambda k=k: ConstantSchedule(k)) for k in range(6))  # type: ignore[misc]
    assert mean(lambda: PlannedText(measured, 512)) <= 1.05 * best


@pytest.mark.parametrize("rate", [0.1, 0.4, 0.6, 0.8, 0.9, 0.97])
@pytest.mark.parametrize("draft", [0.05, 0.15, 0.3])
def test_within_five_percent_of_the_best_fixed_length(rate: float, draft: float) -> None:
    """And within two passes more, for the first drafts: a pass of allowance covers short ones alone.

    Mean over seeds, as one text's luck is not the planner's.
    """
    true = costs(draft)

    def mean(make: Callable[[], PlannedText | Schedule]) -> float:
        return sum(simulate(make(), steady(rate), true, tokens=200, seed=seed).seconds for seed in range(20)) / 20

    best = min(mean(lambda k=k: ConstantSchedule(k)) for k in range(9))  # type: ignore[misc]
    assert mean(lambda: PlannedText(true, 200)) <= 1.05 * best + 2


def test_confidence_beats_every_fixed_length() -> None:
    """Where the draft knows what it does not know, stopping there is worth more than any number."""
    true = costs(0.3)
    fixed = min(simulate(ConstantSchedule(k), honest, true, tokens=1000).seconds for k in range(16))
    assert simulate(PlannedText(true, 1000), honest, true, tokens=1000).seconds < 0.95 * fixed


def test_a_text_that_becomes_easy_is_noticed() -> None:
    """300 tokens always wrong, then always right: trials must find out, and then it must draft in full."""
    true = costs(0.2)
    count = 0

    def turning(generator: random.Random) -> tuple[bool, float]:
        return state["easy"], 0.9

    state = {"easy": False}
    schedule = PlannedText(true, 900)
    simulate(schedule, turning, true, tokens=300)
    state["easy"] = True
    run = simulate(schedule, turning, true, tokens=600)
    count = run.drafted
    assert count > 300
    assert run.seconds < 0.7 * 600


def test_a_long_prompt_is_read_only_when_it_was_earned() -> None:
    """2,000 tokens that cost the draft 40 passes: first the text's end, and the whole once drafts have paid for it."""
    true = costs(0.2, reading=0.1)
    schedule = PlannedText(true, 600)
    plan = schedule.plan(state_of(2000, 600, 2000))
    assert plan.context is not None
    assert true.reading(plan.context) <= LOST_SHARE * FIRST_TOKENS
    run = simulate(PlannedText(true, 600), steady(0.9), true, tokens=600, prompt=2000)
    assert run.seconds < 0.75 * 600


def test_a_long_prompt_is_read_at_once_by_a_pair_that_did_well() -> None:
    """It does so on the second text of a process."""
    true = costs(0.2, reading=0.02)
    text = PlannedText(true, 128)
    simulate(text, steady(0.9), true)
    assert text.next_text(128).plan(state_of(500, 128, 500)).context == ALL_UNREAD


def test_copies_and_models_are_told_apart() -> None:
    """A source that reads nothing drafts for nothing; that its copies are wrong says nothing about the model."""
    true = costs(0.3)
    schedule = PlannedText(true, 200)
    drafted = []
    for _ in range(80):
        drafted.append(schedule.plan(state_of(100, 100, 0)).k)
        record(schedule, RoundResult(drafted[-1], 0, [0.9] * drafted[-1], 0.0, true.verifying(drafted[-1] + 1)))
    assert sum(drafted[:10]) > 10
    assert sum(drafted[-40:]) <= 30
    assert max(drafted[-40:]) == 1
    assert schedule.acceptance.seen == 0
    schedule.planner.account.earned_s = 10.0
    assert schedule.plan(state_of(100, 100, 1)).k > 0


def test_a_number_is_the_most_that_adaptive_drafts() -> None:
    """It drafts no more than the text may still get, either."""
    schedule = PlannedText(costs(0.01, 0.0), 100, longest=2, model_acceptance=known(0.9))
    assert schedule.plan(state_of(10, 90, 1)).k == 2
    assert schedule.plan(state_of(10, 2, 1)).k <= 1


def test_no_row_counts_beyond_what_was_measured_crash() -> None:
    """Tiny contexts give few measured rows."""
    assert Costs((1.0,)).verifying(3) == 3.0
    assert Costs((1.0, 1.5)).verifying(4) == 2.5
    assert best_length(Acceptance(), BatchCosts(Costs((1.0,)), 1), 1, 5) == DraftLength(0, 0.0, 1.0, 1.0, 1.0)


def test_heuristic_is_transformers_rule() -> None:
    """+2 after a full hit, -1 otherwise, never below 1; a round without a draft changes nothing."""
    schedule = HeuristicSchedule(5)
    seen = []
    for drafted, accepted in [(5, 5), (7, 6), (6, 0), (0, 0), (5, 5)]:
        record(schedule, RoundResult(drafted, accepted))
        seen.append(schedule.plan(state_of(1, 100, 1)).k)
    assert seen == [7, 6, 5, 5, 7]
    low = HeuristicSchedule(1)
    low.observe(1, 0)
    assert low.k == 1


@pytest.mark.parametrize(
    ("number", "schedule", "kind"),
    [(None, None, "adaptive"), (4, None, "constant"), (4, "adaptive", "adaptive"), (None, "heuristic", "heuristic")],
)
def test_which_schedule_flags_mean(number: int | None, schedule: str | None, kind: str) -> None:
    """A number alone is constant, as people know it."""
    assert DraftOptions(True, number, schedule).kind == kind


def test_options_that_draft_nothing() -> None:
    """0 tokens is no draft, whatever the schedule; an unknown schedule lists the known ones."""
    assert not DraftOptions(True, 0, "adaptive").may_draft
    assert not DraftOptions(False).is_adaptive
    with pytest.raises(UsageError, match="adaptive, constant, heuristic"):
        DraftOptions(True, 3, "linear")


def test_classes_cover_every_confidence() -> None:
    """Edges belong to the class they begin, and rounding beyond 1 to the last."""
    assert bin_of(0.0) == 0
    assert [bin_of(edge) for edge in EDGES] == list(range(len(EDGES)))
    assert bin_of(1.0000001) == len(EDGES) - 1


def test_tokens_behind_a_wrong_one_are_not_counted() -> None:
    """They were drafted behind a text that never was."""
    acceptance = Acceptance()
    before = sum(acceptance.later.drafted)
    acceptance.observe([0.9, 0.9, 0.9, 0.9], 4, 1)
    assert sum(acceptance.later.drafted) == pytest.approx(before * 0.98 + 1)
    assert acceptance.seen == 2


BLOCK = replace(costs(), draft=0.0, block=(0.3, 0.35, 0.4, 0.45))


def test_of_a_block_what_is_worth_its_row_is_verified() -> None:
    """All tokens cost the same to draft: the plan asks for all of them, and rows are what a token has to be worth."""
    known = Acceptance()
    for _ in range(30):
        known.observe([0.99, 0.99, 0.99, 0.15, 0.05], 5, 3)
    rows = replace(BLOCK, verify=tuple(1 + 0.2 * i for i in range(16)))
    schedule = PlannedText(rows, 128, planner=Planner([KnownAssistant(rows, known)], gained_passes=8))
    assert schedule.plan(state_of(20, 100, 1)).k > 5
    proposal = Proposal([7] * 5, [0.99, 0.99, 0.99, 0.15, 0.05], 1)
    assert len(schedule.trim(proposal).tokens) == 3
    assert schedule.trim(proposal).confidence == proposal.confidence, "of all, for the statistics"


def test_the_cost_of_blocks() -> None:
    """Between and beyond the numbers of requests that were measured; a block of any length costs the same."""
    assert [BLOCK.blocks(requests) for requests in (0, 1, 3, 6)] == pytest.approx([0, 0.3, 0.4, 0.55])
    assert BLOCK.blocks(1.5) == pytest.approx(0.325)
    assert (BLOCK.drafting(0), BLOCK.drafting(1), BLOCK.drafting(15)) == (0.0, 0.3, 0.3)
    assert costs().drafting(3) == pytest.approx(0.6)
