"""Draft sources that force each case: always right, never right, sometimes right."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from ipex_assist.speculative.schedule import ConstantSchedule, DraftPlan, RoundState
from ipex_assist.speculative.sources.batched_proposals import Steps
from ipex_assist.speculative.sources.draft_source import DraftSource
from ipex_assist.speculative.sources.proposal import Proposal


class ScriptedDraft(DraftSource):
    """Proposes the continuation it was given, with token i of the text spoilt where `wrong(i)`."""

    def __init__(self, text: Sequence[int], wrong: Callable[[int], bool], vocab_size: int) -> None:
        self.text, self.wrong, self.vocab_size = list(text), wrong, vocab_size
        self.accepted: list[int] = []

    def unread(self, tokens: Sequence[int]) -> int:
        """Return 0: a script reads nothing."""
        return 0

    def steps(self, tokens: Sequence[int], plan: DraftPlan) -> Steps:
        """The next `plan.k` tokens of the script."""
        at = range(len(tokens), min(len(tokens) + plan.k, len(self.text)))
        yield from ()  # no model is asked
        return Proposal([(self.text[i] + self.wrong(i)) % self.vocab_size for i in at])

    def accept(self, count: int) -> None:
        """Keep what the decode loop reports."""
        self.accepted.append(count)


SCRIPTS: dict[str, Callable[[int], bool]] = {
    "always right": lambda i: False,
    "never right": lambda i: True,
    "wrong every third": lambda i: i % 3 == 0,
    "wrong every fifth": lambda i: i % 5 == 0,
}


class InTurn(ConstantSchedule):
    """Has either of two assistants draft three tokens, one or none, as chance has it."""

    def __init__(self, seed: int) -> None:
        super().__init__(3)
        self.chance, self.drafters = random.Random(seed), list[int]()

    def plan(self, now: RoundState) -> DraftPlan:
        """Who drafts next, and how much."""
        if len(now.unread) < 2:  # copied, or forced by a grammar
            return DraftPlan(3)
        self.drafters.append(self.chance.randrange(2))
        return DraftPlan(self.chance.choice((0, 1, 3)), assistant=self.drafters[-1])
