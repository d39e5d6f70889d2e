"""Perplexity of a text over sliding windows, and how far two models agree on it token by token."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch

from ipex_assist.executors.adapters import AdapterChoice
from ipex_assist.executors.interface import LogitsError, Model, Sequence, Tokens

_ROWS = 64  # of logits that are turned into probabilities at once: bounds the memory


@dataclass(frozen=True)
class Window:
    """Tokens [start, end) of a text go through the model; those from `scored` on count."""

    start: int
    scored: int
    end: int


@dataclass
class Score:
    """Sums over the scored tokens, natural logarithms."""

    tokens: int = 0
    loss: float = 0.0
    squared_loss: float = 0.0

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log likelihood."""
        return math.exp(self.loss / self.tokens)

    @property
    def standard_error(self) -> float:
        """The perplexity's standard error: its derivative times that of the mean loss, tokens taken as independent."""
        mean = self.loss / self.tokens
        variance = max(self.squared_loss / self.tokens - mean * mean, 0.0)
        return self.perplexity * math.sqrt(variance / self.tokens)

    def add(self, losses: torch.Tensor) -> None:
        """Count some tokens' negative log likelihoods (rows,)."""
        self.tokens += len(losses)
        self.loss += float(losses.sum(dtype=torch.float64))
        self.squared_loss += float(losses.double().square().sum())


@dataclass
class Agreement:
    """How near a model is to its reference, given the same text before each token."""

    tokens: int = 0
    same: int = 0
    divergence: float = 0.0
    largest: float = 0.0

    @property
    def share(self) -> float:
        """The share of tokens where both models find the same one likeliest, which greedy decoding would take."""
        return self.same / self.tokens

    @property
    def mean_divergence(self) -> float:
        """Kullback-Leibler divergence of the model from the reference, nats a token."""
        return self.divergence / self.tokens


@dataclass
class ModelComparison:
    """A model, its reference, and their agreement."""

    model: Score
    reference: Score
    agreement: Agreement


def windows(tokens: int, length: int, stride: int) -> list[Window]:
    """Windows of `length` tokens, each `stride` further, of which each scores what none before it has.

    So every token but the first counts once, and beyond the first window has at least length - stride tokens before it.
    """
    found, scored = [], 1
    for start in range(0, tokens, stride):
        end = min(start + length, tokens)
        if scored < end:
            found.append(Window(start, scored, end))
        scored = end
        if end == tokens:
            break
    return found


def halves(tokens: int, length: int) -> list[Window]:
    """The windows of `llama-perplexity -c length`: one behind the other, of each the second half counts.

    The last one, which is not full, is left out.
    """
    return [Window(end - length, end - length + length // 2 + 1, end) for end in range(length, tokens + 1, length)]


def perplexity(
    model: Model,
    tokens: Tokens,
    parts: Collection[Window],
    progress: Callable[[Window], None] | None = None,
    adapter: AdapterChoice | None = None,
) -> Score:
    """The score of a text's tokens in windows of it. adapter: one that the model has."""
    score = Score()
    sequence = _new_sequence(model, _longest(parts), adapter)
    for window in parts:
        logits = window_logits(model, sequence, tokens, window)
        for first in range(0, len(logits), _ROWS):
            score.add(_losses(logits[first : first + _ROWS], tokens, window, first)[0])
        if progress is not None:
            progress(window)
    return score


def compare(
    model: Model,
    reference: Model,
    tokens: Tokens,
    parts: Collection[Window],
    progress: Callable[[Window], None] | None = None,
    adapter: AdapterChoice | None = None,
) -> ModelComparison:
    """Score windows of a text by both models, which share a vocabulary, and count how far they agree.

    adapter: one that `model` has; the reference is without any.
    """
    result = ModelComparison(Score(), Score(), Agreement())
    pair = [(each, _new_sequence(each, _longest(parts), own)) for each, own in ((model, adapter), (reference, None))]
    for window in parts:
        logits, expected = (window_logits(each, sequence, tokens, window) for each, sequence in pair)
        for first in range(0, len(logits), _ROWS):
            losses, own = _losses(logits[first : first + _ROWS], tokens, window, first)
            result.model.add(losses)
            losses, theirs = _losses(expected[first : first + _ROWS], tokens, window, first)
            result.reference.add(losses)
            _agree(result.agreement, own, theirs)
        if progress is not None:
            progress(window)
    return result


def _longest(parts: Collection[Window]) -> int:
    return max(window.end - window.start for window in parts)


def _new_sequence(model: Model, capacity: int, adapter: AdapterChoice | None) -> Sequence:
    return model.new_sequence(capacity) if adapter is None else model.new_sequence(capacity, adapter=adapter)


def window_logits(model: Model, sequence: Sequence, tokens: Tokens, window: Window) -> torch.Tensor:
    """Logits (scored, vocab) that predict the tokens a window scores."""
    sequence.truncate(0)
    return model.extend(sequence, tokens[window.start : window.end - 1], last=window.end - window.scored)


def _losses(logits: torch.Tensor, tokens: Tokens, window: Window, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Negative log likelihoods (rows,) of the tokens that rows from `first` on predict, and all log likelihoods."""
    logs = torch.log_softmax(logits.float(), -1)
    at = window.scored + first
    targets = torch.tensor(tokens[at : at + len(logits)])
    losses = -logs.gather(1, targets[:, None])[:, 0]
    if not bool(torch.isfinite(losses).all()):
        wrong = int((~torch.isfinite(losses)).nonzero()[0])
        raise LogitsError("the model", at + wrong)
    return losses, logs


def _agree(agreement: Agreement, own: torch.Tensor, theirs: torch.Tensor) -> None:
    shared = min(own.shape[1], theirs.shape[1])  # padding of the vocabulary may differ
    own, theirs = own[:, :shared], theirs[:, :shared]
    divergence = (theirs.exp() * (theirs - own)).sum(1).clamp(min=0)
    agreement.tokens += len(own)
    agreement.same += int((own.argmax(1) == theirs.argmax(1)).sum())
    agreement.divergence += float(divergence.sum(dtype=torch.float64))
    agreement.largest = max(agreement.largest, float(divergence.max()))
