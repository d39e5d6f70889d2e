"""Verification: which drafted tokens the target keeps, and the token it adds. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ipex_assist.executors.interface import LogitsError
from ipex_assist.speculative.sampling import draw


def verify_greedy(logits: torch.Tensor, drafted: Sequence[int], length: int = 0) -> tuple[list[int], int]:
    """Keep the longest prefix that equals the target's own choices; add its choice after that.

    logits: (len(drafted) + 1, vocab), row i following the text's `length` tokens and the first i drafted ones. Returns
    (tokens, accepted): `accepted` drafted tokens and one more. Raises LogitsError where a row that decides holds NaN or
    infinity; rows behind the first rejected token say nothing, and so cannot fail.
    """
    # The maximum is NaN where any logit is, so that it answers for the whole row.
    best, choices = logits.max(-1)
    tokens, maxima = choices.tolist(), best.tolist()
    for accepted, token in enumerate(tokens):
        if not math.isfinite(maxima[accepted]):
            raise LogitsError("the target", length + accepted)
        if accepted == len(drafted) or drafted[accepted] != token:
            break
    return tokens[: accepted + 1], accepted


def verify_sampled(
    target: torch.Tensor,
    draft: torch.Tensor | None,
    drafted: Sequence[int],
    generator: torch.Generator,
    length: int = 0,
) -> tuple[list[int], int]:
    """Rejection sampling: the tokens follow the target's distribution exactly, whatever the draft's.

    target: (len(drafted) + 1, vocab) probabilities; draft: (len(drafted), vocab), those each drafted token was drawn
    from, or None where the draft was certain of it. A token x stays with probability min(1, p(x) / q(x)); the first
    that does not is replaced by a draw from max(0, p - q). Leviathan et al. 2023 (arXiv:2211.17192), algorithm 1;
    Chen et al. 2023 (arXiv:2302.01318). Raises LogitsError as `verify_greedy` does.
    """
    for i, token in enumerate(drafted):
        p = target[i]
        q = torch.zeros_like(p).index_fill_(0, torch.tensor(token), 1.0) if draft is None else draft[i]
        chance = float(torch.rand((), generator=generator))
        if chance * float(q[token]) < float(p[token]):
            continue
        _check(p, length + i)
        residual = (p - q).clamp_(min=0.0)
        # p = q up to rounding leaves no residual; then any draw from p is right.
        return [*drafted[:i], draw(residual if float(residual.sum()) > 0 else p, generator)], i
    _check(target[len(drafted)], length + len(drafted))
    return [*drafted, draw(target[len(drafted)], generator)], len(drafted)


def _check(probabilities: torch.Tensor, length: int) -> None:
    # A softmax over NaN or infinity is NaN everywhere.
    if math.isnan(float(probabilities[0])):
        raise LogitsError("the target", length)
