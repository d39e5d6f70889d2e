"""Verification: which drafted tokens the target keeps, and the token it adds. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ipex_assist.executors.interface import LogitsError
from ipex_assist.speculative.choosing.grammar import Grammar, masked
from ipex_assist.speculative.choosing.sampling import INVALID_LOGITS, Sampling, choose

if TYPE_CHECKING:
    import torch


def choices(
    logits: torch.Tensor,
    sampling: Sampling,
    tokens: Sequence[int],
    drafted: Sequence[int] = (),
    grammar: Grammar | None = None,
) -> Iterator[int]:
    """Yield the target's choice at each row, lazily: rows after the first rejected token need not be computed.

    logits: (len(drafted) + 1, vocab), row i following `tokens` and the first i drafted tokens. Yields INVALID_LOGITS if
    a row holds NaN or infinity.
    grammar: in the state after `tokens`; advanced by each choice, including the last. Only tokens that it allows are
    chosen; raises GrammarError if there are none.
    """
    rows = sampling.apply_penalties(logits, tokens, drafted)
    if grammar is not None:
        yield from _choices_under(grammar, rows, sampling, len(tokens) - sampling.prompt_length)
        return
    if not sampling.do_sample:  # all rows in one call
        best, chosen = rows.max(-1)  # NaN if any logit is NaN
        yield from chosen.masked_fill(~best.isfinite(), INVALID_LOGITS).tolist()
        return
    generated = len(tokens) - sampling.prompt_length
    for i in range(rows.shape[0]):
        yield choose(rows[i].float().numpy(), sampling, generated + i)


def _choices_under(grammar: Grammar, rows: torch.Tensor, sampling: Sampling, generated: int) -> Iterator[int]:
    for i in range(rows.shape[0]):
        row = rows[i].float().numpy()
        if not math.isfinite(row.max()):  # checked before the grammar masks it
            yield INVALID_LOGITS
            return
        token = choose(masked(row, grammar), sampling, generated + i)
        if token != INVALID_LOGITS:
            grammar.advance(token)
        yield token


def verify(choices: Iterable[int], drafted: Sequence[int], length: int = 0) -> tuple[list[int], int]:
    """Keep the longest prefix of drafted tokens that equals the target's own choices; add its choice after that.

    choices: the target's, one for each drafted token and one after the last, consumed only as far as needed. Returns
    (tokens, accepted): `accepted` drafted tokens and one more. Raises LogitsError if a row that decides holds NaN or
    infinity (length: number of tokens before); rows after the first rejected token are ignored.
    """
    tokens: list[int] = []
    for accepted, token in enumerate(choices):
        if token == INVALID_LOGITS:
            raise LogitsError("the target", length + accepted)
        tokens.append(token)
        if accepted == len(drafted) or drafted[accepted] != token:
            return tokens, accepted
    raise AssertionError(f"{len(tokens)} choices for {len(drafted)} drafted tokens")
