"""A target on our own models, with whatever drafts for it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ipex_assist.engine.engine import Engine
from ipex_assist.engine.limits import EngineLimits
from ipex_assist.engine.stats import EngineStats
from ipex_assist.env.errors import UsageError
from ipex_assist.executors.blocks import BlockPool
from ipex_assist.executors.interface import FewerThreads, Model
from ipex_assist.executors.traffic import Traffic, traffic_of
from ipex_assist.generation.result import Identity
from ipex_assist.generation.stream import RoundStream
from ipex_assist.generation.text_model import TextModel
from ipex_assist.speculative import calibration
from ipex_assist.speculative.draft_source import DraftSource
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.grammar import Grammar, GrammarSpec
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.sampling import Sampling
from ipex_assist.speculative.schedule import Schedule

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ipex_assist.speculative.llguidance_grammar import GrammarCompiler

log = logging.getLogger("ipex_assist")


class AssistedModel(TextModel):
    """Generates with our own models, on an engine.

    Any number of streams may run at a time, in one thread or in several: they share passes, and have the text that each
    has alone.
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
        self._engine = self.engine()
        self._grammars: GrammarCompiler | None = None  # made when the first is asked for
        self._making_grammars = threading.Lock()

    def engine(self, limits: EngineLimits | None = None) -> Engine:
        """Make an engine of this model that has served nobody yet: `submit` takes tokens and options."""
        return Engine(self.target, self.drafting, self.eos, limits or EngineLimits())

    def start(self) -> None:
        """Run the passes of this model's streams in a thread of their own, so that they can be awaited."""
        self._engine.start()

    def close(self) -> None:
        """End that thread, and all streams that are running."""
        self._engine.close()

    @property
    def context_length(self) -> int:
        """How many tokens a sequence can hold."""
        return self.target.spec.context_length

    def context_for(self, prompt_tokens: int) -> int:
        """How many tokens a text with a prompt of this length can hold; see DecoderSpec.context_for."""
        return self.target.spec.context_for(prompt_tokens)

    @property
    def vocab_size(self) -> int:
        """Token ids the target has an embedding for."""
        return self.target.spec.vocab_size

    @property
    def traffic(self) -> Traffic:
        """The bytes that a pass of the target reads from memory."""
        return traffic_of(self.target, self.identity.precision)

    @property
    def draft_threads(self) -> int | None:
        """How many threads run the assistant's passes of one row; None where nobody chooses."""
        model = self.assistant
        return (model.pass_threads.of(1) or model.thread_choices[0]) if isinstance(model, FewerThreads) else None

    @property
    def kv_blocks(self) -> BlockPool | None:
        """The target's pool; an assistant's has as many blocks."""
        return self.target.blocks

    @property
    def prefix_blocks(self) -> int:
        """Those of the target's that the engine's prefix cache has."""
        return self._engine.prefix_blocks

    @property
    def engine_stats(self) -> EngineStats:
        """Counts and seconds of the engine that runs this model's streams."""
        return self._engine.stats

    def draft_source(self, prompt: Sequence[int], options: GenerationOptions) -> DraftSource | None:
        """What would draft for this text if nothing else is passed to `stream`; None where there is no assistant.

        It serves one text. Where that is drawn, both need the same `seed` in their options: a draft with other noise
        is seldom right.
        """
        sampling = Sampling.part_of(options, prompt_length=len(prompt))
        return self.drafting.source(sampling, len(prompt) + self.limit_of(len(prompt), options))

    def grammar(self, spec: GrammarSpec) -> Grammar:
        """Return the state of a text that has not begun, as `Engine.submit` takes it. The first one takes a second,
        unless `prepare_grammars` was called before.

        GrammarError where it cannot be compiled, UsageError where llguidance is not installed or cannot read the
        model's tokenizer.
        """
        return self._all_grammars().grammar(spec)

    def prepare_grammars(self) -> None:
        """Read the vocabulary for grammars now, which takes a second; nothing where this model can have none."""
        with contextlib.suppress(UsageError):
            self._all_grammars()

    def _all_grammars(self) -> GrammarCompiler:
        from ipex_assist.speculative.llguidance_grammar import GrammarCompiler

        with self._making_grammars:
            if self._grammars is None:
                self._grammars = GrammarCompiler.of(self.tokenizer, self.vocab_size, self.eos)
            return self._grammars

    def _rounds(
        self,
        tokens: list[int],
        limit: int,
        options: GenerationOptions,
        draft: DraftSource | None,
        schedule: Schedule | None,
        grammar: GrammarSpec | None,
    ) -> tuple[RoundStream, bool]:
        if options.may_draft and (draft is not None or self.drafting.possible) and self.target.exact_rows == 1:
            log.warning(
                "no pass of several rows gives the bits of a pass of one on this machine: verifying costs a pass "
                "a token, so that assisted generation is no faster than plain (--no-assisted)"
            )
        state = None if grammar is None else self.grammar(grammar)
        handle = self._engine.submit(tokens, options, limit=limit, draft=draft, schedule=schedule, grammar=state)
        return handle, handle.assisted
