"""Draft sources that force each case: always right, never right, sometimes right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ipex_assist.speculative.draft_source import Proposal


class ScriptedDraft:
    """Proposes the continuation it was given, with token i of the text spoilt where `wrong(i)`."""

    def __init__(self, text: Sequence[int], wrong: Callable[[int], bool], vocab_size: int) -> None:
        self.text, self.wrong, self.vocab_size = list(text), wrong, vocab_size
        self.accepted: list[int] = []

    def unread(self, tokens: Sequence[int]) -> int:
        """Return 0: a script reads nothing."""
        return 0

    def propose(
        self, tokens: Sequence[int], k: int, *, min_confidence: float = 0.0, context: int | None = None
    ) -> Proposal:
        """The next `k` tokens of the script."""
        at = range(len(tokens), min(len(tokens) + k, len(self.text)))
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
