"""The planner's rule: what is drafted is expected to gain, and the account covers what it may lose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drafted_texts import costs, known, simulate, steady
from planned import PlannedText, RoundResult, state_of

from ipex_assist.speculative.account import FIRST_TOKENS, KEPT_PASSES, LOST_SHARE, Account
from ipex_assist.speculative.costs.acceptance import Acceptance
from ipex_assist.speculative.costs.batch_costs import BatchCosts
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.costs.pass_times import PassTimes
from ipex_assist.speculative.draft_lengths import best_length, worth_verifying
from ipex_assist.speculative.pass_drafts import RequestDraft
from ipex_assist.speculative.planned_assistant import KnownAssistant
from ipex_assist.speculative.planner import LONGEST_PAUSE, Planner
from ipex_assist.speculative.schedule import RoundState
from ipex_assist.speculative.sources.proposal import Proposal

pytestmark = pytest.mark.one_stack


def machine(free: int, draft: float = 0.1) -> Costs:
    """A machine on which a pass takes 1 s, of up to `free` rows, and beyond these the same for each row."""
    verify = tuple(max(1.0, rows / free) for rows in range(1, 65))
    return Costs(verify, draft, tuple(draft * (1 + rows / 10) for rows in range(16)), 0.1)


def test_the_account_adds_up() -> None:
    """What was gained, less what was lost, and 3 % of plain decoding: nothing else."""
    account = Account(token_s=1.0)
    account.begin(FIRST_TOKENS, 1.0)
    assert account.balance_s == account.granted_s == pytest.approx(LOST_SHARE * FIRST_TOKENS)
    account.allow(100.0, 1.0)
    account.book(2.0, 0.5)
    account.charge(0.25, 1.0)
    account.charge(9.0, 1.0)
    assert account.earned_s == pytest.approx(LOST_SHARE * 100 + 2.0 - 0.5 - 0.25 - 1.0)
    account.book(1000.0, 0.0)
    account.begin(0, 2.0)
    assert account.earned_s == pytest.approx(KEPT_PASSES * 2.0), "of earlier gains so much counts"


@pytest.mark.parametrize("draft", [0.02, 0.1, 0.3, 0.6, 1.5])
@pytest.mark.parametrize("prompt", [1, 20, 2000])
def test_an_assistant_that_is_always_wrong_costs_three_percent_at_every_length(draft: float, prompt: int) -> None:
    """The text may end at any token from the sixteenth on: a stake for tokens that never come would show here.

    The first draft counts as at most a plain pass; one that takes longer exceeds the account by that once.
    """
    true = costs(draft)
    text, spent, came, read = PlannedText(true, 600), 0.0, 0, 0
    for came in range(1, 600):
        plan = text.plan(state_of(prompt + came, 600 - came, prompt + came - read))
        behind = prompt + came - read
        reading = true.reading(behind if plan.context is None else min(behind, plan.context)) if plan.k else 0.0
        read = prompt + came if plan.k else read
        draft_s, target_s = reading + plan.k * true.draft, true.verifying(plan.k + 1)
        text.observe(RoundResult(plan.k, 0, [0.999] * plan.k, draft_s, target_s))
        spent += draft_s + target_s
        assert spent - came <= LOST_SHARE * max(FIRST_TOKENS, came) + 0.02 + max(0.0, 1.1 * draft - 1), came


def test_short_answers_lose_no_more_than_long_ones() -> None:
    """Answers of four tokens, one after the other: the allowance of sixteen is taken back."""
    true, spent = costs(0.2), 0.0
    planner = Planner([KnownAssistant(true)])
    for _ in range(100):
        text = PlannedText(true, 128, planner=planner)
        for i in range(4):
            plan = text.plan(state_of(20 + i, 128 - i, 1))
            draft_s, target_s = plan.k * true.draft, true.verifying(plan.k + 1)
            text.observe(RoundResult(plan.k, 0, [0.999] * plan.k, draft_s, target_s))
            spent += draft_s + target_s
        planner.leave(text.request)
    assert spent - 400 <= LOST_SHARE * (400 + FIRST_TOKENS)


@pytest.mark.parametrize("factor", [1, 3, 10])
def test_a_good_assistant_is_at_work_whatever_calibration_said(factor: float) -> None:
    """Calibrated beside other programs, its drafts look dear: the first one tells, and comes after some 30 tokens."""
    true = costs(0.1)
    believed = replace(
        true, draft=factor * true.draft, rows=tuple(factor * row for row in true.rows), read=factor * true.read
    )
    run = simulate(PlannedText(believed, 128), steady(0.95), true, tokens=128)
    assert run.seconds < 0.75 * 128


def test_texts_draft_together_after_a_few_right_drafts_from_parts() -> None:
    """One text's drafts never pay beside three plain ones, so that balance is saved for drafts of all four."""
    rows = np.interp(range(1, 65), [1, 4, 8, 16, 64], [19.5, 22, 24, 39, 145]) / 1e3
    true = Costs(tuple(rows), 0.0065, (0.0065, 0.0067, 0.0068, 0.007), 0.0005)
    planner = Planner([KnownAssistant(true)])
    requests = [planner.join(400) for _ in range(4)]
    lengths, unread, together, chance = [160] * 4, [160] * 4, 0, np.random.default_rng(2)
    for _ in range(200):
        drafts = [
            RequestDraft(request, RoundState(length, 560 - length, (left,)))
            for request, length, left in zip(requests, lengths, unread, strict=True)
        ]
        made = planner.plan(drafts, 4)
        took_s, drafting = 0.0, sum(draft.plan.k > 0 for draft in drafts)
        for place, draft in enumerate(drafts):
            if draft.plan.k:
                read = min(unread[place], draft.plan.context or unread[place])
                took_s += read * true.read
                draft.proposal, unread[place] = Proposal([1], [0.9], read), 0
                draft.accepted = int(chance.random() < 0.8)
        took_s += true.rows[drafting - 1] if drafting else 0.0
        planner.trim(made)
        for place, draft in enumerate(drafts):
            draft.accepted = min(draft.accepted, len(draft.proposal.tokens))
            lengths[place] += 1 + draft.accepted
            unread[place] += 1 + draft.accepted
        together += drafting == 4
        count = sum(len(draft.proposal.tokens) for draft in drafts)
        planner.observe(made, PassTimes(4 + count, true.verifying(4 + count), took_s))
    assert together > 10


def test_a_pause_is_bounded_and_ends_with_a_newcomer() -> None:
    """Nothing is asked while nothing could be planned."""
    text = PlannedText(costs(0.5), 600, model_acceptance=known(0.0))
    pauses = []
    for i in range(300):
        plan = text.plan(state_of(20 + i, 600 - i, 1))
        pauses.append(text.planner.rests([text.request], 1))
        text.observe(RoundResult(plan.k, 0, [0.9] * plan.k, 0.5 * plan.k, 1 + 0.03 * plan.k))
    assert 8 < max(pauses) <= LONGEST_PAUSE
    while not text.planner.rests([text.request], 1):
        plan = text.plan(state_of(400, 200, 1))
        text.observe(RoundResult(plan.k, 0, [0.9] * plan.k, 0.5 * plan.k, 1 + 0.03 * plan.k))
    assert not text.planner.rests([text.request, text.planner.join(100)], 2)


@pytest.mark.parametrize("better", [0, 1])
def test_of_two_assistants_the_better_one_drafts(better: int) -> None:
    """By what their drafts cost and how often they are right; the other has a turn now and then."""
    true = costs(0.1)
    planner = Planner([KnownAssistant(true), KnownAssistant(true)])
    request = planner.join(600)
    counts = [0, 0]
    for i in range(300):
        draft = RequestDraft(request, RoundState(20 + i, 600 - i, (1, 1), (True, True)))
        made = planner.plan([draft], 1)
        k, assistant = draft.plan.k, draft.plan.assistant
        counts[assistant] += k > 0
        draft.proposal = Proposal([1] * k, [0.95] * k, 1 if k else 0)
        planner.trim(made)
        count = len(draft.proposal.tokens)
        draft.accepted = count if assistant == better else 0
        planner.observe(made, PassTimes(1 + count, true.verifying(1 + count), 0.1 * k))
    assert counts[better] > 200
    assert 0 < counts[1 - better] < 30


@pytest.mark.parametrize("texts", [1, 2, 4, 8, 16, 32])
def test_drafts_shrink_as_passes_are_bound_by_arithmetic(texts: int) -> None:
    """Where all rows of the pass are paid for anyway, nothing is drafted; and where they are free, as much as pays."""
    length = best_length(Acceptance(), BatchCosts(machine(16), texts), texts, 15)
    twice = best_length(Acceptance(), BatchCosts(machine(16), 2 * texts), 2 * texts, 15)
    assert twice.k <= max(length.k, 1)
    assert length.k == 0 if texts >= 16 else length.k > 0


def test_a_draft_is_paid_by_those_who_share_it() -> None:
    """A pass of the draft takes a quarter of the target's: it pays for eight texts, and not for one of them alone."""
    batch_costs = BatchCosts(machine(64, draft=0.25), 8)
    assert best_length(known(0.9), batch_costs, 8, 15).gain > 1.1
    assert best_length(known(0.9), batch_costs, 1, 15).k == 0


def test_prices_of_a_pass() -> None:
    """Four texts beside eight rows of a prompt, on a machine on which eight rows are free."""
    batch_costs = BatchCosts(machine(8), 4, 8)
    assert (batch_costs.plain_s, batch_costs.base_s) == (1.0, 1.5)
    assert float(batch_costs.more_s(4)) == pytest.approx(0.5)
    assert float(batch_costs.draft_s(4)) == pytest.approx(0.13)
    assert float(batch_costs.draft_s(0.5)) == pytest.approx(0.05)
    assert float(BatchCosts(machine(8), 4).more_s(124)) == pytest.approx(15.0), "beyond what was measured"
    for rows in (*range(1, 80), 200):  # whole numbers are looked up, others interpolated
        assert float(batch_costs.pass_s(rows)) == float(batch_costs.pass_s(float(rows)))
        assert float(batch_costs.draft_s(rows)) == float(batch_costs.draft_s(float(rows)))


def test_rows_beside_a_prompt_are_not_free() -> None:
    """Steps of eight rows: finds drafts that fill a step by what calibration says, and begin the next one in truth."""
    steps = Costs(tuple(float(-(-rows // 8)) for rows in range(1, 65)), 0.1)
    assert float(BatchCosts(steps, 4).more_s(4)) == 0.0
    assert float(BatchCosts(steps, 4, 8).more_s(4)) == pytest.approx(4 / 11), "of 1 to 12 rows"
    assert BatchCosts(steps, 4, 8).more_s(np.array([4.0, 8.0])).tolist() == pytest.approx([4 / 11, 1.0])


def test_the_likeliest_tokens_are_verified() -> None:
    """Of all drafts together, up to the step behind which rows cost more than they bring."""
    step = Costs((*(1.0,) * 8, *(1.8,) * 8, *(4.0,) * 48))
    batch_costs = BatchCosts(step, 4)
    assert worth_verifying([[0.9, 0.8, 0.1], [0.9], [0.2], []], batch_costs, 4.0) == [2, 1, 1, 0]
    assert worth_verifying([[0.9] * 8, [0.9], [0.9], [0.9]], batch_costs, 4.0) == [8, 1, 1, 1], "a step that pays"
    assert worth_verifying([], batch_costs, 4.0) == []
    assert worth_verifying([[0.01], []], BatchCosts(machine(1), 2), 2.0) == [0, 0]
