"""Grammars: the tokens that may come next, and masking of logits by them. No torch here.

Verification goes row by row: each row is masked in the state after the tokens chosen so far, and the grammar advances
by the chosen token. So the output under a grammar is the same with any drafts, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ipex_assist.env.errors import UsageError

Mask: TypeAlias = NDArray[np.bool_]
Row: TypeAlias = NDArray[np.float32]

KINDS = ("json_object", "json_schema", "regex", "choice", "lark", "text")


@dataclass(frozen=True)
class ThoughtSpec:
    """A thought before what a grammar is about. opened, closed: the words around it. begun: the prompt ends in one.
    budget: its tokens at most; the closing words are forced then."""

    opened: str
    closed: str
    begun: bool
    budget: int | None = None


@dataclass(frozen=True)
class GrammarSpec:
    """What an output must match, from its first character to its last, or what comes after its thought.

    kind: json_object; json_schema, regex and lark, written in `value` (JSON Schema as JSON, a regular expression that
    the whole output matches, a grammar in llguidance's dialect of Lark); choice, with a JSON list of strings; or text,
    which is any. field: of the request that asked for it, for error messages. thought: that may come before.
    """

    kind: str
    value: str = ""
    field: str | None = field(default=None, compare=False)
    thought: ThoughtSpec | None = None


class GrammarError(UsageError):
    """A grammar that cannot be compiled or continued: an error of its author, hence a UsageError."""


class Grammar(Protocol):
    """The state of one output under a grammar. Not thread-safe. Raises GrammarError where it cannot continue."""

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens it was advanced by, in order."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the last token was an end-of-text token."""
        ...

    def mask(self) -> Mask:
        """Which tokens may come next, (vocab,); at least one. Includes end-of-text tokens where the output may end."""
        ...

    def forced(self) -> list[int]:
        """Return the tokens of the text that must come next, as the tokenizer would split it; [] if there is a choice.

        Other tokens may spell the same text, so these are a draft like any other. Never an end-of-text token.
        """
        ...

    def allows(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` may follow; end-of-text tokens, and anything after one, may not."""
        ...

    def advance(self, token: int) -> None:
        """Advance by the next token. Raises GrammarError if it may not follow."""
        ...

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` tokens."""
        ...

    def copy(self) -> Grammar:
        """Return an independent copy in the same state."""
        ...


def follow(grammar: Grammar, tokens: Sequence[int]) -> None:
    """Bring a grammar to the state after `tokens`, the output without the prompt."""
    known = list(grammar.tokens)
    tokens = list(tokens)
    same = len(known)
    if tokens[:same] != known:
        same = next(i for i, token in enumerate(known) if i >= len(tokens) or tokens[i] != token)
        grammar.truncate(same)
    for token in tokens[same:]:
        grammar.advance(token)


def masked(row: Row, grammar: Grammar) -> Row:
    """Return a row of logits, (vocab,) or shorter, with -infinity for each token that may not follow."""
    return np.where(grammar.mask()[: len(row)], row, np.float32(-np.inf))
