"""Acceptance rates of requests that share passes, apart for each LoRA adapter of the target. No torch here.

An assistant drafts what the model without an adapter would write. How much an adapter changes that is its own matter: a
rate over all of them would be wrong for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ipex_assist.speculative.costs.acceptance import Acceptance, Array, ExpectedTokens

# What is known of the model and of copies for texts with an adapter, None being without; before its first text, what
# an adapter begins with.
KnownOf = Callable[[str | None], tuple[Acceptance, Acceptance]]


class AdapterAcceptance:
    """The acceptance rates of one planner's texts without an adapter and with each: of one source's drafts."""

    def __init__(self, without: Acceptance, known_of: KnownOf | None, memory: float, *, copies: bool = False) -> None:
        """Rates are from earlier requests, and copied. known_of: None has an adapter begin with those without one.

        copies: the source is prompt lookup, not the model.
        """
        self.without = without.for_next_text(memory)
        self._known_of, self._memory, self._copies = known_of, memory, copies
        self._known: dict[str, Acceptance] = {}

    def of(self, adapter: str | None) -> Acceptance:
        """Return the rates of texts with an adapter; None: without one."""
        if adapter is None:
            return self.without
        if adapter not in self._known:
            begins = self.without if self._known_of is None else self._known_of(adapter)[self._copies]
            self._known[adapter] = begins.for_next_text(self._memory)
        return self._known[adapter]


class MeanAcceptance:
    """The expectation of several requests' drafts together, each by its own rates; see Acceptance.expected_tokens."""

    def __init__(self, known: Sequence[Acceptance]) -> None:
        self._known = known

    def expected_tokens(self, longest: int) -> tuple[Array, Array]:
        """Return the means of the chance that token j is drafted, and of the accepted tokens expected up to j."""
        tables = [each.expected_tokens(longest) for each in self._known]
        drafted: Array = sum(each for each, _ in tables) / len(tables)  # type: ignore[assignment]
        tokens: Array = sum(each for _, each in tables) / len(tables)  # type: ignore[assignment]
        return drafted, tokens


def mean_of(known: Sequence[Acceptance]) -> ExpectedTokens:
    """Of requests' rates, at least one."""
    return known[0] if all(each is known[0] for each in known) else MeanAcceptance(known)
