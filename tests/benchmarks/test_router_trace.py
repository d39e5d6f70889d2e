"""router_trace.py's replay on traces made by hand: what it counts, and that prices by experts follow the router."""

from __future__ import annotations

from typing import Any

import pytest
import router_trace as trace

pytestmark = pytest.mark.one_stack


def text(right: int, each: float) -> dict[str, Any]:
    """A text whose drafts have `right` right tokens everywhere, and whose drafted rows read `each` experts more."""
    places = trace.TOKENS - 1
    experts = [trace.PER_TOKEN + each * row for row in range(1 + trace.LONGEST_DRAFT)]
    return {
        "right": [right] * places,
        "confidence": [[0.9] * trace.LONGEST_DRAFT] * places,
        "experts": [experts] * places,
    }


def recorded(right: int, each: float) -> dict[str, Any]:
    """Four such texts; calibration's rows choose independently."""
    mixture = trace.ExpertCosts(trace.EXPERTS, trace.PER_TOKEN, (), 0.0)
    read = [mixture.distinct(rows) for rows in range(1, trace.LONGEST_DRAFT + 2)]
    return {"texts": [text(right, each)] * 4, "calibration": read}


def test_plain_decoding_takes_a_second_a_token() -> None:
    """Every ratio is to that."""
    found = trace.replay(recorded(3, 1.0), 0.1)["k=0"]
    assert found["speed"] == pytest.approx(1.0)
    assert found["drafted"] == 0


def test_fixed_lengths_by_hand() -> None:
    """Three drafted tokens, all right, of rows that read an expert more each: four tokens a round."""
    found = trace.replay(recorded(3, 1.0), 0.1)["k=3"]
    seconds = 0.3 + trace.seconds_of(trace.PER_TOKEN + 3)
    assert found["speed"] == pytest.approx(4 / seconds, rel=0.03)  # the text's end is shorter
    assert found["accepted"] == found["drafted"]


def test_a_text_whose_rows_share_experts_is_drafted_more() -> None:
    """Both adaptive contenders see the same text; calibration's own tokens made drafts look dear to both."""
    found = trace.replay(recorded(3, 0.1), 0.1)
    assert found["by experts"]["speed"] >= 0.98 * found["by rows"]["speed"]
    assert found["by experts"]["speed"] > 1.5


def test_drafts_that_cost_more_than_they_bring_are_left_alone() -> None:
    """Each drafted row reads its own experts, and one token in a draft is right."""
    found = trace.replay(recorded(1, 3.0), 0.2)
    assert found["by experts"]["speed"] > 0.95
    assert found["k=3"]["speed"] < 0.7
