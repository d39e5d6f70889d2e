"""Pauses of the planner: an assistant that never helps is not asked, overhead is charged, and a pause ends."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise

import pytest

from ipex_assist.speculative.account import LOST_SHARE
from ipex_assist.speculative.costs.acceptance import Acceptance
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.costs.pass_times import PassTimes
from ipex_assist.speculative.pass_drafts import PlannedRequest, RequestDraft
from ipex_assist.speculative.planned_assistant import KnownAssistant
from ipex_assist.speculative.planner import LONGEST_PAUSE, Planner
from ipex_assist.speculative.schedule import RoundState
from ipex_assist.speculative.sources.proposal import Proposal

pytestmark = pytest.mark.one_stack

TOKENS = 400
ROUGHLY = (
    0.2  # of a pass: what passes take is known as roughly, and what the last plan took is charged in the next pass
)
OVERHEAD = 0.07  # of a plain pass: Python's share where passes take 4 ms
RESTING = 0.06  # of that: in a pass of a pause nothing is planned, but more is done than without an assistant


def costs(draft: float = 0.5, row: float = 0.06) -> Costs:
    """A small model's: a step of its head takes half of a pass."""
    return Costs(tuple(1 + row * i for i in range(16)), draft, (draft,) * 16, draft / 16)


@dataclass
class Text:
    """A decoded text: when the planner was asked, and when it drafted; and all seconds."""

    asked: list[int]
    drafted: list[int]
    seconds: float
    tokens: int


def decode(
    planner: Planner,
    true: Costs,
    easy_from: int = TOKENS,
    overhead: float = OVERHEAD,
    rests: bool = True,
    request: PlannedRequest | None = None,
) -> Text:
    """Every draft is wrong before the token `easy_from`, and right behind it.

    A pass with a plan takes `overhead`, one of a pause RESTING of that.
    """
    text, chance, charged = Text([], [], 0.0, 0), random.Random(1), 0.0
    request = request or planner.join(TOKENS)
    while text.tokens < TOKENS:
        if rests and planner.rests([request], 1):
            target_s = true.verifying(1) * chance.uniform(0.98, 1.02)
            planner.rest(PassTimes(1, target_s, overhead_s=charged))
            charged = RESTING * overhead
            text.seconds, text.tokens = text.seconds + target_s + charged, text.tokens + 1
            continue
        text.asked.append(text.tokens)
        draft = RequestDraft(request, RoundState(50 + text.tokens, TOKENS - text.tokens, (1,), (False,)))
        made = planner.plan([draft], 1)
        k = min(draft.plan.k, TOKENS - text.tokens - 1)
        draft.proposal = Proposal([7] * k, [0.99] * k, 1 if k else 0)
        planner.trim(made)
        kept = len(draft.proposal.tokens)
        draft.accepted = kept if text.tokens >= easy_from else 0
        draft_s, target_s = true.drafting(k), true.verifying(kept + 1) * chance.uniform(0.98, 1.02)
        planner.observe(made, PassTimes(1 + kept, target_s, draft_s, overhead_s=charged))
        charged = overhead
        text.drafted += [text.tokens] if k else []
        text.seconds += draft_s + target_s + overhead
        text.tokens += draft.accepted + 1
    planner.leave(request)
    return text


def planner_of(true: Costs, known: Acceptance | None = None, gained: float = 0.0) -> Planner:
    return Planner([KnownAssistant(true, known or Acceptance(by_position=True))], gained_passes=gained)


@pytest.mark.parametrize("draft", [0.02, 0.1, 0.5, 1.5])
@pytest.mark.parametrize("overhead", [0.0, 0.02, 0.1])
def test_a_source_that_is_never_right_costs_three_percent(draft: float, overhead: float) -> None:
    """Plans and all: charged to nobody they alone would cost as much as their share of each pass."""
    text = decode(planner_of(costs(draft)), costs(draft), overhead=overhead)
    assert text.drafted
    assert text.seconds <= (1 + LOST_SHARE) * TOKENS + ROUGHLY


def test_it_is_asked_seldom() -> None:
    """In the passes of a pause nobody computes a plan; most of a text's passes are such."""
    text = decode(planner_of(costs()), costs())
    assert len(text.asked) < TOKENS / 8
    assert max(after - before for before, after in pairwise(text.asked)) <= LONGEST_PAUSE + 1


def test_a_pause_skips_no_draft() -> None:
    """A planner that is asked in every pass drafts as often: a pause ends before a draft would be due."""
    paused, asked = (decode(planner_of(costs()), costs(), overhead=0.0, rests=rests) for rests in (True, False))
    assert len(asked.asked) > 5 * len(paused.asked)
    assert abs(len(paused.drafted) - len(asked.drafted)) <= 1


def test_where_nothing_could_be_worthwhile_it_is_asked_seldom() -> None:
    """Eight texts whose passes are long by their rows: to plan before each of them alone would cost what drafts may."""
    true = Costs(tuple(1 + 0.9 * i for i in range(16)), 0.5, (0.5,) * 16, 0.03)
    known, count, overhead_s = Acceptance(), 8, 0.1
    for _ in range(20):
        known.observe([0.9], 1, 1)
    planner = planner_of(true, known)
    requests = [planner.join(TOKENS) for _ in range(count)]
    asked = 0
    for at in range(1, TOKENS - 1):
        if planner.rests(requests, count):
            planner.rest(PassTimes(count, true.verifying(count)))
            continue
        drafts = [RequestDraft(each, RoundState(50 + at, TOKENS - at, (50 + at,), (True,))) for each in requests]
        made = planner.plan(drafts, count)
        assert not any(draft.plan.k for draft in drafts)
        planner.observe(made, PassTimes(count, true.verifying(count), overhead_s=overhead_s if asked else 0.0))
        asked += 1
    assert 2 < asked < TOKENS / 4
    assert asked * overhead_s < 0.2 * LOST_SHARE * TOKENS * true.verifying(count)


def test_a_text_that_becomes_easy_is_noticed() -> None:
    text = decode(planner_of(costs(0.2)), costs(0.2), easy_from=TOKENS // 2)
    assert any(at < TOKENS // 2 for at in text.drafted)
    assert len([at for at in text.drafted if at >= TOKENS // 2]) > 20
    assert text.seconds < 0.9 * TOKENS


def test_passes_of_a_pause_are_learnt() -> None:
    """The machine becomes twice as slow while nothing is drafted: what a pass takes follows, and the findings too."""
    planner = planner_of(costs())
    request = planner.join(TOKENS)
    decode(planner, costs(), request=request)
    for _ in range(40):
        planner.rest(PassTimes(1, 2.0))
    planner.findings(request)
    assert planner.live.costs_from(1).verifying(1) == pytest.approx(2.0, rel=0.1)


def texts_of(count: int, true: Costs) -> tuple[list[Text], Acceptance, float]:
    """Texts of a head one after the other, each with what the ones before taught; and what they taught."""
    known, gained, texts = Acceptance(by_position=True), 0.0, []
    for _ in range(count):
        planner = planner_of(true, known, gained)
        texts.append(decode(planner, true))
        known, gained = planner.learnt()[0], planner.gained_passes
    return texts, known, gained


@pytest.mark.parametrize("draft", [0.05, 0.2, 0.5])
def test_a_head_that_was_never_right_loses_no_more_in_the_next_text(draft: float) -> None:
    """Catches what is granted to each text beyond its share, and lost to the same useless head again."""
    (first, *_, last), _, _ = texts_of(6, costs(draft))
    assert max(first.seconds, last.seconds) <= (1 + LOST_SHARE) * TOKENS + ROUGHLY


@pytest.mark.parametrize("draft", [0.05, 0.2, 0.3])
def test_a_head_that_was_never_right_is_found_when_it_is(draft: float) -> None:
    """After five useless texts one in which it is right from the middle on: it drafts within 100 tokens more."""
    true = costs(draft)
    _, known, gained = texts_of(5, true)
    text = decode(planner_of(true, known, gained), true, 200)
    assert len([at for at in text.drafted if 200 <= at < 300]) > 3
    assert text.seconds < TOKENS


def test_who_was_never_right_is_doubted() -> None:
    """A cheap draft looks worthwhile by the prior alone: its head reads no prompt, and one that was right does."""
    known, true = Acceptance(), costs(0.05, 0.01)
    for _ in range(30):
        known.observe([0.03], 1, 0)
    assert planner_of(true, known).assistants[0].doubts(None)
    right = Acceptance()
    for _ in range(30):
        right.observe([0.9], 1, 1)
    assert not planner_of(true, right).assistants[0].doubts(None)
    assert not planner_of(true).assistants[0].doubts(None)


def test_where_asking_is_expensive_it_is_asked_seldom() -> None:
    """Python's share of a pass of 3 ms: with a plan every 16 passes asking alone took 1 % of the time."""
    for draft in (0.2, 0.5):
        text = decode(planner_of(costs(draft)), costs(draft), overhead=0.17)
        assert len(set(text.asked) - set(text.drafted)) < TOKENS / 20
        assert text.seconds <= (1 + LOST_SHARE) * TOKENS + ROUGHLY
