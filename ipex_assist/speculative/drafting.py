"""How a loaded pair drafts: its sources, its costs, and its acceptance rates so far."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ipex_assist.executors.interface import FewerThreads, Model
from ipex_assist.speculative.choosing.grammar import Grammar
from ipex_assist.speculative.choosing.sampling import Sampling
from ipex_assist.speculative.costs.acceptance import Acceptance
from ipex_assist.speculative.costs.pair_cache import PairCache
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.options import DraftOptions
from ipex_assist.speculative.pass_drafts import PlannedRequest
from ipex_assist.speculative.planned_assistant import KnownAssistant
from ipex_assist.speculative.planner import Planner
from ipex_assist.speculative.schedule import (
    CONSTANT_TOKENS,
    HEURISTIC_TOKENS,
    ConstantSchedule,
    HeuristicSchedule,
    Schedule,
)
from ipex_assist.speculative.sources.assistant_model import AssistantModel
from ipex_assist.speculative.sources.constrained_source import ConstrainedSource
from ipex_assist.speculative.sources.draft_source import DraftSource
from ipex_assist.speculative.sources.earlier_text import NOBODY, Caller, EarlierAnswers, EarlierText
from ipex_assist.speculative.sources.head_assistant import HeadAssistant, chooses_each
from ipex_assist.speculative.sources.partial_vocabulary import PartialVocabularyAssistant
from ipex_assist.speculative.sources.suffix_lookup import LookupWithFallback, SuffixLookup
from ipex_assist.speculative.sources.text_index import TextIndex
from ipex_assist.speculative.sources.two_assistants import TwoAssistants
from ipex_assist.speculative.sources.universal_assistant import UniversalAssistant
from ipex_assist.tokenization.vocabulary import SharedVocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("ipex_assist")

UNTRUSTED_TOKENS = 7.0  # of the model without an adapter, that weigh in an adapter's first text; see KNOWN_TOKENS


@dataclass
class Drafting:
    """What all requests of a target share: the assistant, text to copy, the pair's costs and acceptance rates.

    assistant_tokenizer: of an assistant with another vocabulary. shared: the overlap of an assistant's vocabulary with
    the target's, otherwise. measure: calibrates the pair when costs are first needed.
    corpus, answers: text that lookup copies beside the request's own.
    second: of a small model that drafts in turn with the assistant, a draft head then: its own costs and acceptance.
    keep: called with `model_acceptance`, `lookup_acceptance` and `gained_passes` after each request that was planned.
    """

    target_vocab_size: int
    measure: Callable[[], Costs]
    assistant: Model | None = None
    lookup: bool = False
    draft_vocabulary: int | None = None
    assistant_tokenizer: PreTrainedTokenizerBase | None = None
    target_tokenizer: PreTrainedTokenizerBase | None = None
    shared: SharedVocabulary = field(default_factory=SharedVocabulary)
    model_acceptance: Acceptance = field(default_factory=Acceptance)
    lookup_acceptance: Acceptance = field(default_factory=Acceptance)
    keep: Callable[[Acceptance, Acceptance, float], None] | None = None
    second: Drafting | None = None
    corpus: TextIndex | None = None
    answers: EarlierAnswers | None = None
    cache: PairCache | None = None
    adapter_acceptance: dict[str, tuple[Acceptance, Acceptance]] = field(default_factory=dict)  # of this process
    gained_passes: float = 0.0  # by the drafts of earlier requests, in plain passes
    _costs: Costs | None = None
    _measuring: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def go_on_from(self, cache: PairCache) -> None:
        """Start from the costs and acceptance rates that earlier processes stored, and store this one's."""
        self.cache, self.gained_passes = cache, cache.gained_passes
        self.model_acceptance, self.lookup_acceptance, self.keep = (
            cache.model_acceptance,
            cache.lookup_acceptance,
            cache.keep_acceptance,
        )

    def forget(self) -> None:
        """Reset the acceptance rates, keep the costs, and store nothing from here on."""
        if self.cache is not None:
            self._costs, self.cache = self.costs, None
        self.model_acceptance, self.lookup_acceptance, self.keep = Acceptance(), Acceptance(), None
        self.adapter_acceptance.clear()
        self.gained_passes = 0.0
        if self.second is not None:
            self.second.forget()

    @property
    def costs(self) -> Costs:
        """The pair's costs: measured once, or from the cache, which requests correct. Read before each request."""
        with self._measuring:  # measure once, even if several requests start at the same time
            if self.cache is not None:
                return self._with_threads(self.cache.costs(self.measure))
            if self._costs is None:
                self._costs = self.measure()
            return self._with_threads(self._costs)

    def calibrate(self) -> None:
        """Measure the costs of all that drafts, unless they are known."""
        for each in (self, self.second):
            _ = each and each.costs

    def _with_threads(self, costs: Costs) -> Costs:
        """Return the costs, and set the assistant to the threads that they were measured with."""
        model: object = self.assistant
        if isinstance(model, FewerThreads) and model.pass_threads != costs.threads and len(model.thread_choices) > 1:
            model.pass_threads = costs.threads
            log.info("draft passes of up to %d rows run on %d threads", costs.threads.rows, costs.threads.threads)
        return costs

    @property
    def possible(self) -> bool:
        """Whether there is anything to draft with."""
        return self.lookup or self.assistant is not None

    def source(
        self, sampling: Sampling, length: int, grammar: Grammar | None = None, caller: Caller = NOBODY
    ) -> DraftSource | None:
        """Return the draft source of one request of at most `length` tokens, prompt included; None if there is none.

        grammar: of the request; drafts use a copy. Forced tokens are drafted even without an assistant or lookup.
        caller: whose earlier answers drafts may copy.
        """
        if grammar is None:
            return self._source(sampling, length, None, caller)
        own = grammar.copy()
        masks = self.assistant is not None and self.assistant_tokenizer is None
        if masks and self.assistant is not None and (head := self.assistant.spec.head) is not None:
            masks = chooses_each(head)
        return ConstrainedSource(own, sampling.prompt_length, self._source(sampling, length, own, caller), masks=masks)

    def _source(self, sampling: Sampling, length: int, grammar: Grammar | None, caller: Caller) -> DraftSource | None:
        model = self._model(sampling, length, grammar) if self.assistant is not None else None
        if self.second is not None and isinstance(model, HeadAssistant):
            model = TwoAssistants(model, self.second._model(sampling, length, grammar))
        if not self.lookup:
            return model
        lookup = SuffixLookup(self._earlier_text(caller))
        return lookup if model is None else LookupWithFallback(lookup, model)

    def _earlier_text(self, caller: Caller) -> EarlierText:
        answers = EarlierText() if self.answers is None else self.answers.of(caller)
        return answers if self.corpus is None else replace(answers, indexes=[*answers.indexes, self.corpus])

    def remember(self, answer: Sequence[int], caller: Caller) -> None:
        """Let later drafts for this caller copy an answer, if answers are kept."""
        if self.answers is not None:
            self.answers.add(caller, answer)

    def _model(self, sampling: Sampling, length: int, grammar: Grammar | None) -> DraftSource:
        assert self.assistant is not None
        if self.assistant.spec.head is not None:
            masked = grammar if chooses_each(self.assistant.spec.head) else None
            return HeadAssistant(
                self.assistant, sampling, self.target_vocab_size, self.draft_vocabulary, length, masked
            )
        if self.assistant_tokenizer is None:
            model = AssistantModel(
                self.assistant,
                sampling,
                self.target_vocab_size,
                self.shared.limited(self.draft_vocabulary),
                length,
                self.shared.masked,
                grammar,
            )
            lacks_rows = self.assistant.spec.vocab_size < self.target_vocab_size
            return (
                PartialVocabularyAssistant(model, self.shared.unknown) if lacks_rows or self.shared.unknown else model
            )
        assert self.target_tokenizer is not None
        return UniversalAssistant(
            self.assistant,
            self.assistant_tokenizer,
            self.target_tokenizer,
            self.target_vocab_size,
            2 * length + 64,  # another tokenizer may need more tokens for the same text
            self.draft_vocabulary,
        )

    def known_of(self, adapter: str | None) -> tuple[Acceptance, Acceptance]:
        """What is known of the assistant's drafts and of copies for texts with an adapter.

        Before its first text: what is known of the model without one, as a start that nobody trusts.
        """
        without = self.model_acceptance, self.lookup_acceptance
        if adapter is None or adapter in self.adapter_acceptance:
            return without if adapter is None else self.adapter_acceptance[adapter]
        of_model, of_lookup = (each.for_next_text(carried=UNTRUSTED_TOKENS) for each in without)
        return of_model, of_lookup

    def schedule(self, options: DraftOptions) -> Schedule | None:
        """Return the schedule of one request that names its draft lengths itself; None: the planner's to choose."""
        number = options.num_assistant_tokens
        if options.kind == "constant":
            return ConstantSchedule(CONSTANT_TOKENS if number is None else number)
        if options.kind == "heuristic":
            return HeuristicSchedule(HEURISTIC_TOKENS if number is None else number)
        return None

    def planner(self) -> Planner:
        """Return a planner for requests that run together, which begins with what earlier ones taught."""
        self.model_acceptance.by_position = self.assistant is not None and self.assistant.spec.head is not None
        known = [KnownAssistant(each.costs, each.model_acceptance, each.known_of) for each in self._each()]
        return Planner(known, self.lookup_acceptance, self.gained_passes)

    def _each(self) -> list[Drafting]:
        return [self] if self.second is None else [self, self.second]

    def learn(self, planner: Planner, request: PlannedRequest) -> None:
        """Take over acceptance rates, costs and gains from the planner of a finished request."""
        adapter = request.adapter
        *of_models, of_lookup = planner.learnt(adapter)
        self.gained_passes = planner.gained_passes
        for each, of_model, findings in zip(self._each(), of_models, planner.findings(request), strict=True):
            if adapter is not None:
                each.adapter_acceptance[adapter] = of_model, of_lookup
            else:
                each.model_acceptance, each.lookup_acceptance = of_model, of_lookup
                if each.keep is not None:
                    each.keep(of_model, of_lookup, self.gained_passes)
            if each.cache is not None:
                each.cache.correct_costs(findings)
