"""How the tokens of a block depend on those before them: DFlash 2's choice among candidates, and DSpark's two heads.

The arithmetic is that of speculators 0.9 (models/dflash2), and of arXiv:2607.05147, section 3, in DeepSpec.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ipex_assist.executors.torch.kernels import Linear


@dataclass
class Selector:
    """Chooses each token of a block by the one before it: among the likeliest, or of a DSpark among all."""

    before: torch.Tensor  # (vocab, rank), of the token before
    after: torch.Tensor  # (vocab, rank), of a candidate
    projection: Linear | None  # (rows, hidden) → (rows, rank); a DSpark has none
    candidates: int  # 0: all tokens

    def choose(self, logits: torch.Tensor, hidden: torch.Tensor, last: int) -> tuple[int, float]:
        """The best token after `last` by logits (vocab,) and a row (1, hidden); and its share among the candidates."""
        context = self.before[last]
        if self.projection is not None:
            context = context * self.projection(hidden)[0].to(context.dtype)
        if not self.candidates:
            scores = logits + (self.after[: len(logits)] @ context).to(logits.dtype)
            best = int(scores.argmax())
            return best, float(torch.softmax(scores.float(), 0)[best])
        found = logits.topk(min(self.candidates, len(logits)))
        scores = found.values + (self.after[found.indices] * context).sum(1).to(found.values.dtype)
        best = int(scores.argmax())
        return int(found.indices[best]), float(torch.softmax(scores.float(), 0)[best])


@dataclass
class Confidence:
    """How likely a DSpark's token is accepted, by its row and the token before it."""

    weight: torch.Tensor  # (hidden,) or (hidden + rank,)
    bias: torch.Tensor | None  # (1,)

    def of(self, hidden: torch.Tensor, before: torch.Tensor | None) -> float:
        """hidden: (1, hidden). before: (rank,), of the token before, where there is a Markov head."""
        row = hidden[0].float() if before is None else torch.cat((hidden[0].float(), before.float()))
        size = len(self.weight)
        logit = row[:size] @ self.weight.float()
        return float(torch.sigmoid(logit if self.bias is None else logit + self.bias.float()))
