"""Sampling: from logits to a token by biases, penalties, temperature, top-k, top-p, min-p and Gumbel noise.

Output token t is the arg-max over x of log p(x | context) + G(seed, t, x), where p is the filtered distribution and G
is Gumbel noise: such an arg-max is distributed as p (Gumbel 1954; the "Gumbel-max trick"). t counts output tokens from
0, independent of the prompt's length. The draft adds the same noise to its own logits, and a drafted token is accepted
if it is the target's choice: drafter-invariant speculative decoding (Daliri, Musco, Suresh 2024, arXiv:2408.07978). So
a seed determines the output, with any assistant, any draft length, or none, and verification is the same comparison as
for greedy decoding, which is this without noise.

Each row is processed by itself in one thread, so that neither other rows nor the number of threads affect it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ipex_assist.executors.row_choice import SamplingRule
from ipex_assist.speculative.choosing.gumbel_noise import Floats, Ids, all_bits, bits_above, from_bits, gumbel
from ipex_assist.speculative.options import MODEL_DEFAULTS, SamplingOptions, fresh_seed

if TYPE_CHECKING:
    import torch

Row: TypeAlias = NDArray[np.float32]

INVALID_LOGITS = -1  # in place of a token, if a row holds NaN or infinity
# Tokens whose scaled logit is within this distance of the largest are evaluated first; of the others only about one in
# a thousand has enough noise to be the arg-max.
_HEAD = 7.0


@dataclass(frozen=True)
class Sampling(SamplingOptions):
    """How the tokens of one request are chosen: all is decided. With temperature 0 `do_sample` is False; if it is True
    there is a seed.

    prompt_length: tokens of the prompt: presence and frequency penalties do not count them, and noise positions start
    after them.
    """

    if TYPE_CHECKING:  # not None here
        do_sample: bool = False
        repetition_penalty: float = 1.0
        temperature: float = 1.0
        top_k: int = 50
        top_p: float = 1.0
        min_p: float = 0.0
    prompt_length: int = 0

    def __post_init__(self) -> None:
        """Raises UsageError as options do."""
        super().__post_init__()
        for name, value in MODEL_DEFAULTS.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        object.__setattr__(self, "do_sample", self.draws)
        if self.do_sample and self.seed is None:
            object.__setattr__(self, "seed", fresh_seed())

    @cached_property
    def rule(self) -> SamplingRule:
        """The numbers by which a model chooses tokens itself."""
        penalties = self.repetition_penalty, self.presence_penalty, self.frequency_penalty
        if not self.do_sample:
            return SamplingRule(0.0, 0, 1.0, 0.0, 0, *penalties)
        assert self.seed is not None
        return SamplingRule(self.temperature, self.top_k, self.top_p, self.min_p, self.seed, *penalties)

    @cached_property
    def changes_logits(self) -> bool:
        """Whether `apply_penalties` changes anything."""
        return bool(self.logit_bias) or self.has_penalties

    @cached_property
    def has_penalties(self) -> bool:
        """Whether tokens that were seen before are chosen less often, or more."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @cached_property
    def _biases(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and their biases, (biases,) each: with thousands of them a loop in each pass would delay others."""
        import torch

        return torch.tensor(list(self.logit_bias)), torch.tensor(list(self.logit_bias.values()), dtype=torch.float32)

    def apply_penalties(
        self, logits: torch.Tensor, context: Sequence[int], following: Sequence[int] = ()
    ) -> torch.Tensor:
        """Return logits (rows, vocab) with biases added and repeated tokens penalised.

        Row i follows `context` and the first i tokens of `following`. In this order, for a token that was generated n
        times: the bias is added; if prompt or output contain it, a positive logit is divided by repetition_penalty and
        a negative one multiplied (Keskar et al. 2019, CTRL; as in transformers); then n × frequency_penalty and, if
        n > 0, presence_penalty are subtracted (OpenAI's API; in vLLM's order).
        """
        if not self.changes_logits:
            return logits
        import torch

        logits = logits.float().clone()
        width = logits.shape[-1]  # a draft's vocabulary may be smaller than the target's
        if self.logit_bias:
            tokens, biases = self._biases
            within = tokens < width
            logits[:, tokens[within]] += biases[within]
        if not self.has_penalties:
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
    """Count each id below `width` in `tokens`, (width,)."""
    import torch

    ids = torch.tensor(list(tokens), dtype=torch.long)
    return torch.bincount(ids[ids < width], minlength=width)


def choose(row: Row, sampling: Sampling, position: int) -> int:
    """Choose a token by one row of penalised logits, (vocab,). position: index of the output token.

    Of equals the lowest id. INVALID_LOGITS if the row holds NaN or infinity, or forbids every token.
    """
    best = int(row.argmax())  # the first NaN, where there is one
    if not math.isfinite(row[best]):
        return INVALID_LOGITS
    return best if not sampling.do_sample else _perturbed(row, sampling, position).token


def choose_for_draft(row: Row, sampling: Sampling, position: int) -> tuple[int, float]:
    """`choose` by a draft's row, and the confidence in the choice.

    The confidence is the choice's share of the sum of exp(logit + temperature × noise). Noise counts of tokens that
    top-k and min-p keep and whose logit is near the largest, and their score near the choice's; one with a better score
    was dropped by top-p. The others count without noise. Without any it is the model's own probability, as in greedy
    drafts. Given the noise it says how clear the choice was, and so how likely the target is to choose the same. 0 with
    INVALID_LOGITS. A core that chooses itself has the same rules (native/operations/draft_confidence.cpp).
    """
    best = int(row.argmax())
    largest = float(row[best])
    if not math.isfinite(largest):
        return INVALID_LOGITS, 0.0
    rest = float(np.exp(row - np.float32(largest)).sum(dtype=np.float64))
    if not sampling.do_sample:
        return best, 1.0 / rest
    token = _perturbed(row, sampling, position).token
    kept = filtered_tokens(row, replace(sampling, top_p=1.0))
    limit = np.float32(largest - _HEAD * sampling.temperature)
    ids = np.flatnonzero(row >= limit) if kept is None else kept[row[kept] >= limit]
    if row[token] < limit:
        ids = np.append(ids, token)
    assert sampling.seed is not None
    scores = row[ids].astype(np.float64) / sampling.temperature + gumbel(sampling.seed, position, ids)
    score = float(scores[ids == token][0])
    counted = (scores <= score) & (scores >= score - _HEAD / sampling.temperature)
    rest -= float(np.exp(row[ids[counted]] - np.float32(largest)).sum(dtype=np.float64))
    perturbed = float(np.exp((scores[counted] - score) * sampling.temperature).sum())
    return token, 1.0 / (perturbed + max(rest, 0.0) * math.exp(min(largest - score * sampling.temperature, 700.0)))


@dataclass(frozen=True)
class _PerturbedLogits:
    """Candidate tokens by ascending ids, and logit ÷ temperature + noise of each."""

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
    """Over the whole vocabulary, but computing noise only for tokens whose random bits could make them the arg-max."""
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
    """Return the tokens that top-k, top-p and min-p keep of a row of logits, by ascending ids; None without a filter.

    In transformers' order, at this temperature: tokens at least as likely as the k-th; the smallest set of them that
    reaches p, lower ids first among equals; tokens with at least min_p times the largest probability.
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
    """Return the smallest set of most likely tokens, among `ids` or all, whose probability reaches top_p."""
    logits = row if ids is None else row[ids]
    weights = np.exp((logits - logits.max()) / np.float32(sampling.temperature))
    total = float(weights.sum(dtype=np.float64))
    # Tokens below this have less than 1 - p together, so the others reach p without them.
    candidates = np.flatnonzero(weights >= (1 - sampling.top_p) / len(weights) * total)
    ordered = candidates[np.argsort(-weights[candidates], kind="stable")]
    reached = np.cumsum(weights[ordered], dtype=np.float64)
    # A token is kept if those before it do not reach p.
    count = 1 + int(np.searchsorted(reached, sampling.top_p * total))
    chosen = np.sort(ordered[:count])
    return chosen if ids is None else ids[chosen]
