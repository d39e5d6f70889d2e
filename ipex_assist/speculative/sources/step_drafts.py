"""How tokens are drafted: in one call of a model, or with a pass per token and the choice between passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ipex_assist.executors.interface import DraftsInOneCall, LogitsError, Model, samples_in_one_call
from ipex_assist.executors.row_choice import RowChoice
from ipex_assist.speculative.choosing.grammar import Grammar, Mask, Row, masked
from ipex_assist.speculative.choosing.logit_edits import SeenTokens
from ipex_assist.speculative.choosing.sampling import INVALID_LOGITS, Sampling, choose_for_draft
from ipex_assist.speculative.sources.batched_proposals import Call, Steps
from ipex_assist.speculative.sources.proposal import Proposal

if TYPE_CHECKING:
    import torch

# Reads tokens that were drafted since the last call, and before the first of them whatever was unread; returns the
# logits (1, vocabulary) after them.
Reader: TypeAlias = "Callable[[list[int]], Generator[Call, Any, torch.Tensor]]"


@dataclass(frozen=True)
class StepDrafts:
    """How a model's logits become drafted tokens.

    choices: ids below it are drafted. masked: ids that never are. grammar: in the state after the tokens; advanced.
    """

    sampling: Sampling
    choices: int
    masked: Sequence[int] = ()
    grammar: Grammar | None = None

    @cached_property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is drafted, whatever came before it."""
        changed = self.sampling.do_sample or self.sampling.changes_logits or self.masked
        return not changed and self.grammar is None

    def in_one_call(self, model: Model) -> bool:
        """Whether a model can draft several tokens by itself: grammars are not known to models."""
        chooses = self.is_greedy or (self.grammar is None and samples_in_one_call(model))
        return chooses and isinstance(model, DraftsInOneCall)

    def choice(self, tokens: Sequence[int], left_out: tuple[int, int] = (0, 0)) -> RowChoice | None:
        """How a model drafts in one call after `tokens`; None: the likeliest tokens. left_out: see `draft`."""
        if self.is_greedy:
            return None
        sampling, seen = self._without(left_out[0]), self._seen
        if seen is not None and sampling is not self.sampling:
            seen = SeenTokens(sampling, self.choices)
        generated = len(tokens) + left_out[1] - sampling.prompt_length
        edits = None if seen is None else seen.edits(tokens)
        return RowChoice(sampling.rule, generated, edits, self._mask)

    @cached_property
    def _seen(self) -> SeenTokens | None:
        return SeenTokens(self.sampling, self.choices) if self.sampling.changes_logits else None

    @cached_property
    def _mask(self) -> Mask | None:
        if not self.masked:
            return None
        mask = np.ones(self.choices, np.bool_)
        mask[list(self.masked)] = False
        return mask

    def _without(self, left_out: int) -> Sampling:
        """The sampling of a context that lacks so many of the prompt's tokens."""
        if not left_out:
            return self.sampling
        return replace(self.sampling, prompt_length=self.sampling.prompt_length - left_out)

    def draft(
        self,
        tokens: Sequence[int],
        k: int,
        min_confidence: float,
        read: Reader,
        unread: int,
        left_out: tuple[int, int] = (0, 0),
    ) -> Steps:
        """Draft up to `k` tokens; stop after the first one below `min_confidence`.

        unread: what the first call of `read` reads. left_out: prompt and output tokens that `tokens` lack.
        """
        sampling = self._without(left_out[0])
        generated = len(tokens) + left_out[1] - sampling.prompt_length
        drafted: list[int] = []
        confidence: list[float] = []
        pending: list[int] = []
        passes = 0
        while len(drafted) < k and (not confidence or confidence[-1] >= min_confidence):
            forced = self._forced(k - len(drafted))
            if forced is None:
                break
            if forced:  # not predicted by the model, which reads them with the next pass
                drafted += forced
                confidence += [1.0] * len(forced)
                pending += forced
                continue
            logits = yield from read(pending)
            passes += 1
            logits = sampling.apply_penalties(self._unmasked(logits), [*tokens, *drafted])
            numbers = self._may_follow(logits[0].float().numpy())
            if numbers is None:
                break
            token, sure = choose_for_draft(numbers, sampling, generated + len(drafted))
            if token == INVALID_LOGITS:
                raise LogitsError("the assistant", len(tokens) + len(drafted))
            if self.grammar is not None:
                if not self.grammar.allows([token]):  # an end-of-text token, which only the target chooses
                    break
                self.grammar.advance(token)
            drafted.append(token)
            confidence.append(sure)
            pending = [token]
        return Proposal(drafted, confidence, unread if passes else 0)

    def _forced(self, most: int) -> list[int] | None:
        """Return at most `most` forced tokens, [] without a grammar; None if the model does not know the first."""
        forced = [] if self.grammar is None else self.grammar.forced()[:most]
        known = next((i for i, token in enumerate(forced) if token >= self.choices), len(forced))
        if forced and not known:
            return None
        for token in forced[:known]:
            assert self.grammar is not None
            self.grammar.advance(token)
        return forced[:known]

    def _may_follow(self, row: Row) -> Row | None:
        """Mask a row of logits by the grammar; None if it allows no token of this model."""
        if self.grammar is None or not math.isfinite(row.max()):  # reported when the token is chosen
            return row
        row = masked(row, self.grammar)
        return row if row.max() > -np.inf else None

    def _unmasked(self, logits: torch.Tensor) -> torch.Tensor:
        if self.masked:
            logits = logits.clone()
            logits[:, list(self.masked)] = -math.inf
        return logits
