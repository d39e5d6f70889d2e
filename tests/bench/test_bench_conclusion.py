"""The sentence that a report ends with."""

from __future__ import annotations

from typing import Any

import pytest

from ipex_assist.bench.conclusion import conclusion
from ipex_assist.bench.measure import Contender, Row, Sample
from ipex_assist.bench.throughput import LoadRow

pytestmark = pytest.mark.one_stack

PLAIN = Contender()


def row(contender: Contender, *speedup: float, same: bool | None = None) -> Row:
    sample = Sample(total_s=3.0, prefill_s=1.0, decode_s=2.0, new_tokens=101)
    return Row("1", "", contender, "int8", "int4", 8, [sample], list(speedup), equals_plain=same)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], None),
        ([row(PLAIN)], "Plain decoding alone: 50.00 tokens/s."),
        (
            [
                row(PLAIN),
                row(Contender("adaptive"), 1.2, 1.6, 1.9, same=True),
                row(Contender("adaptive"), 1.7, same=True),
            ],
            "Assisted decoding is 1.6 × as fast as plain, same tokens.",
        ),
        ([row(Contender("adaptive"), 0.98)], "Assisted decoding is 0.98 × as fast as plain, texts drawn."),
        (
            [row(Contender(2), 1.1, same=True), row(Contender(4), 2.0, same=False)],
            "The best of 2 (assisted, k = 4, int8 target, int4 draft) is 2.0 × as fast as plain, but tokens differ in "
            "1 of 2 measurements.",
        ),
        (
            [row(Contender(4, 0.8), 12.0, same=True)],
            "Decoding with a simulated acceptance of 0.8 is 12 × as fast as plain, same tokens.",
        ),
    ],
)
def test_one_text_at_a_time(rows: list[Row], said: str | None) -> None:
    """The mean over cases of the median of a case's turns, and whether the promise was kept."""
    assert conclusion(rows, []) == said


def test_nothing_was_drafted() -> None:
    """Catches "Assisted decoding is 0.80 × as fast" of a short text that was decoded plainly both times."""
    rows = [row(PLAIN), row(Contender("adaptive"), 0.8, same=True)]
    rows[1].samples = [Sample(total_s=3.0, prefill_s=1.0, decode_s=2.0, new_tokens=101, drafted=0)]
    assert str(conclusion(rows, [])).endswith("same tokens. Nothing was drafted: all of it is plain decoding.")
    rows.append(row(Contender(2), 0.9, same=True))
    assert "Nothing" not in str(conclusion(rows, []))


def test_nothing_was_accepted() -> None:
    """Catches "Assisted decoding is 1.3 × as fast" of drafts that were all wrong; that they cost time is said."""

    def rows(speedup: float, accepted: int) -> list[Row]:
        found = [row(PLAIN), row(Contender("adaptive"), speedup, same=True)]
        found[1].samples = [Sample(3.0, 1.0, 2.0, new_tokens=101, drafted=4, accepted=accepted)]
        return found

    noise = "No draft was accepted: that assisted decoding is 1.3 × as fast as plain is noise; same tokens."
    assert conclusion(rows(1.3, 0), []) == noise
    assert conclusion(rows(0.7, 0), []) == "Assisted decoding is 0.70 × as fast as plain, same tokens."
    assert conclusion(rows(1.3, 1), []) == "Assisted decoding is 1.3 × as fast as plain, same tokens."


def test_many_requests() -> None:
    """What drafting gives goes down with the requests in flight: both ends are named."""

    def load(concurrency: int, contender: Contender, *speedup: float, **more: Any) -> LoadRow:
        return LoadRow(concurrency, contender, "int8", "int4", speedup=list(speedup), **more)

    adaptive = Contender("adaptive")
    loads = [load(n, adaptive, speedup, equals_plain=True) for n, speedup in ((1, 1.62), (4, 1.3), (32, 1.01))]
    said = "Assisted decoding is 1.6 × at 1 in flight and 1.01 × at 32 in flight as fast as plain, same tokens."
    assert conclusion([], loads) == said
