"""Grammars: which tokens may come next in one text, and what that does to its logits. No torch here.

Verification takes row by row: each is masked in the state behind the tokens chosen so far, and the grammar is advanced
by what was chosen. So a text under a grammar is the same with any drafts, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ipex_assist.env.errors import UsageError

Mask: TypeAlias = NDArray[np.bool_]
Row: TypeAlias = NDArray[np.float32]

KINDS = ("json_object", "json_schema", "regex", "choice", "lark")


@dataclass(frozen=True)
class GrammarSpec:
    """What a text must be, from its first character to its last.

    kind: json_object; json_schema, regex and lark, written in `value` (JSON Schema as JSON, a regular expression that
    the whole text matches, a grammar in llguidance's dialect of Lark); or choice, with a JSON list of texts.
    """

    kind: str
    value: str = ""


class GrammarError(UsageError):
    """A grammar that cannot be compiled, or by which a text cannot go on; its author can help, and nobody else."""


class Grammar(Protocol):
    """The state of one text under a grammar. One thread uses it at a time. GrammarError where it cannot go on."""

    @property
    def tokens(self) -> Sequence[int]:
        """What it was advanced by, in order."""
        ...

    @property
    def ended(self) -> bool:
        """Whether the last token was an end-of-text token, behind which there is nothing."""
        ...

    def mask(self) -> Mask:
        """Which tokens may come next, (vocab,). Where the text is complete, an end-of-text token is among them.

        At least one is.
        """
        ...

    def forced(self) -> list[int]:
        """Return tokens that spell what must come next, as the tokenizer would; none where there is a choice.

        A text may spell it by others, so that they are a draft like any other. No end-of-text token is among them.
        """
        ...

    def allows(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` may follow; an end-of-text token, and what is behind it, may not."""
        ...

    def advance(self, token: int) -> None:
        """Take the next token. GrammarError where it may not follow."""
        ...

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        ...

    def copy(self) -> Grammar:
        """Return one in the same state, which goes on by itself."""
        ...


def follow(grammar: Grammar, tokens: Sequence[int]) -> None:
    """Bring a grammar to the state behind `tokens`, the whole text without its prompt."""
    known = list(grammar.tokens)
    tokens = list(tokens)
    same = len(known)
    if tokens[:same] != known:
        same = next(i for i, token in enumerate(known) if i >= len(tokens) or tokens[i] != token)
        grammar.truncate(same)
    for token in tokens[same:]:
        grammar.advance(token)


def masked(row: Row, grammar: Grammar) -> Row:
    """A row of logits, (vocab,) or of the first tokens alone, with -infinity for each token that may not follow."""
    return np.where(grammar.mask()[: len(row)], row, np.float32(-np.inf))
