"""Which place a request goes to."""

from __future__ import annotations

import pytest

from ipex_assist.serve.count_sums import sum_counts
from ipex_assist.serve.routing import KnownPrefixes, block_keys, choose

pytestmark = pytest.mark.one_stack


def test_keys_are_of_whole_blocks_and_of_all_before_them() -> None:
    text = list(range(20))
    keys = block_keys(text, 4)
    assert len(keys) == 5
    assert block_keys(text[:19], 4) == keys[:4]
    assert block_keys([*text[:12], 99, *text[13:]], 4)[:3] == keys[:3]
    assert block_keys([*text[:12], 99, *text[13:]], 4)[3] != keys[3]
    assert block_keys([99, *text[1:]], 4)[4] != keys[4], "the same tokens behind another beginning"
    assert block_keys([0, 0, 0, 0] * 2, 4)[0] != block_keys([0, 0, 0, 0] * 2, 4)[1]
    assert block_keys([1, 2, 3], 4) == []


def test_what_a_place_knows() -> None:
    known = KnownPrefixes()
    text, other = block_keys(range(40), 4), block_keys([*range(12), *range(100, 128)], 4)
    assert known.find(text) == 0
    known.keep(text[:5])
    assert known.find(text) == 5
    assert known.find(other) == 3
    assert known.find(text[:2]) == 2
    known.forget()
    assert known.find(text) == 0


def test_what_was_not_asked_for_longest_is_forgotten_first_and_ends_before_beginnings() -> None:
    known = KnownPrefixes(most=6)
    one, two, three = (block_keys(range(start, start + 16), 4) for start in (0, 100, 200))
    known.keep(one[:3])
    known.keep(two[:3])
    assert (known.find(one), known.find(two)) == (3, 3)
    known.keep(three[:2])
    assert (known.find(one), known.find(two), known.find(three), len(known)) == (1, 3, 2, 6)
    known.keep(one[:2])
    assert (known.find(one), known.find(two), known.find(three)) == (2, 2, 2)


def test_the_longest_prefix_then_the_least_busy_then_the_first() -> None:
    assert choose({0: 1, 1: 3, 2: 2}, {0: 0.0, 1: 0.9, 2: 0.0}) == 1
    assert choose({0: 3, 1: 3}, {0: 0.5, 1: 0.25}) == 1
    assert choose({}, {2: 0.5, 1: 0.5}) == 1
    assert choose({0: 9, 1: 0}, {1: 0.75}) == 1, "a place without room is none"


def test_sums_of_counts() -> None:
    one = {"passes": 2, "draft_s": 0.5, "running": 3, "passes_by_rows": {"1": 2}}
    two = {"passes": 3, "draft_s": 0.25, "most_running": 3, "passes_by_rows": {"1": 1, "4": 2}}
    assert sum_counts([one, two, {}]) == {"passes": 5, "draft_s": 0.75, "passes_by_rows": {"1": 3, "4": 2}}
    assert one["passes_by_rows"] == {"1": 2}, "what is summed stays as it is"
