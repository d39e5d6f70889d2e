"""Rounds that are made beside the next pass: none is lost, late by more than a pass, or out of order."""

from __future__ import annotations

import pytest
import tiny_models
from conftest import HAS_NATIVE
from native_models import loaded, tokens

from ipex_assist.engine.engine import Engine
from ipex_assist.engine.request import RequestHandle
from ipex_assist.native.library import unavailable
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import GenerationOptions

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]


def begun(*limits: int) -> tuple[Engine, list[RequestHandle]]:
    engine = Engine(loaded("llama", "int8"), Drafting(tiny_models.VOCAB, lambda: pytest.fail("nothing is drafted")))
    options = [GenerationOptions.of(max_new_tokens=limit, ignore_eos=True, assisted=False) for limit in limits]
    handles = [engine.submit(tokens(9, number), each) for number, each in enumerate(options)]
    for handle in handles:  # the prompts, whose rounds are told at once
        next(handle)
    return engine, handles


def fetched(handle: RequestHandle) -> list[int]:
    found: list[int] = []
    while handle.has_round:
        found += next(handle).tokens
    return found


def test_a_round_comes_when_the_next_pass_has_begun() -> None:
    """Catches one that is made between passes, that waits for the end of the next, or has the wrong time."""
    engine, [short, long] = begun(4, 6)
    alone = [[token for round_ in handle for token in round_.tokens] for handle in begun(4, 6)[1]]
    found: list[list[int]] = [[], []]
    seen: list[int] = []

    def beside() -> bool:
        seen.append(len(fetched_now := fetched(long)))
        found[1] += fetched_now
        return False

    assert engine.step(beside)
    assert not short.has_round
    assert not long.has_round
    while not long.ended:
        assert engine.step(beside)
        found[0] += fetched(short)
    found[1] += fetched(long)
    assert found == alone
    assert max(seen, default=1) <= 2  # the core may be done before anything is called
    assert not engine.step(beside)


def test_what_is_cancelled_has_its_last_round() -> None:
    """Also where nothing runs any more, and where the next pass has nothing beside it."""
    engine, [first, second] = begun(9, 9)
    engine.step(lambda: False)
    first.cancel()
    assert len(fetched(first)) == 1
    engine.step()
    assert len(fetched(second)) == 2
    engine.step(lambda: False)
    second.pause()
    assert not engine.step(lambda: False)
    assert len(fetched(second)) == 1
