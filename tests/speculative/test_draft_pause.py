"""Pauses of the adaptive schedule: a source that never helps is not asked, overhead is charged, and a pause ends."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest

from ipex_assist.speculative.adaptive_schedule import LONGEST_PAUSE, AdaptiveSchedule
from ipex_assist.speculative.costs import Costs
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
