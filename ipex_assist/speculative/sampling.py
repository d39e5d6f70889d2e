"""From logits to a token: biases, penalties, temperature, top-k, top-p, min-p, and the draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ipex_assist.speculative.options import SamplingOptions


@dataclass(frozen=True)
class Sampling(SamplingOptions):
    """How one text's tokens are chosen. `do_sample` is False where the temperature is 0.

    prompt_length: tokens at the text's beginning that the presence and frequency penalties do not count.
    """

    prompt_length: int = 0

    def __post_init__(self) -> None:
        """Raises UsageError as options do."""
        super().__post_init__()
        object.__setattr__(self, "do_sample", self.draws)

    def generator(self) -> torch.Generator:
        """A source of random numbers of its own: the seed's, or a fresh one."""
        generator = torch.Generator()
        if self.seed is None:
            generator.seed()
        else:
            generator.manual_seed(self.seed)
        return generator

    @property
    def changes_logits(self) -> bool:
        """Whether `penalise` does anything: where not, the likeliest token is the largest logit's."""
        return bool(self.logit_bias) or self._looks_back

    @property
    def _looks_back(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def penalise(self, logits: torch.Tensor, context: Sequence[int], following: Sequence[int] = ()) -> torch.Tensor:
        """Logits (rows, vocab) with biases added, and tokens that are already in the text made less likely.

        Row i follows `context` and the first i tokens of `following`. In this order, for a token that was generated n
        times: the bias is added; where prompt or text have it, a positive logit is divided by repetition_penalty and a
        negative one multiplied with it (Keskar et al. 2019, CTRL; as in transformers); then n × frequency_penalty and,
        where n > 0, presence_penalty are taken away (OpenAI's API; the order is vLLM's).
        """
        if not self.changes_logits:
            return logits
        logits = logits.float().clone()
        width = logits.shape[-1]  # a draft's vocabulary may be smaller than the text's
        for token, bias in self.logit_bias.items():
            if token < width:
                logits[:, token] += bias
        if not self._looks_back:
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

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """The distribution tokens are drawn from: (rows, vocab), float32, each row summing to 1.

        Filters apply in transformers' order: temperature, top-k, top-p (the smallest set reaching p stays), min-p (what
        has at least this share of the likeliest token's probability stays).
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
        if self.min_p > 0:
            least = self.min_p * probabilities.max(-1, keepdim=True).values
            probabilities = probabilities.masked_fill(probabilities < least, 0.0)
        filtered = self.top_p < 1.0 or self.min_p > 0
        return probabilities / probabilities.sum(-1, keepdim=True) if filtered else probabilities


def _counts(tokens: Sequence[int], width: int) -> torch.Tensor:
    """How often each of `width` tokens is among `tokens`, (width,)."""
    ids = torch.tensor(list(tokens), dtype=torch.long)
    return torch.bincount(ids[ids < width], minlength=width)


def draw(probabilities: torch.Tensor, generator: torch.Generator) -> int:
    """Draw one token from a distribution over the vocabulary, (vocab,)."""
    return int(torch.multinomial(probabilities, 1, generator=generator))
