"""Acceptance rates of requests that share passes, apart for each LoRA adapter of the target. No torch here.

An assistant drafts what the model without an adapter would write. How much an adapter changes that is its own matter: a
rate over all of them would be wrong for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ipex_assist.speculative.costs.acceptance import Acceptance, Array
from ipex_assist.speculative.joint_draft_choice import BatchCosts, ExpectedTokens, JointDraftChoice, best_joint_draft

# What is known of the model and of copies for texts with an adapter, None being without; before its first text, what
# an adapter begins with.
KnownOf = Callable[[str | None], tuple[Acceptance, Acceptance]]
MOST_TRIES = 6  # cuts of the adapters, the likeliest first, that are compared

T = TypeVar("T")


class AdapterAcceptance:
    """The acceptance rates of one joint schedule's texts without an adapter and with each: of one source's drafts."""

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


def best_group(
    drafts: Sequence[T], known: Sequence[Acceptance], costs: BatchCosts, longest: int, *, free: bool = False
) -> tuple[list[T], JointDraftChoice]:
    """Return those of `drafts`, at least one, that maximise the tokens per second if they draft and the others do not.

    known: the rates of each; requests with the same rates draft together or not at all. Adapters are taken in the order
    in which their first tokens are likely to be right.
    """
    if all(each is known[0] for each in known):
        return list(drafts), best_joint_draft(known[0], costs, len(drafts), longest, free=free)
    groups: dict[int, list[int]] = {}
    for place, each in enumerate(known):
        groups.setdefault(id(each), []).append(place)
    likeliest = sorted(groups.values(), key=lambda places: -_first_token(known[places[0]], longest))
    step = -(-len(likeliest) // MOST_TRIES)
    found: tuple[list[int], JointDraftChoice] | None = None
    for end in sorted({*range(step, len(likeliest), step), len(likeliest)}):
        places = [place for group in likeliest[:end] for place in group]
        choice = best_joint_draft(mean_of([known[place] for place in places]), costs, len(places), longest, free=free)
        if found is None or choice.rate > found[1].rate:
            found = places, choice
    assert found is not None, "best_group needs a draft"
    return [drafts[place] for place in sorted(found[0])], found[1]


def _first_token(acceptance: Acceptance, longest: int) -> float:
    """The chance that a draft's first token is right, whatever its confidence."""
    return float(acceptance.expected_tokens(longest)[1][0, 0])
