"""Pauses of the adaptive schedule: a source that never helps is not asked, overhead is charged, and a pause ends."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest

from ipex_assist.speculative.adaptive_schedule import FIRST_PAUSE, LONGEST_PAUSE, MOST_PAUSES, AdaptiveSchedule
from ipex_assist.speculative.costs.acceptance import Acceptance
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.draft_budget import HEAD_STAKE, STAKE
from ipex_assist.speculative.schedule import RoundResult, RoundState

pytestmark = pytest.mark.one_stack

TOKENS = 400
OVERHEAD = 0.07  # of a plain pass: Python's share where passes take 4 ms


def costs(draft: float = 0.5, row: float = 0.06) -> Costs:
    """A small model's: a step of its head takes half of a pass."""
    return Costs(tuple(1 + row * i for i in range(16)), draft, (draft,) * 16, draft / 16)


@dataclass
class Text:
    """A text decoded by a schedule: when it was asked, and when it drafted; and all seconds."""

    asked: list[int]
    drafted: list[int]
    seconds: float
    tokens: int


def decode(schedule: AdaptiveSchedule, true: Costs, easy_from: int = TOKENS, overhead: float = OVERHEAD) -> Text:
    """Every draft is wrong before the token `easy_from`, and right behind it. A round with a plan takes `overhead`."""
    text, chance, charged = Text([], [], 0.0, 0), random.Random(1), 0.0
    while text.tokens < TOKENS:
        if schedule.pause:
            target_s = true.verifying(1) * chance.uniform(0.98, 1.02)
            schedule.rest(target_s)
            text.seconds, text.tokens = text.seconds + target_s, text.tokens + 1
            continue
        text.asked.append(text.tokens)
        plan = schedule.plan(RoundState(50 + text.tokens, TOKENS - text.tokens, 1, rereads=False))
        k = min(plan.k, TOKENS - text.tokens - 1)
        accepted = k if text.tokens >= easy_from else 0
        draft_s, target_s = true.drafting(k), true.verifying(k + 1) * chance.uniform(0.98, 1.02)
        schedule.observe(RoundResult(k, accepted, [0.99] * k, draft_s, target_s, overhead_s=charged))
        charged = overhead
        text.drafted += [text.tokens] if k else []
        text.seconds += draft_s + target_s + overhead
        text.tokens += accepted + 1
    return text


@pytest.mark.parametrize("draft", [0.02, 0.1, 0.5, 1.5])
@pytest.mark.parametrize("overhead", [0.0, 0.02, 0.1])
def test_a_source_that_is_never_right_costs_three_percent(draft: float, overhead: float) -> None:
    """Plans and all: charged to nobody they alone would cost as much as their share of each round."""
    text = decode(AdaptiveSchedule(costs(draft), TOKENS), costs(draft), overhead=overhead)
    assert text.drafted
    assert text.seconds <= 1.03 * TOKENS


def test_it_is_asked_seldom() -> None:
    """In the rounds of a pause nobody computes a plan; most of a text's rounds are such."""
    text = decode(AdaptiveSchedule(costs(), TOKENS), costs())
    assert len(text.asked) < TOKENS / 8
    assert max(after - before for before, after in pairwise(text.asked)) <= LONGEST_PAUSE + 1


def test_a_pause_skips_no_draft() -> None:
    """A schedule that is asked in every round drafts as often: a pause ends before a draft would be due."""

    class Asked(AdaptiveSchedule):
        def _rounds_to_wait(self, longest: int) -> int:
            return 0

    paused, asked = (decode(made(costs(), TOKENS), costs(), overhead=0.0) for made in (AdaptiveSchedule, Asked))
    assert len(asked.asked) > 5 * len(paused.asked)
    assert abs(len(paused.drafted) - len(asked.drafted)) <= 1


def test_a_text_that_becomes_easy_is_noticed() -> None:
    text = decode(AdaptiveSchedule(costs(0.2), TOKENS), costs(0.2), easy_from=TOKENS // 2)
    assert any(at < TOKENS // 2 for at in text.drafted)
    assert len([at for at in text.drafted if at >= TOKENS // 2]) > 20
    assert text.seconds < 0.9 * TOKENS


def test_passes_of_a_pause_are_learnt() -> None:
    """The machine becomes twice as slow while nothing is drafted: what a pass takes follows, and the findings too."""
    schedule = AdaptiveSchedule(costs(), TOKENS)
    decode(schedule, costs())
    schedule.pause = 40
    for _ in range(40):
        schedule.rest(2.0)
    schedule.findings()
    assert schedule.plain_s == pytest.approx(2.0, rel=0.1)


def texts_of(count: int, true: Costs, easy_from: int = TOKENS) -> list[Text]:
    """Texts of a head one after the other, each with what the ones before taught."""
    known, texts = Acceptance(by_position=True), []
    for _ in range(count):
        schedule = AdaptiveSchedule(true, TOKENS, model_acceptance=known.for_next_text(), stake=HEAD_STAKE)
        texts.append(decode(schedule, true, easy_from))
        known = schedule.model_acceptance
    return texts


@pytest.mark.parametrize("draft", [0.05, 0.2, 0.5])
def test_a_head_that_was_never_right_stakes_less_in_the_next_text(draft: float) -> None:
    """Catches a prior, or a trust in it, by which each text loses the whole stake to the same useless head again."""
    first, *_, last = texts_of(6, costs(draft))
    assert first.seconds <= 1.027 * TOKENS
    assert last.seconds <= 1.016 * TOKENS
    assert len(last.drafted) < len(first.drafted)
    assert last.drafted[0] == FIRST_PAUSE, "its text begins without it, and soon tries it all the same"


@pytest.mark.parametrize("draft", [0.05, 0.2, 0.3])
def test_a_head_that_was_never_right_is_found_when_it_is(draft: float) -> None:
    """After five useless texts one in which it is right from the middle on: it drafts within 100 tokens more."""
    true, known = costs(draft), Acceptance(by_position=True)
    for _ in range(5):
        schedule = AdaptiveSchedule(true, TOKENS, model_acceptance=known.for_next_text(), stake=HEAD_STAKE)
        decode(schedule, true)
        known = schedule.model_acceptance
    text = decode(AdaptiveSchedule(true, TOKENS, model_acceptance=known.for_next_text(), stake=HEAD_STAKE), true, 200)
    assert len([at for at in text.drafted if 200 <= at < 300]) > 3
    assert text.seconds < TOKENS


def test_who_was_never_right_is_not_trusted() -> None:
    """A cheap draft looks worthwhile by the prior alone, which comes back with every text."""
    known, true = Acceptance(), costs(0.05, 0.01)
    for _ in range(30):
        known.observe([0.03], 1, 0)
    schedule = AdaptiveSchedule(true, TOKENS, model_acceptance=known.for_next_text())
    assert schedule.is_doubted
    assert not schedule.budget.trusted
    right = Acceptance()
    for _ in range(30):
        right.observe([0.9], 1, 1)
    schedule = AdaptiveSchedule(true, TOKENS, model_acceptance=right.for_next_text())
    assert schedule.budget.trusted
    assert not schedule.is_doubted
    assert schedule.budget.stake == STAKE


def test_where_asking_is_expensive_it_is_asked_seldom() -> None:
    """Python's share of a pass of 3 ms: with a plan every 16 rounds asking alone took 1 % of the time."""
    for draft in (0.2, 0.5):
        text = decode(AdaptiveSchedule(costs(draft), TOKENS), costs(draft), overhead=0.17)
        assert len(set(text.asked) - set(text.drafted)) < TOKENS / 20
        assert max(after - before for before, after in pairwise(text.asked)) <= MOST_PAUSES * LONGEST_PAUSE + 1
        assert text.seconds <= 1.03 * TOKENS


def test_a_copy_ends_no_pause() -> None:
    """lookup+head: where the text repeats, copies are planned, and the head rests on."""
    schedule = AdaptiveSchedule(costs(), TOKENS)
    schedule.plan(RoundState(50, TOKENS, 1, rereads=False))
    schedule.observe(RoundResult(0, 0, target_s=1.0))
    schedule.pause = 40
    schedule.rest(1.0)
    assert schedule.plan(RoundState(52, TOKENS - 2, 0)).k > 0
    schedule.observe(RoundResult(3, 3, [0.9] * 3, 0.0, 1.1, overhead_s=0.07))
    assert schedule.pause == 38
    schedule.plan(RoundState(56, TOKENS - 6, 1, rereads=False))
    assert schedule.pause != 37, "asked for the head, it plans anew"
