"""From logits to a token: biases, penalties, temperature, top-k, top-p, min-p, and the choice.

Token t of a text is the arg-max over x of log p(x | text) + G(seed, t, x), where p is what the filters leave and G is
Gumbel noise: such an arg-max follows p (Gumbel 1954; "Gumbel-max trick"). t counts the text's generated tokens from 0,
whatever was prompt before them. Who drafts adds the same noise to its own probabilities, and a drafted token stays
where it is the target's choice: drafter-invariant speculative decoding by Gumbel sampling (Daliri, Musco, Suresh 2024,
arXiv:2408.07978). So one seed is one text, with any assistant, any number of drafted tokens, or none, and verifying
sampled text is what verifying greedy text is. Greedy decoding is this without noise.

A row is chosen from by itself, in one thread, so that no other row and no number of threads can change it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ipex_assist.speculative.gumbel_noise import Floats, Ids, all_bits, bits_above, from_bits, gumbel
from ipex_assist.speculative.options import SamplingOptions, fresh_seed

if TYPE_CHECKING:
    import torch

Row: TypeAlias = NDArray[np.float32]

INVALID_LOGITS = -1  # in place of a token, where a row holds NaN, or infinity
# Tokens whose scaled logit is within so much of the largest are looked at first; of the others, one in a thousand or so
# has noise that could make it the choice.
_HEAD = 7.0


@dataclass(frozen=True)
class Sampling(SamplingOptions):
    """How one text's tokens are chosen. `do_sample` is False where the temperature is 0; else there is a seed.

    prompt_length: tokens at the text's beginning that were not generated: the presence and frequency penalties do not
    count them, and the noise's positions begin behind them.
    """

    prompt_length: int = 0

    def __post_init__(self) -> None:
        """Raises UsageError as options do."""
        super().__post_init__()
        object.__setattr__(self, "do_sample", self.draws)
        if self.do_sample and self.seed is None:
            object.__setattr__(self, "seed", fresh_seed())

    @property
    def changes_logits(self) -> bool:
        """Whether `penalise` does anything: where not, the likeliest token is the largest logit's."""
        return bool(self.logit_bias) or self._has_penalties

    @property
    def _has_penalties(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def apply_penalties(
        self, logits: torch.Tensor, context: Sequence[int], following: Sequence[int] = ()
    ) -> torch.Tensor:
        """Logits (rows, vocab) with biases added, and tokens that are already in the text made less likely.

        Row i follows `context` and the first i tokens of `following`. In this order, for a token that was generated n
        times: the bias is added; where prompt or text have it, a positive logit is divided by repetition_penalty and a
        negative one multiplied with it (Keskar et al. 2019, CTRL; as in transformers); then n × frequency_penalty and,
        where n > 0, presence_penalty are taken away (OpenAI's API; the order is vLLM's).
        """
        if not self.changes_logits:
            return logits
        import torch

        logits = logits.float().clone()
        width = logits.shape[-1]  # a draft's vocabulary may be smaller than the text's
        for token, bias in self.logit_bias.items():
            if token < width:
                logits[:, token] += bias
        if not self._has_penalties:
            return logits
        seen, counts = _counts(context, width), _counts(context[self.prompt_length :], width)
        generated_from = max(0, self.prompt_length - len(context))
        for row in range(logits.shape[0]):
            if 0 < row <= len(following) and following[row - 1] < width:
                seen[following[row - 1]] += 1
                counts[following[row - 1]] += row - 1 >= generated_from
            score = logits[row]
            penalised = torch.where(score < 0, score * self.repetition_penalty, score / self.repetition_penalty)
            score = torch.where(seen > 0, penalised, score)
            logits[row] = score - self.frequency_penalty * counts - self.presence_penalty * (counts > 0)
        return logits


def _counts(tokens: Sequence[int], width: int) -> torch.Tensor:
    """How often each of `width` tokens is among `tokens`, (width,)."""
    import torch

    ids = torch.tensor(list(tokens), dtype=torch.long)
    return torch.bincount(ids[ids < width], minlength=width)


def choose(row: Row, sampling: Sampling, position: int) -> int:
    """The token that `sampling` chooses by one row of penalised logits, (vocab,), at a position behind the prompt.

    Of equals the lowest id. NO_NUMBERS where the row holds NaN or infinity, or forbids every token.
    """
    best = int(row.argmax())  # the first NaN, where there is one
    if not math.isfinite(row[best]):
        return INVALID_LOGITS
    return best if not sampling.do_sample else _perturbed(row, sampling, position).token


def choose_for_draft(row: Row, sampling: Sampling, position: int) -> tuple[int, float]:
    """`choose`, and the confidence in it, by a draft's row.

    The confidence is the choice's share of exp(logit + temperature × noise), where tokens that the filters drop, or
    that are far behind, are counted without noise: with no noise it is the model's own probability, as in greedy
    drafts. Unlike the probability that a token had before the noise was known, it says how clear the choice was, and
    so how likely the target is to choose the same. 0 with NO_NUMBERS.
    """
    best = int(row.argmax())
    largest = float(row[best])
    if not math.isfinite(largest):
        return INVALID_LOGITS, 0.0
    rest = float(np.exp(row - np.float32(largest)).sum(dtype=np.float64))
    if not sampling.do_sample:
        return best, 1.0 / rest
    found = _perturbed(row, sampling, position)
    rest -= float(np.exp(row[found.ids] - np.float32(largest)).sum(dtype=np.float64))
    perturbed = (found.scores - found.scores.max()) * sampling.temperature
    offset = float(found.scores.max()) * sampling.temperature - largest
    return found.token, 1.0 / (float(np.exp(perturbed).sum()) + max(rest, 0.0) * math.exp(min(-offset, 700.0)))


@dataclass(frozen=True)
class _PerturbedLogits:
    """Tokens among which the choice is, by ascending ids, and logit ÷ temperature + noise of each."""

    ids: Ids
    scores: Floats

    @property
    def token(self) -> int:
        return int(self.ids[self.scores.argmax()])


def _perturbed(row: Row, sampling: Sampling, position: int) -> _PerturbedLogits:
    assert sampling.seed is not None
    ids = filtered_tokens(row, sampling)
    if ids is not None:
        scaled = row[ids].astype(np.float64) / sampling.temperature
        return _PerturbedLogits(ids, scaled + gumbel(sampling.seed, position, ids))
    return _perturbed_all(row, sampling.temperature, sampling.seed, position)


def _perturbed_all(row: Row, temperature: float, seed: int, position: int) -> _PerturbedLogits:
    """The noise of all tokens decides, but only that of few can: of most, the random bits alone say so."""
    random = all_bits(seed, position, len(row))
    limit = float(np.float32(float(row.max()) - _HEAD * temperature))
    ahead = row >= limit
    head = np.flatnonzero(ahead)
    scores = row[head].astype(np.float64) / temperature + from_bits(random[head])
    tail_mask = (random <= np.uint64(bits_above(float(scores.max()) - limit / temperature))) & ~ahead
    tail = np.flatnonzero(tail_mask)
    ids = np.concatenate((head, tail))
    scores = np.concatenate((scores, row[tail].astype(np.float64) / temperature + from_bits(random[tail])))
    order = ids.argsort()
    return _PerturbedLogits(ids[order], scores[order])


def filtered_tokens(row: Row, sampling: Sampling) -> Ids | None:
    """The tokens that top-k, top-p and min-p leave of a row of logits, by ascending ids; None where no filter is on.

    In transformers' order: of the distribution at this temperature, what is at least as likely as the k-th; the
    smallest set of it reaching p, of equals the lowest ids; and what has at least min_p of the likeliest's probability.
    """
    ids: Ids | None = None
    if 0 < sampling.top_k < len(row):
        ids = _most_likely(row, sampling.top_k)
    if sampling.top_p < 1.0:
        ids = _nucleus(row, ids, sampling)
    if sampling.min_p > 0:
        least = float(row.max()) + sampling.temperature * math.log(sampling.min_p)
        ids = np.flatnonzero(row >= least) if ids is None else ids[row[ids] >= least]
    return ids


def _most_likely(row: Row, count: int) -> Ids:
    least = np.partition(row, len(row) - count)[len(row) - count]
    ids = np.flatnonzero(row >= least)
    return ids if math.isfinite(least) else ids[row[ids] > -np.inf]


def _nucleus(row: Row, ids: Ids | None, sampling: Sampling) -> Ids:
    """The smallest set of the likeliest tokens, of `ids` or of all, that has the probability top_p."""
    logits = row if ids is None else row[ids]
    weights = np.exp((logits - logits.max()) / np.float32(sampling.temperature))
    total = float(weights.sum(dtype=np.float64))
    # All tokens below this together have less than 1 - p, so that the others reach p: none of these can be needed.
    candidates = np.flatnonzero(weights >= (1 - sampling.top_p) / len(weights) * total)
    ordered = candidates[np.argsort(-weights[candidates], kind="stable")]
    reached = np.cumsum(weights[ordered], dtype=np.float64)
    # A token stays where those before it do not reach p.
    count = 1 + int(np.searchsorted(reached, sampling.top_p * total))
    chosen = np.sort(ordered[:count])
    return chosen if ids is None else ids[chosen]
