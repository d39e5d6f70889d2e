"""A target on our own models, with whatever drafts for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from ipex_assist.executors.interface import Model
from ipex_assist.executors.traffic import Traffic, traffic_of
from ipex_assist.generation.result import Identity
from ipex_assist.generation.text_model import TextModel
from ipex_assist.speculative import calibration
from ipex_assist.speculative.decode import Round, decode
from ipex_assist.speculative.draft import DraftSource
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.sampling import Sampling
from ipex_assist.speculative.schedule import DraftOptions, Schedule

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("ipex_assist")


class AssistedModel(TextModel):
    """Generates with our own models and decode loop.

    Each stream has sequences of its own, so that any number of them may be under way, in one thread or in several.
    """

    def __init__(
        self,
        target: Model,
        tokenizer: PreTrainedTokenizerBase,
        eos: frozenset[int],
        identity: Identity,
        assistant: Model | None = None,
        *,
        drafting: Drafting | None = None,
    ) -> None:
        """drafting: what drafts, where that is more than an assistant of the same vocabulary."""
        self.target, self.tokenizer, self.eos, self.identity = target, tokenizer, eos, identity
        self.assistant = assistant
        self.drafting = drafting or Drafting(
            target.spec.vocab_size, lambda: calibration.calibrate(target, assistant), assistant
        )
        # For experiments: what `draft_source` returns passes through here, with the prompt's token ids. A wrapper
        # forwards `propose` and `accept`; tokens that are not the source's own choice come without confidence.
        self.wrap_draft: Callable[[DraftSource, Sequence[int]], DraftSource] | None = None

    @property
    def context_length(self) -> int:
        """How many tokens a sequence can hold."""
        return self.target.spec.context_length

    @property
    def vocab_size(self) -> int:
        """Token ids the target has an embedding for."""
        return self.target.spec.vocab_size

    @property
    def traffic(self) -> Traffic:
        """The bytes that a pass of the target reads from memory."""
        return traffic_of(self.target, self.identity.precision)

    def draft_source(self, sampling: Sampling, generator: torch.Generator, length: int) -> DraftSource | None:
        """Return what drafts for one text of at most `length` tokens; None where there is no assistant."""
        return self.drafting.source(sampling, generator, length)

    def _rounds(
        self, tokens: list[int], limit: int, sampling: Sampling, options: DraftOptions
    ) -> tuple[Iterator[Round], bool]:
        generator = sampling.generator()
        schedule: Schedule | None = None
        draft: DraftSource | None = None
        if options.wanted and self.drafting.possible:
            schedule = self.drafting.schedule(options, limit)
            draft = self.draft_source(sampling, generator, len(tokens) + limit)
        if draft is not None:
            if self.wrap_draft is not None:
                draft = self.wrap_draft(draft, tokens)
            if self.target.exact_rows == 1:
                log.warning(
                    "no pass of several rows gives the bits of a pass of one on this machine: verifying costs a pass "
                    "a token, so that assisted generation is no faster than plain (--no-assisted)"
                )
        rounds = decode(
            self.target,
            tokens,
            max_new_tokens=limit,
            sampling=sampling,
            generator=generator,
            draft=draft,
            schedule=schedule,
        )
        if draft is not None and options.adapts and self.wrap_draft is None:
            rounds = self.drafting.learning(rounds, schedule)
        return rounds, draft is not None
