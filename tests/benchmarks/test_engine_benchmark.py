"""engine.py: what counts as the engine's own share."""

from __future__ import annotations

import argparse
import time
from types import SimpleNamespace
from typing import Any

import engine
import pytest

pytestmark = [pytest.mark.alone, pytest.mark.one_stack]


class Library:
    """The core, which takes its time for a pass, and answers at once what is no pass."""

    def ia_sample(self, *given: Any) -> int:
        time.sleep(0.02)
        return len(given)

    def ia_checksum(self, *given: Any) -> int:
        time.sleep(0.02)
        return 0


class Handles(list[Any]):
    """An engine with requests that run two passes, and do something else between them."""

    def __init__(self, core: engine.TimedCore) -> None:
        self.core, self.stats = core, SimpleNamespace(passes=0)

    def submit(self, tokens: list[int], options: Any) -> Any:
        def rounds() -> Any:
            yield None  # the first token
            for _ in range(2):
                self.core.ia_sample(1, 2)
                self.core.ia_checksum()
                self.stats.passes += 1
                yield None

        return rounds()


def test_all_that_is_not_a_pass_is_the_engines_own() -> None:
    """Python that prepares a pass counted as the model's, or a call of the core that is no pass."""
    core = engine.TimedCore(Library())
    assert core.ia_sample(1, 2, 3) == 3
    made = Handles(core)
    model = SimpleNamespace(engine=lambda: made, vocab_size=1000)
    share, own_ms, pass_ms = engine.own_share(model, core, argparse.Namespace(requests=1, assistant=None), 0)
    assert 20 <= pass_ms < 300
    assert 20 <= own_ms < 300
    assert share == pytest.approx(own_ms / pass_ms)
