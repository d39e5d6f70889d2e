"""From logits to a token: penalty, temperature, top-k, top-p, and the draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; names and defaults are those of transformers' GenerationConfig.

    Without `do_sample` the likeliest token is taken, and temperature, top_p and top_k have no effect.
    `top_k` 0 and `top_p` 1.0 switch their filters off.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def generator(self) -> torch.Generator:
        """A source of random numbers of its own: the seed's, or a fresh one."""
        generator = torch.Generator()
        if self.seed is None:
            generator.seed()
        else:
            generator.manual_seed(self.seed)
        return generator

    def penalise(self, logits: torch.Tensor, context: Sequence[int], following: Sequence[int] = ()) -> torch.Tensor:
        """Logits (rows, vocab) with every token already in the text made less likely.

        Row i follows `context` and the first i tokens of `following`. Rule of Keskar et al. 2019 (CTRL) as in
        transformers: a positive logit is divided by the penalty, a negative one multiplied with it.
        """
        if self.repetition_penalty == 1.0:
            return logits
        logits = logits.float().clone()
        width = logits.shape[-1]  # a draft's vocabulary may be smaller than the text's
        for row in range(logits.shape[0]):
            seen = torch.tensor(
                sorted(token for token in {*context, *following[:row]} if token < width), dtype=torch.long
            )
            score = logits[row, seen]
            logits[row, seen] = torch.where(score < 0, score * self.repetition_penalty, score / self.repetition_penalty)
        return logits

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """The distribution tokens are drawn from: (rows, vocab), float32, each row summing to 1.

        Filters apply in transformers' order: temperature, top-k, top-p (the smallest set reaching p stays).
        """
        logits = logits.float() / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            kth = logits.topk(self.top_k, dim=-1).values[..., -1:]
            logits = logits.masked_fill(logits < kth, -torch.inf)
        probabilities = torch.softmax(logits, -1)
        if self.top_p < 1.0:
            ordered, order = probabilities.sort(dim=-1, descending=True)
            # A token goes when those before it already reach p; the first always stays.
            beyond = ordered.cumsum(-1) - ordered >= self.top_p
            probabilities = probabilities.masked_fill(beyond.scatter(-1, order, beyond), 0.0)
            probabilities = probabilities / probabilities.sum(-1, keepdim=True)
        return probabilities


def draw(probabilities: torch.Tensor, generator: torch.Generator) -> int:
    """Draw one token from a distribution over the vocabulary, (vocab,)."""
    return int(torch.multinomial(probabilities, 1, generator=generator))
