"""A calibration beside other work, or a bad first round, must not end drafting for the whole text.

Bounds are of the gain that the same text has after a quiet calibration, and of the 3 % that drafting may cost where it
never helps. Here a draft from a part of the context is always wrong, unless a test says otherwise: of a real pair about
half of such drafts were right.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from drafted_texts import Draft, costs, known, simulate, steady
from planned import PlannedText, RoundResult, state_of

from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.schedule import ALL_UNREAD

pytestmark = pytest.mark.one_stack

TOKENS, SEEDS = 128, 6
# (a draft step, each token that is read as a share of it, tokens of the prompt): reading all takes 0.4 to 0.7 passes,
# of the one that the account has at first.
PAIRS = [(0.2, 0.1, 20), (0.1, 0.1, 60), (0.27, 0.1, 24)]
WRONG: Draft = lambda _: (False, 0.99)  # noqa: E731


def measured(true: Costs, reading: float = 1.0, passes: float = 1.0, draft: float = 1.0) -> Costs:
    """Return the costs as a disturbed calibration sees them: each kind by a factor."""
    rows = tuple(draft * (true.rows[0] + reading * (row - true.rows[0])) for row in true.rows)
    verify = tuple(passes * seconds for seconds in true.verify)
    return replace(true, verify=verify, draft=true.draft * draft, rows=rows, read=true.read * reading * draft)


def passes(calibrated: Costs, true: Costs, prompt: int, draft: Draft, part: Draft | None = WRONG) -> float:
    """Return the mean time of a text, in passes of one row."""
    runs = (
        simulate(PlannedText(calibrated, TOKENS), draft, true, prompt=prompt, seed=seed, part=part)
        for seed in range(SEEDS)
    )
    return sum(run.seconds * TOKENS / run.tokens for run in runs) / SEEDS


@pytest.mark.parametrize(("draft", "reading", "prompt"), PAIRS)
@pytest.mark.parametrize(
    "factors",
    [
        {"reading": 4},
        {"reading": 10},
        {"reading": 16},
        {"reading": 40},
        {"reading": 100},
        {"passes": 2},
        {"passes": 0.5},
        {"reading": 10, "passes": 3, "draft": 3},
    ],
    ids=str,
)
def test_a_disturbed_calibration_keeps_most_of_the_gain(
    draft: float, reading: float, prompt: int, factors: dict[str, float]
) -> None:
    """Reading looks expensive, so the first draft reads a part, and half of such drafts are right; its time tells what
    reading takes. The third pair's drafts from a part hardly pay, and all of a context is not covered soon.
    """
    true, half = costs(draft, reading=reading), steady(0.5)
    quiet = passes(true, true, prompt, steady(0.9), half)
    disturbed = passes(measured(true, **factors), true, prompt, steady(0.9), half)
    assert TOKENS - disturbed >= (0.9 if draft < 0.25 else 0.5) * (TOKENS - quiet)


@pytest.mark.parametrize(("draft", "reading", "prompt"), [*PAIRS, (0.2, 0.1, 80), (0.2, 0.1, 2000), (0.1, 0.02, 400)])
@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        *(("reading", factor) for factor in (1, 2, 4, 10, 40)),
        *(("all but passes", factor) for factor in (0.5, 2, 4, 10)),
        *(("passes", factor) for factor in (0.5, 2)),
    ],
)
def test_always_wrong_costs_three_percent_after_any_calibration(
    draft: float, reading: float, prompt: int, kind: str, factor: float
) -> None:
    """Trying again is paid from the same budget."""
    true = costs(draft, reading=reading)
    factors = {"reading": factor, "draft": factor} if kind == "all but passes" else {kind: factor}
    # A calibration that is wrong about plain passes as well is known to be so after a few: these are booked roughly.
    assert passes(measured(true, **factors), true, prompt, WRONG) <= 1.03 * TOKENS + 0.15


@pytest.mark.parametrize("factor", [1, 10])
@pytest.mark.parametrize(
    ("draft", "reading", "prompt", "wrong", "most"), [*((*pair, 3, 0.91) for pair in PAIRS), (*PAIRS[1], 6, 0.8)]
)
def test_a_bad_beginning(draft: float, reading: float, prompt: int, wrong: int, most: float, factor: float) -> None:
    """The first tokens that it drafts are wrong, then 90 % are right: within 128 tokens it must find that out.

    Six drafts of the others cost more than the account covers in time.
    """
    true = costs(draft, reading=reading)

    def late() -> Draft:
        drafted = 0

        def draw(generator: random.Random) -> tuple[bool, float]:
            nonlocal drafted
            drafted += 1
            return drafted > wrong and generator.random() < 0.9, 0.99

        return draw

    runs = []
    for seed in range(SEEDS):
        schedule, draft_of = PlannedText(measured(true, reading=factor), TOKENS), late()
        runs.append(simulate(schedule, draft_of, true, prompt=prompt, seed=seed, part=draft_of))
    assert sum(run.seconds * TOKENS / run.tokens for run in runs) / SEEDS <= most * TOKENS


def test_a_part_that_is_wrong_says_nothing_about_the_whole() -> None:
    """The next request starts with what is known of the pair, not with rejections of drafts from a few last tokens."""
    true, drafts = costs(0.2), 0
    schedule = PlannedText(true, TOKENS)
    for i in range(90):
        unread = 1 if i else 2000
        plan = schedule.plan(state_of(2000 + i, 100, unread))
        drafts += plan.k > 0
        read = unread if plan.context is None else min(unread, plan.context)
        draft_s = true.reading(read) + plan.k * true.draft if plan.k else 0.0
        schedule.observe(RoundResult(plan.k, 0, [0.9] * plan.k, draft_s, 1.03))
    assert drafts > 1
    assert schedule.acceptance.seen == 0


def test_a_copy_does_not_read_the_context_for_the_model() -> None:
    """Lookup drafts after a part: the model still has to read all of the context."""
    schedule = PlannedText(costs(0.2), TOKENS)
    for unread, accepted in ((2000, 1), (0, 1), (0, 1)):
        plan = schedule.plan(state_of(2000, 100, unread))
        schedule.observe(RoundResult(plan.k, accepted, [0.9] * plan.k, 0.4 if unread else 0.0, 1.03))
    assert schedule.request.skipped[0] > 0


def test_a_part_that_is_right_speaks_for_the_pair() -> None:
    """Otherwise a pair whose prompts are all long would never be trusted."""
    true = costs(0.2)
    text = PlannedText(true, TOKENS)
    simulate(text, steady(0.9), true, prompt=2000)
    assert text.planner.gained_passes > 5


def test_a_source_that_fell_behind_catches_up() -> None:
    """After twenty plain tokens a trial reads these, and does not start again from the last eight of the context."""
    true = costs(0.2, reading=0.02)
    schedule = PlannedText(true, TOKENS)
    plan, length, unread = schedule.plan(state_of(20, 128, 20)), 20, 20
    trials: list[int | None] = []
    for _ in range(100):
        seconds = true.reading(unread) + plan.k * true.draft if plan.k else 0.0
        schedule.observe(RoundResult(plan.k, 0, [0.99] * plan.k, seconds, true.verifying(plan.k + 1)))
        if unread == 20 and length > 20:
            schedule.planner.account.earned_s += 0.5
        length, unread = length + 1, 1 if plan.k else unread + 1
        plan = schedule.plan(state_of(length, 148 - length, unread))
        if plan.k and unread > 8:
            trials.append(plan.context)
    assert trials[0] == ALL_UNREAD


@pytest.mark.parametrize("unread", [0, 1], ids=["copies", "model"])
def test_a_faster_machine_is_no_reason_not_to_draft(unread: int) -> None:
    """Nothing can be proposed in the first rounds, whose passes take a tenth of what calibration beside others says.

    The speed that a draft promised at the costs of the first round is slower than a plain pass is by now.
    """
    schedule = PlannedText(costs(0.05), TOKENS, model_acceptance=known(0.8))
    first = schedule.plan(state_of(20, TOKENS, unread))
    lengths = []
    for i in range(1, 6):
        schedule.observe(RoundResult(0, 0, target_s=0.1))
        lengths.append(schedule.plan(state_of(20 + i, TOKENS - i, unread)).k)
    assert first.k > 2
    assert min(lengths) >= first.k - 2, lengths


@pytest.mark.parametrize("draft", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("overhead", [0.0, 1.0], ids=["no overhead", "time to draft is part of the overhead"])
def test_drafts_of_which_nothing_can_be_proposed(draft: float, overhead: float) -> None:
    """An assistant whose tokens are no text of the target's: it drafts in vain, for 3 % of the time at most."""
    true, lost = costs(draft), 0.0
    schedule = PlannedText(true, TOKENS)
    for i in range(TOKENS - 1):
        plan = schedule.plan(state_of(20 + i, TOKENS - i, 1))
        draft_s = true.drafting(plan.k)
        schedule.observe(RoundResult(0, 0, [], draft_s, 1.0, overhead_s=draft_s * overhead))
        lost += draft_s
    assert 0 < lost <= 0.03 * TOKENS
