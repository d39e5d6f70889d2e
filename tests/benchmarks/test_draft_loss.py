"""draft_loss.py: two engines take turns by tokens, and what interrupts one of them is no cost of drafts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import draft_loss
import pytest

from ipex_assist.bench.measure import Contender
from ipex_assist.bench.throughput import LoadCase

pytestmark = pytest.mark.one_stack


class Engine:
    """Each step brings every request in flight so many tokens; `log` has whose turn it was."""

    def __init__(self, name: str, tokens: int, log: list[str]) -> None:
        self.name, self.tokens, self.log, self.flying = name, tokens, log, list[Any]()
        self.stats = SimpleNamespace(prompt_tokens=0, drafted=0, accepted=0)

    def submit(self, prompt: Any, options: Any) -> Any:
        handle = Handle(options.max_new_tokens)
        self.flying.append(handle)
        return handle

    def step(self) -> bool:
        self.log.append(self.name)
        self.stats.drafted += self.tokens - 1
        self.stats.accepted += self.tokens - 1
        for handle in self.flying:
            handle.come(self.tokens)
        return True

    def close(self) -> None:
        self.log.append(f"{self.name} closed")


class Handle:
    """A request that ends with its last token."""

    def __init__(self, limit: int) -> None:
        self.left, self.rounds = limit, list[Any]()

    def come(self, tokens: int) -> None:
        if self.left:
            came = min(tokens, self.left)
            self.left -= came
            self.rounds.append(SimpleNamespace(tokens=[1] * came))

    @property
    def has_round(self) -> bool:
        return bool(self.rounds)

    @property
    def ended(self) -> bool:
        return not self.left and not self.rounds

    def __next__(self) -> Any:
        return self.rounds.pop(0)


def test_who_is_behind_in_tokens_runs_the_next_pass() -> None:
    """Else the side with more passes would have another part of the machine's time, which may be a slower one."""
    log: list[str] = []
    engines = iter([Engine("plain", 1, log), Engine("assisted", 3, log)])
    model: Any = SimpleNamespace(engine=lambda: next(engines))
    case = LoadCase(2, ((1, 2), (3,), (4,)), {"max_new_tokens": 6}, repeats=1)
    plain, assisted = draft_loss.compare(model, case, Contender("adaptive"), 0)
    assert (plain.tokens, assisted.tokens) == (18, 18)
    assert (plain.drafted, assisted.drafted, assisted.accepted) == (0, 8, 8)
    assert log[:5] == ["plain", "assisted", "plain", "plain", "plain"]
    assert log[-2:] == ["plain closed", "assisted closed"]
    assert log.count("plain") == 12
    assert log.count("assisted") == 4


def test_a_step_that_something_else_interrupted_counts_as_others_of_its_kind() -> None:
    """A step with drafts is long by itself, and prompts are read in parts of any size."""
    side = draft_loss.Side(None, [], 1)
    side.steps[0, False] = [1.0, 1.0, 1.0, 9.0]
    side.steps[0, True] = [2.0, 2.0]
    side.steps[100, False] = [5.0, 20.0]
    assert side.seconds(clipped=False) == 41.0
    assert side.seconds(clipped=True) == 3 + draft_loss.CLIPPED + 4 + 25
