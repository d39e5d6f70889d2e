"""A grammar that begins after a thought, and the budget of that thought: at its end the closing words are forced.

Both are states of one `Grammar`, so that drafts are cut and forced tokens drafted as under any other, and the tokens
are the same with any drafts and in any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ipex_assist.speculative.choosing.grammar import Grammar, Mask

_TAIL = 8  # tokens before the closing words' own, of which these may share the first


class ThoughtGrammar:
    """A `Grammar` (see grammar.py). Three states follow one another: before a thought, in it, and after it."""

    def __init__(
        self,
        inner: Grammar | None,
        opened: Sequence[int],
        closed: Sequence[int],
        *,
        begun: bool,
        budget: int | None,
        vocab_size: int,
        eos: frozenset[int],
        closes: Callable[[Sequence[int]], bool] | None = None,
    ) -> None:
        """inner: of the answer; None where that may be any text. opened, closed: the tokens around a thought. begun:
        the prompt ends in one. budget: tokens of it at most. closes: whether tokens end with the closing words however
        these are cut into tokens; None where they are one token."""
        self._inner, self._opened, self._closed = inner, list(opened), list(closed)
        self._budget, self._vocab_size, self._eos, self._closes = budget, vocab_size, eos, closes
        self._begun = begun
        self._tokens: list[int] = []
        self._thought_at: int | None = 0 if begun else None  # its first token's place
        self._answer_at: int | None = None  # the answer's first token's place
        self._known_at = 0  # how many tokens there were when that was known
        self._inner_follows = True  # before a thought: whether the tokens so far may also begin the answer

    @property
    def tokens(self) -> Sequence[int]:
        """The tokens it was advanced by."""
        return self._tokens

    @property
    def ended(self) -> bool:
        """Whether the last token was an end-of-text token."""
        return bool(self._tokens) and self._tokens[-1] in self._eos

    @property
    def _thinking(self) -> bool:
        return self._thought_at is not None and self._answer_at is None

    def _closing(self) -> list[int]:
        """The closing tokens that the budget forces next."""
        if not self._thinking or self._budget is None:
            return []
        assert self._thought_at is not None
        over = len(self._tokens) - self._thought_at - self._budget
        return self._closed[over:] if over >= 0 else []

    def mask(self) -> Mask:
        """Which tokens may come next, (vocab,)."""
        if self._thinking:
            closing = self._closing()
            allowed: Mask = np.full(self._vocab_size, not closing)
            if closing:
                allowed[closing[0]] = True
            elif self._inner is not None:
                allowed[[each for each in self._eos if each < self._vocab_size]] = False
            return allowed
        if self._inner is None:
            return np.ones(self._vocab_size, np.bool_)
        if self._answer_at is not None:
            return self._inner.mask()
        allowed = self._inner.mask().copy() if self._inner_follows else np.zeros(self._vocab_size, np.bool_)
        allowed[self._opened[len(self._tokens)]] = True
        return allowed

    def forced(self) -> list[int]:
        """The tokens that must come next."""
        if self.ended:
            return []
        if self._thinking:
            return self._closing()
        return self._inner.forced() if self._inner is not None and self._answer_at is not None else []

    def allows(self, tokens: Sequence[int]) -> int:
        """How many of `tokens` may follow."""
        length, count = len(self._tokens), 0
        for place, token in enumerate(tokens):
            if self.ended or token in self._eos or token >= self._vocab_size:
                break
            if self._answer_at is not None:
                count += len(tokens) - place if self._inner is None else self._inner.allows(tokens[place:])
                break
            if not self._may_follow(token):
                break
            self.advance(token)
            count += 1
        self.truncate(length)
        return count

    def _may_follow(self, token: int) -> bool:
        if self._thinking:
            closing = self._closing()
            return not closing or token == closing[0]
        if token == self._opened[len(self._tokens)] or self._inner is None:
            return True
        return self._inner_follows and self._inner.allows([token]) == 1

    def advance(self, token: int) -> None:
        """Advance by the next token."""
        if self._answer_at is not None:
            if self._inner is not None:
                self._inner.advance(token)
        elif not self._thinking:
            self._before(token)
        self._tokens.append(token)
        if self._thinking and self._is_closed():
            self._answer_at = self._known_at = len(self._tokens)

    def _before(self, token: int) -> None:
        """A token that begins a thought, or the answer."""
        opens = token == self._opened[len(self._tokens)]
        if self._inner is not None and self._inner_follows and (not opens or self._inner.allows([token])):
            self._inner.advance(token)
        else:
            self._inner_follows = self._inner is None
        if not opens:
            self._answer_at, self._known_at = 0, len(self._tokens) + 1
        elif len(self._tokens) + 1 == len(self._opened):
            self._thought_at = len(self._opened)
            if self._inner is not None:
                self._inner.truncate(0)

    def _is_closed(self) -> bool:
        assert self._thought_at is not None
        thought = self._tokens[max(self._thought_at, len(self._tokens) - len(self._closed) - _TAIL) :]
        return thought[-len(self._closed) :] == self._closed or (self._closes is not None and self._closes(thought))

    def truncate(self, length: int) -> None:
        """Roll back to the first `length` tokens."""
        if self._answer_at is not None and length >= self._known_at:
            if self._inner is not None:
                self._inner.truncate(length - self._answer_at)
            del self._tokens[length:]
            return
        kept = self._tokens[:length]
        if self._inner is not None:
            self._inner.truncate(0)
        self._answer_at = None
        if self._thought_at is not None and length >= self._thought_at:
            self._tokens = kept
            return
        self._tokens, self._thought_at, self._inner_follows = [], 0 if self._begun else None, True
        for token in kept:  # of the opening words
            self.advance(token)

    def copy(self) -> ThoughtGrammar:
        """An independent copy in the same state."""
        made = ThoughtGrammar(
            None if self._inner is None else self._inner.copy(),
            self._opened,
            self._closed,
            begun=self._begun,
            budget=self._budget,
            vocab_size=self._vocab_size,
            eos=self._eos,
            closes=self._closes,
        )
        made._tokens, made._thought_at = list(self._tokens), self._thought_at
        made._answer_at, made._known_at, made._inner_follows = self._answer_at, self._known_at, self._inner_follows
        return made
