"""The ledger by itself: what may be lost, what a round is charged, and what trust adds. A plain pass takes a second."""

from __future__ import annotations

import pytest

from ipex_assist.speculative.draft_budget import (
    EXPECTED_TOKENS,
    FURTHER,
    OUTLIER,
    STAKE,
    TRUST,
    TRUSTED_READING,
    DraftBudget,
)

pytestmark = pytest.mark.one_stack


def test_a_text_begins_with_its_stake() -> None:
    """A share of the tokens to be expected, which are those of a short text, and of a long one no more than usual."""
    assert DraftBudget(64).credit(1.0, worthwhile=False) == pytest.approx(STAKE * 64)
    assert DraftBudget(5000).credit(1.0, worthwhile=False) == pytest.approx(STAKE * EXPECTED_TOKENS)
    assert DraftBudget(64).credit(0.1, worthwhile=False) == pytest.approx(STAKE * 6.4)


def test_credit_grows_with_the_text() -> None:
    """Beyond the tokens that were expected by the whole stake, before them by the further one alone."""
    budget = DraftBudget(1000)
    budget.book_round(100, 1.0)
    assert budget.credit(1.0, worthwhile=False) == pytest.approx(STAKE * EXPECTED_TOKENS + FURTHER * 100)
    budget.book_round(100, 1.0)
    assert budget.credit(1.0, worthwhile=False) == pytest.approx((STAKE + FURTHER) * 200)


@pytest.mark.parametrize(("trusted", "worthwhile"), [(True, False), (False, True), (True, True)])
def test_trust_is_added_once(trusted: bool, worthwhile: bool) -> None:
    """Whether it comes from an earlier text, from this one, or from both."""
    plain = DraftBudget(64).credit(1.0, worthwhile=False)
    assert DraftBudget(64, trusted).credit(1.0, worthwhile) - plain == pytest.approx(TRUST * 64)


@pytest.mark.parametrize(
    ("draft_s", "target_s", "loss"),
    [(0.4, 1.1, 0.5), (0.1, 1.1, 0.2), (0.4, 0.8, 0.5), (0.6, 1.1, 0.7), (59.0, 1.0, 1.5 * OUTLIER - 1)],
)
def test_a_wrong_draft_is_paid_for_by_the_clock(draft_s: float, target_s: float, loss: float) -> None:
    """Drafting costs what it took, though calibration took it to be expensive; a pass what was expected at least; and
    a pause of the machine is paid for only in part."""
    budget = DraftBudget(64)
    budget.book_draft(1, 1.0, expected=(0.4, 1.1), seconds=(draft_s, target_s))
    assert budget.account.balance == pytest.approx(-loss)


def test_tokens_are_worth_their_plain_passes() -> None:
    """Four tokens in a round of 1.5 passes win 2.5 of them."""
    budget = DraftBudget(64)
    budget.book_draft(4, 1.0, expected=(0.4, 1.1), seconds=(0.4, 1.1))
    assert budget.account.balance == pytest.approx(2.5)


def test_the_whole_text_is_read_on_trust_once() -> None:
    """A second reading of all of it is paid for like any other, and an unknown pair is granted none."""
    budget = DraftBudget(64, trusted=True)
    assert budget.grants_reading
    budget.grant_reading(5.0)
    assert budget.account.balance == 5.0
    assert not budget.grants_reading
    assert not DraftBudget(64).grants_reading


def test_how_long_a_trusted_pair_may_read() -> None:
    """Up to a share of the expected tokens' time; an unknown pair has no such allowance."""
    budget = DraftBudget(64, trusted=True)
    assert budget.trusts_reading(0.99 * TRUSTED_READING * 64, 1.0)
    assert not budget.trusts_reading(1.01 * TRUSTED_READING * 64, 1.0)
    assert not DraftBudget(64).trusts_reading(0.1, 1.0)


def test_trials_follow_each_other_at_their_price() -> None:
    """The first is due at once; the next when the stake of the time since then has grown to its price."""
    budget, cost = DraftBudget(1000), 0.5
    assert budget.trial_is_due(cost)
    budget.book_draft(1, 1.0, (0.4, 1.1), (0.4, 1.1))
    passes = 0
    while not budget.trial_is_due(cost):
        budget.book_round(1, 1.0)
        passes += 1
    assert passes == pytest.approx(cost / STAKE, abs=1)


def test_a_trial_that_was_right_is_followed_by_another() -> None:
    """Catches a source that waits for the stake of some twenty tokens after each of its first right drafts."""
    budget = DraftBudget(1000)
    budget.book_draft(2, 1.0, (0.4, 1.1), (0.4, 1.1))
    assert budget.trial_is_due(0.5)
    budget.book_draft(1, 1.0, (0.4, 1.1), (0.4, 1.1))
    assert not budget.trial_is_due(0.5)


def test_a_smaller_stake_is_lost_more_slowly() -> None:
    """The whole stake at first, what each token adds, and the time between trials."""
    half, whole = DraftBudget(64, stake=STAKE / 2), DraftBudget(64)
    assert half.credit(1.0, worthwhile=False) == pytest.approx(whole.credit(1.0, worthwhile=False) / 2)
    for budget in (half, whole):
        budget.account.balance, budget.undrafted_s = -1.0, 0.0
    waits = [budget.rounds_until(0.5, 0.0, 1.0, worthwhile=False, trial=True) for budget in (half, whole)]
    assert waits[0] > waits[1] > 0
    half.book_round(100, 1.0)
    assert half.credit(1.0, worthwhile=False) == pytest.approx((STAKE / 2 + FURTHER) * 100 - 1.0)


def test_what_asking_takes_has_to_be_covered_as_well() -> None:
    """Otherwise the credit is spent by plans that find it too small by what the plan before took."""
    budget = DraftBudget(64)
    budget.account.balance = -STAKE * 64
    free, dear = (budget.rounds_until(0.5, 0.0, 1.0, worthwhile=False, trial=False, asking=s) for s in (0.0, 0.1))
    assert dear - free == pytest.approx(0.1 / FURTHER, abs=1)
