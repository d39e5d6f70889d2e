"""The distribution that sampled tokens should follow, in PyTorch and sorted in full, and a test of whether they do."""

from __future__ import annotations

import torch
from scipy.stats import chisquare

from ipex_assist.speculative.choosing.sampling import Sampling

# A correct sampler fails a test at this level once in ten thousand seeds; the seeds are fixed.
SIGNIFICANCE = 1e-4


def probabilities(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """What tokens are drawn from: (rows, vocab), each row summing to 1, by filters in transformers' order."""
    logits = logits.float() / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        kth = logits.topk(sampling.top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    found = torch.softmax(logits, -1)
    if sampling.top_p < 1.0:
        ordered, order = found.sort(dim=-1, descending=True)
        beyond = ordered.cumsum(-1) - ordered >= sampling.top_p
        found = found.masked_fill(beyond.scatter(-1, order, beyond), 0.0)
    if sampling.min_p > 0:
        found = found.masked_fill(found < sampling.min_p * found.max(-1, keepdim=True).values, 0.0)
    return found / found.sum(-1, keepdim=True)


def assert_follows(counts: torch.Tensor, expected: torch.Tensor) -> None:
    """Chi-square of token counts against probabilities; a token of probability 0 must never come."""
    possible = expected > 0
    assert int(counts[~possible].sum()) == 0
    expected = expected[possible].double() / expected[possible].double().sum()
    observed = counts[possible].double()
    expected = expected * observed.sum()
    # The statistic follows its distribution where some tokens are expected of each kind; rare ones are one kind.
    rare = expected < 5
    if bool(rare.any()):
        observed = torch.cat((observed[~rare], observed[rare].sum()[None]))
        expected = torch.cat((expected[~rare], expected[rare].sum()[None]))
    assert chisquare(observed, expected).pvalue > SIGNIFICANCE
