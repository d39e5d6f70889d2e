"""draft_ahead.py: what drafting ahead gains on paper, where the answer is known by hand."""

from __future__ import annotations

import draft_ahead
import pytest
from draft_ahead import Pair

pytestmark = pytest.mark.one_stack


def test_drafts_that_are_always_right_are_hidden() -> None:
    """The round is then the target's pass alone; drafts that are never right, and a longer pass, gain nothing."""
    pair = Pair("", (10.0,), 1.0, 1.0)
    certain, never = 1 - 1e-12, 1e-12
    assert draft_ahead.ahead(pair, certain, 4) == pytest.approx(5 / 10, rel=1e-3)
    assert draft_ahead.in_turns(pair, certain, 4) == pytest.approx(5 / 14, rel=1e-3)
    assert draft_ahead.gain(pair, never) == pytest.approx(0, abs=1e-6)
    assert draft_ahead.gain(pair, 0.8, 0.5) < 0 < draft_ahead.gain(pair, 0.8)
    assert draft_ahead.gain(pair, 0.8, draft_ahead.bearable(pair, 0.8)) == pytest.approx(0, abs=1e-3)


def test_a_table_for_every_pair(capsys: pytest.CaptureFixture[str]) -> None:
    draft_ahead.main()
    assert len(capsys.readouterr().out.splitlines()) == 2 + 3 * len(draft_ahead.PAIRS)
