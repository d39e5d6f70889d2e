"""A target model on our executors, with its draft source if it has one."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ipex_assist.engine.chunk_sizes import EngineLimits
from ipex_assist.engine.engine import Engine
from ipex_assist.engine.prefix_cache import Prefixes
from ipex_assist.engine.prefix_store import PrefixStore, check_folder
from ipex_assist.engine.stats import EngineStats
from ipex_assist.engine.stored_prefixes import HasPrefixMemory, StoredPrefixes
from ipex_assist.env.errors import UsageError
from ipex_assist.executors.blocks import BlockPool
from ipex_assist.executors.image_rows import PromptImages
from ipex_assist.executors.interface import FewerThreads, Meanwhile, Model
from ipex_assist.executors.traffic import Traffic, traffic_of
from ipex_assist.generation.prefix_options import PrefixOptions
from ipex_assist.generation.result import Identity
from ipex_assist.generation.stream import RoundStream
from ipex_assist.generation.text_model import TextModel
from ipex_assist.speculative.choosing.grammar import Grammar, GrammarSpec
from ipex_assist.speculative.choosing.sampling import Sampling
from ipex_assist.speculative.costs import calibration
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.schedule import Schedule
from ipex_assist.speculative.sources.draft_source import DraftSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ipex_assist.speculative.choosing.llguidance_grammar import GrammarCompiler

log = logging.getLogger("ipex_assist")


class AssistedModel(TextModel):
    """Generates with models on our executors, through an engine.

    Any number of streams may run at once, in one thread or several. They share passes, and each gets the same text as
    it would alone.
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
        """drafting: the draft sources; None: the assistant alone, which then has the target's vocabulary."""
        self.target, self.tokenizer, self.eos, self.identity = target, tokenizer, eos, identity
        self.assistant, self.lm_head_rows = assistant, target.spec.lm_head_rows
        self.drafting = drafting or Drafting(
            target.spec.vocab_size, lambda: calibration.calibrate(target, assistant), assistant
        )
        self._engine = self.engine()
        self._stored: StoredPrefixes | None = None
        self._grammars: GrammarCompiler | None = None  # made when the first is asked for
        self._making_grammars = threading.Lock()

    def engine(self, limits: EngineLimits | None = None) -> Engine:
        """Make a new engine on this model; its `submit` takes tokens and options."""
        return Engine(self.target, self.drafting, self.eos, limits or EngineLimits())

    def start(self) -> None:
        """Run the passes of this model's streams in a background thread, so that the streams can be awaited."""
        self._engine.start()

    def close(self) -> None:
        """End the background thread, all running streams, and the process that reads images."""
        self._engine.close()
        if self.images is not None:
            self.images.close()

    @property
    def context_length(self) -> int:
        """The most tokens that a sequence can hold."""
        return self.target.spec.context_length

    def context_for(self, prompt_tokens: int) -> int:
        """The most tokens of prompt and continuation, for a prompt of `prompt_tokens`; see DecoderSpec.context_for."""
        return self.target.spec.context_for(prompt_tokens)

    @property
    def vocab_size(self) -> int:
        """How many token ids the target has an embedding for."""
        return self.target.spec.vocab_size

    @property
    def traffic(self) -> Traffic:
        """Bytes that a pass of the target reads from memory."""
        return traffic_of(self.target, self.identity.precision)

    @property
    def draft_threads(self) -> int | None:
        """How many threads run the assistant's passes of one row; None where that is fixed."""
        model = self.assistant
        return (model.pass_threads.of(1) or model.thread_choices[0]) if isinstance(model, FewerThreads) else None

    @property
    def kv_blocks(self) -> BlockPool | None:
        """The target's KV block pool; an assistant's has as many blocks."""
        return self.target.blocks

    @property
    def pass_seconds(self) -> Sequence[float]:
        """Seconds of the target's passes of 1, 2, … rows, as drafting has measured them."""
        return self.drafting.costs.verify

    def step(self, meanwhile: Meanwhile | None = None) -> bool:
        """Run one pass for all texts; False where there is nothing to do. meanwhile: called while it runs."""
        return self._engine.step(meanwhile)

    @property
    def prefix_blocks(self) -> int:
        """How many of the target's blocks the engine's prefix cache holds."""
        return self._engine.prefix_blocks

    def keep_prefixes(self, options: PrefixOptions) -> None:
        """Keep prefixes in a store from now on, as `options` say; to be called before the first text.

        Raises UsageError for a folder that cannot be used.
        """
        target = self.target
        if options.prefix_store is None or not isinstance(target, HasPrefixMemory) or target.blocks is None:
            super().keep_prefixes(options)
            return
        folder, memory, blocks = check_folder(options.prefix_store), target.prefix_memory(), target.blocks
        store = PrefixStore(folder, memory.key(), options.prefix_store_size)

        def wrap(prefixes: Prefixes) -> Prefixes:
            self._stored = StoredPrefixes(prefixes, store, memory, blocks, target.states)
            return self._stored

        self._engine.wrap_prefixes(wrap)

    def close_prefixes(self, seconds: float) -> None:
        """Write what is to be kept, within `seconds`."""
        if self._stored is not None:
            self._stored.close(seconds)

    @property
    def engine_stats(self) -> EngineStats:
        """Counts and times of the engine that runs this model's streams."""
        return self._engine.stats

    def draft_source(self, prompt: Sequence[int], options: GenerationOptions) -> DraftSource | None:
        """The draft source that `stream` would use for this prompt by default; None where there is no assistant.

        It serves one generation. For sampled output, give `stream` options with the same `seed`: a draft that samples
        with other random numbers is seldom accepted.
        """
        sampling = Sampling.part_of(options.resolved(self.sampling_defaults), prompt_length=len(prompt))
        return self.drafting.source(sampling, len(prompt) + self.limit_of(len(prompt), options))

    def grammar(self, spec: GrammarSpec) -> Grammar:
        """Compile a grammar and return its state before the first token, as `Engine.submit` takes it.

        The first call takes a second, unless `prepare_grammars` was called before. Raises GrammarError where it cannot
        be compiled, UsageError where llguidance is not installed or cannot read the model's tokenizer.
        """
        return self._all_grammars().grammar(spec)

    def prepare_grammars(self) -> None:
        """Read the vocabulary for grammars now, which takes a second. Does nothing where grammars are not available."""
        with contextlib.suppress(UsageError):
            self._all_grammars()

    def _all_grammars(self) -> GrammarCompiler:
        from ipex_assist.speculative.choosing.llguidance_grammar import GrammarCompiler

        with self._making_grammars:
            if self._grammars is None:
                self._grammars = GrammarCompiler.of(self.tokenizer, self.target.spec.lm_head_rows, self.eos)
            return self._grammars

    def _rounds(
        self,
        tokens: list[int],
        limit: int,
        options: GenerationOptions,
        draft: DraftSource | None,
        schedule: Schedule | None,
        grammar: GrammarSpec | None,
        images: PromptImages | None,
    ) -> tuple[RoundStream, bool]:
        if options.may_draft and (draft is not None or self.drafting.possible) and self.target.exact_rows == 1:
            log.warning(
                "no pass of several rows gives the bits of a pass of one on this machine: verifying costs a pass "
                "a token, so that assisted generation is no faster than plain (--no-assisted)"
            )
        state = None if grammar is None else self.grammar(grammar)
        handle = self._engine.submit(
            tokens, options, limit=limit, draft=draft, schedule=schedule, grammar=state, images=images
        )
        return handle, handle.assisted
