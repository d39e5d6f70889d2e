"""The choices after a request's rows, for a model that chooses tokens itself, and what comes of them.

The tokens are those that `choices` in verify.py finds by the rows' logits.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ipex_assist.executors.row_choice import RowChoice
from ipex_assist.speculative.choosing.grammar import Grammar, GrammarError, Mask
from ipex_assist.speculative.choosing.logit_edits import SeenTokens
from ipex_assist.speculative.choosing.sampling import INVALID_LOGITS, Sampling


class PlannedChoices(NamedTuple):
    """How the tokens after a request's last row and its drafted tokens are chosen.

    grammar_error: why no mask could be made for the row after `rows`' last one that has its own.
    """

    rows: Sequence[RowChoice]
    grammar: Grammar | None = None
    masks: int = 0  # rows that have theirs; those after them are never decisive
    grammar_error: GrammarError | None = None

    def tokens(self, found: Sequence[int]) -> Iterable[int]:
        """The choices that a model has found. Under a grammar, which each advances as `choices` does it, lazily."""
        return found if self.grammar is None else self._followed(self.grammar, found)

    def _followed(self, grammar: Grammar, found: Sequence[int]) -> Iterator[int]:
        for row, token in enumerate(found):
            if token != INVALID_LOGITS:
                if row >= self.masks and self.grammar_error is not None:
                    raise self.grammar_error
                grammar.advance(token)
            yield token


_LIKELIEST = RowChoice(), RowChoice(keep_logits=True)  # the same object for all rows of a pass


@functools.lru_cache
def likeliest(count: int, keep_logits: bool) -> PlannedChoices:
    """Plan that the likeliest token follows each of `count` rows."""
    return PlannedChoices(_LIKELIEST[keep_logits : keep_logits + 1] * count)


def plan_choices(
    sampling: Sampling,
    tokens: Sequence[int],
    drafted: Sequence[int] = (),
    *,
    seen: SeenTokens | None = None,
    grammar: Grammar | None = None,
    keep_logits: bool = False,
) -> PlannedChoices:
    """Plan the choices after `tokens` and after each of the drafted ones.

    seen: of `tokens`, where the sampling changes logits. grammar: in the state after `tokens`, and left in it.
    """
    if seen is None and grammar is None and not sampling.do_sample:
        return likeliest(len(drafted) + 1, keep_logits)
    edits = None if seen is None else seen.edits(tokens)
    counts = sampling.has_penalties
    masks, error = ([], None) if grammar is None else _masks(grammar, drafted)
    generated = len(tokens) - sampling.prompt_length if sampling.do_sample else 0
    rows = [
        RowChoice(
            sampling.rule,
            generated + i,
            edits,
            masks[i] if i < len(masks) else None,
            keep_logits,
            drafted,
            i if counts else 0,
        )
        for i in range(len(drafted) + 1)
    ]
    return PlannedChoices(rows, grammar, len(masks), error)


def _masks(grammar: Grammar, drafted: Sequence[int]) -> tuple[list[Mask], GrammarError | None]:
    """The masks after the grammar's tokens and each drafted one; ends before a token that may not follow.

    Rows after such a token are never reached. Also returns the error of a mask that cannot be made.
    """
    masks: list[Mask] = []
    length, error = len(grammar.tokens), None
    try:
        masks.append(grammar.mask())
        for token in drafted:
            if not masks[-1][token : token + 1].any():
                break
            grammar.advance(token)
            if grammar.ended:
                break
            masks.append(grammar.mask())
    except GrammarError as found:
        error = found
    if len(grammar.tokens) > length:
        grammar.truncate(length)
    return masks, error
