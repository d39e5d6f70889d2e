"""Loads a target and its assistant as one model that generates text."""

from __future__ import annotations

import logging
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ipex_assist import launch
from ipex_assist.checkpoints.lora_folder import read_lora
from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.deferred_imports import one_torch_thread, torch_is_here
from ipex_assist.env.errors import UsageError
from ipex_assist.env.isa import read_isa
from ipex_assist.env.phase_display import phases_shown
from ipex_assist.env.phases import phase
from ipex_assist.executors.adapters import TakesAdapters, adapter_matrices
from ipex_assist.executors.interface import FewerThreads, Model
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.load import load_head, load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.select_executor import compute_threads, library_executor
from ipex_assist.generation.assisted_model import AssistedModel
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.generation.pictured import image_reader
from ipex_assist.generation.resolved import ResolvedOptions, compare_vocabularies, resolve
from ipex_assist.generation.sampling_defaults import sampling_defaults
from ipex_assist.generation.stats import Loading
from ipex_assist.generation.text_model import TextModel
from ipex_assist.launch.plan import MASK_AT_START
from ipex_assist.models import find
from ipex_assist.native import library
from ipex_assist.quantization.precision import DRAFT_INT4_GROUP, INT4_GROUP
from ipex_assist.speculative.costs import calibration
from ipex_assist.speculative.costs.pair_cache import PairCache, pair_facts
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.sources.assistant_name import AUTO, MTP, SELF
from ipex_assist.speculative.sources.earlier_text import EarlierAnswers, read_corpus
from ipex_assist.tokenization.tokenizer import eos_token_ids, load_tokenizer
from ipex_assist.tokenization.vocabulary import SharedVocabulary
from ipex_assist.vision.memory import vision_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transformers import PreTrainedTokenizerBase

    from ipex_assist.checkpoints.base import Checkpoint

log = logging.getLogger("ipex_assist")

ADVICE_BESIDE_A_HEAD = "Choose a small model of the target's family to draft in turn with the head, or the head alone."


def load_by(
    options: LoadOptions,
    checkpoints: OpenCheckpoints | None = None,
    later: list[Callable[[], object]] | None = None,
    most_tokens: int | None = None,
) -> TextModel:
    """`load` with everything in one object. precision None is bf16, or the 4 bits of a checkpoint that is quantized
    already (GPTQ, AWQ); assistant_precision None is the assistant's own such bits, then the target's precision.

    checkpoints: those that are open already, which are not opened again. later: see LoadRequest. most_tokens: of
    prompts and texts that are there at a time, where that is known.
    """
    name = short_name(options.target) if options.target else "the model"
    with phases_shown(options.progress), phase(f"loading {name}"):
        request = resolve(options, OpenCheckpoints() if checkpoints is None else checkpoints)
        defaults = sampling_defaults(request.checkpoint, options.generation_config)
        model = _build(request, later, most_tokens)
        model.allow_special_tokens = options.allow_special_tokens
        model.sampling_defaults = defaults
        if options.calibrate and isinstance(model, AssistedModel) and model.drafting.possible:
            with one_torch_thread() if model.identity.executor == "native" and torch_is_here() else nullcontext():
                model.drafting.calibrate()
    # Loading computed something, so OpenMP has bound its threads by now, and this one, to a core each; threads that
    # are started from here on shall have all of them.
    launch.restore_affinity(launch.inherited_plan(os.environ))
    return model


def _build(request: ResolvedOptions, later: list[Callable[[], object]] | None, most_tokens: int | None) -> TextModel:
    """Load what was asked for; our own decoder runs it, or transformers does."""
    checkpoint, assistant, executor = request.checkpoint, request.assistant, request.executor
    if reason := checkpoint.why_not_ours():
        # Nobody is to take it for the native core, which may have been asked for.
        level = logging.WARNING if executor == "native" or find(checkpoint.architecture) else logging.INFO
        if find(checkpoint.architecture) is None:  # the list of all others stands in errors
            reason = f"{checkpoint.architecture or 'its architecture'} is none of those that `ipex-assist models` lists"
        log.log(level, "%s runs through transformers, not our own decoder: %s", short_name(checkpoint.source), reason)
        return _by_transformers(request)
    if assistant is not None and request.head is None and (reason := assistant.why_not_ours()):
        raise UsageError(
            f"our decoder cannot run the assistant {assistant.source} ({reason}), and through transformers, which can, "
            f"{checkpoint.source} would be slower with it than without. Choose another --assistant-model, self or "
            "lookup, or go without by --no-assisted"
        )
    read_tokenizer = _TokenizerReading(request)
    shared, assistant_tokenizer = _vocabulary(request, read_tokenizer)
    of_second = _vocabulary_of_second(request, read_tokenizer)
    (target, assistant_model, second_model), loading = _models(request, read_tokenizer, later, most_tokens)
    tokenizer, options = read_tokenizer(), request.options
    draft_vocabulary = options.draft_vocabulary
    drafting = Drafting(
        target.spec.vocab_size,
        _measuring(target, assistant_model, shared.limited(draft_vocabulary)),
        assistant_model,
        request.name.lookup,
        draft_vocabulary,
        assistant_tokenizer,
        tokenizer,
        shared,
        corpus=None if options.draft_corpus is None else read_corpus(options.draft_corpus, tokenizer),
        answers=None if options.draft_history is None else EarlierAnswers(options.draft_history),
    )
    if drafting.possible:
        drafting.go_on_from(_cache(request, assistant_model is not None))
    if second_model is not None:
        measure = _measuring(target, second_model, of_second.limited(draft_vocabulary))
        drafting.second = Drafting(
            target.spec.vocab_size, measure, second_model, draft_vocabulary=draft_vocabulary, shared=of_second
        )
        drafting.second.go_on_from(_cache_of_second(request))
    eos = frozenset(eos_token_ids(checkpoint, tokenizer))
    identity = request.identity(assistant_tokenizer is not None)
    model = AssistedModel(target, tokenizer, eos, identity, assistant_model, drafting=drafting)
    model.loading, model.images = loading, image_reader(checkpoint, target.spec, request.precision, tokenizer)
    model.adapters = options.adapters
    if options.lora_by_default and model.adapters:
        model.default_adapter = list(model.adapters)[-1]
    return model


def _measuring(target: Model, assistant: Model | None, vocabulary: int | None) -> Callable[[], Costs]:
    def measure() -> Costs:
        with phase("calibrating"):
            return calibration.calibrate(target, assistant, vocabulary)

    return measure


class _TokenizerReading:
    """The target's tokenizer, read in a thread from `begin` on, or when it is first asked for.

    Parsing its file holds the interpreter's lock for a quarter of a second, in which nothing but the core can work. So
    a quick start begins it when the core is about to check the packed weights, and not before.
    """

    def __init__(self, request: ResolvedOptions) -> None:
        self._checkpoint = request.checkpoint
        self._reading: Future[PreTrainedTokenizerBase] | None = None
        if request.tokenizer is not None or not request.quick:
            self._reading = Future()
            self._reading.set_result(request.tokenizer or load_tokenizer(request.checkpoint))

    def begin(self) -> Future[PreTrainedTokenizerBase]:
        if self._reading is None:
            thread = ThreadPoolExecutor(1)
            self._reading = thread.submit(load_tokenizer, self._checkpoint)
            thread.shutdown(wait=False)
        return self._reading

    def __call__(self) -> PreTrainedTokenizerBase:
        return self.begin().result()


def _models(
    request: ResolvedOptions,
    read_tokenizer: _TokenizerReading,
    later: list[Callable[[], object]] | None,
    most_tokens: int | None,
) -> tuple[tuple[Model, Model | None, Model | None], Loading]:
    """The target, the assistant where a model drafts, the second one, and how long loading took."""
    options = request.options
    if options.kv_memory is not None and request.executor != "native":
        log.warning(
            "--kv-memory: no effect with --executor %s, where each text has memory of its own", request.executor
        )
    kv_memory = KvMemory(options.kv_memory, options.kv_share, most_tokens)
    seeing = vision_bytes(request.checkpoint, request.checkpoint.config_spec().model_type, request.precision)
    kv_memory.join(0, 0, workspace=(options.draft_history or 0) + seeing)  # which fill up later
    asked = LoadRequest(
        request.checkpoint,
        request.precision,
        request.executor,
        cache_packed=options.cache_packed,
        kv_memory=kv_memory,
        kv_precision=options.kv_precision,
        resident=options.resident,
        quick=request.quick,
        aside=read_tokenizer.begin,
        before_packing=read_tokenizer,
        later=later,
    )
    started = time.perf_counter()
    target = load_model(asked)
    add_adapters(request.options.adapters, request.executor, asked, target)
    loaded = time.perf_counter()
    if request.assistant is None and request.name.model not in (SELF, MTP):
        return (target, None, None), Loading(loaded - started)
    assistant, second = _assistant(request, asked, target), None
    if (small := request.second) is not None:
        second = _small_model(asked, small.checkpoint, small.precision, target if small.copy else None)
    if options.draft_threads is not None:
        for each in (assistant, second):
            _use_threads(each, options.draft_threads, request.executor)
    return (target, assistant, second), Loading(loaded - started, time.perf_counter() - loaded)


def add_adapters(adapters: Mapping[str, str], executor: str, asked: LoadRequest, target: Model) -> None:
    """Read adapters, folders by name, into a target that was loaded by `asked`.

    Raises UsageError where its executor runs none.
    """
    if adapters and not (isinstance(target, TakesAdapters) and executor in ("native", "torch")):
        raise UsageError(
            f"--lora: --executor {executor} runs no adapters; take native or torch, or merge the adapter into "
            "its model by PEFT"
        )
    for name, folder in adapters.items():
        with phase(f"reading the adapter {name}"):
            assert isinstance(target, TakesAdapters)
            target.add_adapter(name, adapter_matrices(asked.spec, asked.sources, read_lora(folder), folder))


def _assistant(request: ResolvedOptions, asked: LoadRequest, target: Model) -> Model:
    """The model that drafts. asked: how the target was loaded."""
    assert request.assistant_precision is not None
    if request.head is not None:
        return load_head(
            *(request.checkpoint, target, request.assistant, request.assistant_precision, request.executor),
            group=DRAFT_INT4_GROUP,
            kv_memory=asked.kv_memory,
            kv_precision=asked.kv_precision,
        )
    table_of = None if request.assistant else target
    return _small_model(asked, request.assistant or request.checkpoint, request.assistant_precision, table_of)


def _small_model(asked: LoadRequest, checkpoint: Checkpoint, precision: str, table_of: Model | None) -> Model:
    """A whole model that drafts. table_of: the target, where it is a copy of that and shares its table."""
    return load_model(
        replace(
            asked,
            checkpoint=checkpoint,
            precision=precision,
            exact=False,
            table_of=table_of,
            group=DRAFT_INT4_GROUP,
            resident=None,
            quick=False,
            aside=None,
            before_packing=None,
        )
    )


def _use_threads(assistant: Model | None, number: int, executor: str) -> None:
    """Run the assistant's decode passes on this many threads."""
    if assistant is None:
        return
    if not isinstance(assistant, FewerThreads):
        log.warning("--draft-threads: no effect with --executor %s, whose passes have all threads", executor)
    elif number > assistant.thread_choices[0]:
        raise UsageError(f"--draft-threads {number}: there are {assistant.thread_choices[0]} threads")
    else:
        assistant.use_threads(number)


def _by_transformers(request: ResolvedOptions) -> TextModel:
    """A model that our decoder does not run: transformers has no draft source but an assistant model."""
    from ipex_assist.generation.transformers_model import TransformersModel

    options = request.options
    if options.lora:
        raise UsageError(
            f"--lora: {request.checkpoint.architecture or 'this architecture'} runs through transformers, and adapters "
            "run on our own decoder: merge the adapter into its model by PEFT"
        )
    if request.name.lookup or request.name.model == SELF:
        raise UsageError(
            f"{request.checkpoint.architecture or 'this architecture'} runs through transformers, which drafts with an "
            "assistant model only: name one with --assistant-model, or go without by --no-assisted"
        )
    idle = {
        "--cache-packed": options.cache_packed,
        "--draft-corpus": options.draft_corpus,
        "--draft-history": options.draft_history is not None,
        "--draft-threads": options.draft_threads is not None,
        "--draft-vocabulary": options.draft_vocabulary is not None,
        "--kv-memory": options.kv_memory is not None,
        "--kv-precision": options.kv_precision is not None,
        "--resident": options.resident is not None,
    }
    for flag in (flag for flag, given in idle.items() if given):
        log.warning("%s: no effect, since %s runs through transformers", flag, short_name(request.checkpoint.source))
    executor = library_executor() if request.executor == "native" else request.executor
    return TransformersModel(
        request.checkpoint,
        request.assistant,
        request.precision,
        request.assistant_precision,
        executor,
        universal=options.universal,
        named=request.name.model != AUTO,
    )


def _vocabulary(
    request: ResolvedOptions, read_tokenizer: Callable[[], PreTrainedTokenizerBase]
) -> tuple[SharedVocabulary, PreTrainedTokenizerBase | None]:
    """How far the vocabulary is shared; the assistant's tokenizer where it is another one, and that is allowed."""
    if request.assistant is None or request.shared is not None:
        return request.shared or SharedVocabulary(), None
    other = load_tokenizer(request.assistant)
    try:
        return compare_vocabularies(request.checkpoint, read_tokenizer(), request.assistant, other), None
    except UsageError:
        if not request.options.universal:
            raise
        log.warning("%s has another vocabulary: its drafts are encoded again, as text", request.assistant.source)
        return SharedVocabulary(), other


def _vocabulary_of_second(
    request: ResolvedOptions, read_tokenizer: Callable[[], PreTrainedTokenizerBase]
) -> SharedVocabulary:
    """How far the second assistant's vocabulary is the target's. Raises UsageError where it is another one."""
    second = request.second
    if second is None or second.copy:
        return SharedVocabulary()
    other = load_tokenizer(second.checkpoint)
    return compare_vocabularies(
        *(request.checkpoint, read_tokenizer(), second.checkpoint, other), advice=ADVICE_BESIDE_A_HEAD
    )


def _cache(request: ResolvedOptions, drafts: bool) -> PairCache:
    """Open the cache of what earlier processes learnt of this pair. drafts: a model does, not lookup alone."""
    pair = pair_facts(
        request.checkpoint,
        request.precision,
        request.assistant or (request.checkpoint if drafts else None),
        request.assistant_precision,
        draft_vocabulary=request.options.draft_vocabulary,
        kv_precision=request.options.kv_precision,
        int4_groups=(INT4_GROUP, DRAFT_INT4_GROUP),
        head=None if request.head is None else request.head.kind,
        **({} if request.options.resident is None else {"resident": request.options.resident}),
    )
    return PairCache(pair, _machine_facts(request), refresh=request.options.recalibrate)


def _cache_of_second(request: ResolvedOptions) -> PairCache:
    """The same of the target and its second assistant: that of a run in which it is the only one."""
    assert request.second is not None
    alone = replace(
        request, assistant=request.second.checkpoint, assistant_precision=request.second.precision, head=None
    )
    return _cache(alone, drafts=True)


def _machine_facts(request: ResolvedOptions) -> dict[str, Any]:
    import importlib.metadata  # late, as it takes long

    plan = launch.inherited_plan(os.environ)
    return {
        "executor": request.executor,
        "machine": read_isa().model,
        "cpus": sorted(plan.cpus if plan else MASK_AT_START),
        "threads": plan.threads if plan else compute_threads(),
        "draft_threads": request.options.draft_threads,
        "core": library.PATH.stat().st_mtime_ns if request.executor == "native" else None,
        "torch": importlib.metadata.version("torch"),
    }
