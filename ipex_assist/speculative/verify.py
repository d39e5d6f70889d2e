"""Verification: which drafted tokens the target keeps, and the token it adds. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ipex_assist.executors.interface import LogitsError
from ipex_assist.speculative.grammar import Grammar, masked
from ipex_assist.speculative.sampling import INVALID_LOGITS, Sampling, choose

if TYPE_CHECKING:
    import torch


def choices(
    logits: torch.Tensor,
    sampling: Sampling,
    tokens: Sequence[int],
    drafted: Sequence[int] = (),
    grammar: Grammar | None = None,
) -> Iterator[int]:
    """The target's choice at each row, one after the other as they are asked for: those behind a miss need not be.

    logits: (len(drafted) + 1, vocab), row i following the text `tokens` and the first i drafted ones. NO_NUMBERS where
    a row holds NaN or infinity.
    grammar: in the state behind `tokens`; advanced by each choice, the last one too. Only what it allows is chosen, and
    GrammarError raised where that is nothing.
    """
    rows = sampling.apply_penalties(logits, tokens, drafted)
    if grammar is not None:
        yield from _choices_under(grammar, rows, sampling, len(tokens) - sampling.prompt_length)
        return
    if not sampling.do_sample:  # all rows in one call
        best, chosen = rows.max(-1)  # NaN where any logit is
        yield from chosen.masked_fill(~best.isfinite(), INVALID_LOGITS).tolist()
        return
    generated = len(tokens) - sampling.prompt_length
    for i in range(rows.shape[0]):
        yield choose(rows[i].float().numpy(), sampling, generated + i)


def _choices_under(grammar: Grammar, rows: torch.Tensor, sampling: Sampling, generated: int) -> Iterator[int]:
    for i in range(rows.shape[0]):
        row = rows[i].float().numpy()
        if not math.isfinite(row.max()):  # also where the grammar would hide that
            yield INVALID_LOGITS
            return
        token = choose(masked(row, grammar), sampling, generated + i)
        if token != INVALID_LOGITS:
            grammar.advance(token)
        yield token


def verify(choices: Iterable[int], drafted: Sequence[int], length: int = 0) -> tuple[list[int], int]:
    """Keep the longest prefix of drafted tokens that equals the target's own choices; add its choice after that.

    choices: the target's, one for each drafted token and one behind the last, asked for only as long as they are
    needed. Returns (tokens, accepted): `accepted` drafted tokens and one more. Raises LogitsError where a row that
    decides holds NaN or infinity (length: tokens of the text before); rows behind the first rejected token say nothing,
    and so cannot fail.
    """
    tokens: list[int] = []
    for accepted, token in enumerate(choices):
        if token == INVALID_LOGITS:
            raise LogitsError("the target", length + accepted)
        tokens.append(token)
        if accepted == len(drafted) or drafted[accepted] != token:
            return tokens, accepted
    raise AssertionError(f"{len(tokens)} choices for {len(drafted)} drafted tokens")
