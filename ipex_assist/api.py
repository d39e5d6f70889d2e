"""The Python API: load a target and an assistant once, generate many times."""

from __future__ import annotations

import functools
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipex_assist import launch
from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.isa import read_isa
from ipex_assist.executors.interface import FewerThreads, Model
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.late_torch import torch_is_here
from ipex_assist.executors.load import load_model
from ipex_assist.executors.native_loading import one_torch_thread
from ipex_assist.executors.select_executor import compute_threads, library_executor, resolve_executor, stored_precision
from ipex_assist.generation.assisted_model import AssistedModel
from ipex_assist.generation.config_sizes import vocabulary_rows
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.generation.result import Identity
from ipex_assist.generation.stats import Loading
from ipex_assist.generation.text_model import TextModel
from ipex_assist.launch.plan import MASK_AT_START
from ipex_assist.models import find
from ipex_assist.native import library
from ipex_assist.quantization.precision import DRAFT_INT4_GROUP, INT4_GROUP, beside_experts, kv_precision_of
from ipex_assist.speculative import calibration
from ipex_assist.speculative.assistant_name import AUTO, NONE, SELF, AssistantName, parse_assistant
from ipex_assist.speculative.default_assistants import default_assistant
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.pair_cache import PairCache, pair_facts
from ipex_assist.tokenization.tokenizer import eos_token_ids, load_tokenizer
from ipex_assist.tokenization.vocabulary import SharedVocabulary, share_vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedTokenizerBase


log = logging.getLogger("ipex_assist")


def load(target: str, assistant: str | None = AUTO, **options: Any) -> TextModel:
    """Load a target and its assistant.

    target, assistant: hub id, folder, or .gguf file. assistant "auto" is the family's default, None is none; "self" is
    the target's own int4 copy, "lookup" copies from the text so far, "lookup+MODEL" both ("auto-lookup" is
    "lookup+auto"). options: the other fields of LoadOptions, by their names. An architecture we have no spec for runs
    through transformers, with the same methods.
    torch's number of threads is the caller's, before and after. The native core has a pool of its own, one thread a
    core; where torch does nothing else, torch.set_num_threads(1) after loading, as the commands do it, keeps torch's
    pool from spinning against that while a large vocabulary is sampled from.
    Raises UsageError for an option that is none, a wrong value, or a combination that cannot work, IpexAssistError
    where a model cannot be loaded.
    """
    return load_by(LoadOptions.of(target=target, assistant=NONE if assistant is None else assistant, **options))


def load_by(options: LoadOptions, checkpoints: OpenCheckpoints | None = None) -> TextModel:
    """`load` with everything in one object. precision None is bf16, or the 4 bits of a checkpoint that is quantized
    already (GPTQ, AWQ); assistant_precision None is the assistant's own such bits, then the target's precision.

    checkpoints: those that are open already, which are not opened again.
    """
    model = _build(_request(options, OpenCheckpoints() if checkpoints is None else checkpoints))
    if options.calibrate and isinstance(model, AssistedModel) and model.drafting.possible:
        with one_torch_thread() if model.identity.executor == "native" and torch_is_here() else nullcontext():
            _ = model.drafting.costs
    # Loading computed something, so OpenMP has bound its threads by now, and this one, to a core each; threads that
    # are started from here on shall have all of them.
    launch.restore_affinity(launch.inherited_plan(os.environ))
    return model


@dataclass(frozen=True)
class _Request:
    """What is to be loaded; `assistant` is None where nothing, lookup alone, or the target's copy drafts.

    precision, assistant_precision, executor: those of `options`, or what stands for their None and "auto".
    shared: how far the assistant's vocabulary is the target's, where that was compared already; tokenizer: the
    target's, where that was loaded for it.
    """

    options: LoadOptions
    checkpoint: Checkpoint
    assistant: Checkpoint | None
    name: AssistantName
    precision: str
    assistant_precision: str | None
    executor: str
    shared: SharedVocabulary | None = None
    tokenizer: PreTrainedTokenizerBase | None = None

    @property
    def quick(self) -> bool:
        """Whether a first pass may be slower: where there is no assistant, its time teaches nobody anything."""
        nothing_drafts = self.assistant is None and self.name.model is None and not self.name.lookup
        return self.options.quick_start and self.executor == "native" and nothing_drafts

    def identity(self, universal: bool) -> Identity:
        """The names that results repeat."""
        model = SELF if self.name.model == SELF else self.assistant.source if self.assistant else None
        if model is not None and universal:
            model += " (universal)"
        parts = [*(["lookup"] if self.name.lookup else []), *([model] if model else [])]
        return Identity(
            target=self.checkpoint.source,
            assistant="+".join(parts) or None,
            precision=self.precision,
            assistant_precision=self.assistant_precision if model else None,
            executor=self.executor,
            kv_precision=kv_precision_of(self.precision, self.options.kv_precision),
        )


def _request(options: LoadOptions, checkpoints: OpenCheckpoints) -> _Request:
    """Open the checkpoints, and settle what the options leave open."""
    if options.target is None:
        raise UsageError("target: which model? Give a hub id, a folder or a .gguf file")
    checkpoint = checkpoints.open(options.target, revision=options.revision, offline=options.offline)
    if not checkpoint.why_not_ours():
        checkpoint.check_weights()  # before an assistant is downloaded for a target that cannot be read
    name = parse_assistant(options.assistant)
    assistant_precision = options.assistant_precision
    family = _Family()
    if name.model == AUTO:
        family = _family_assistant(checkpoint, options, checkpoints)
    elif name.model not in (None, SELF):
        family = _Family(checkpoints.open(str(name.model), offline=options.offline))
    elif name.model == SELF:
        assistant_precision = assistant_precision or "int4"
    assistant = family.assistant
    drafted = assistant_precision if assistant or name.model == SELF else None
    executor = resolve_executor(options.executor, options.precision, drafted)
    precision = options.precision or stored_precision(checkpoint, executor) or "bf16"
    if assistant is not None:
        assistant_precision = assistant_precision or stored_precision(assistant, executor)
        assistant_precision = assistant_precision or beside_experts(precision)
    return _Request(
        options, checkpoint, assistant, name, precision, assistant_precision, executor, family.shared, family.tokenizer
    )


def _build(request: _Request) -> TextModel:
    """Load what was asked for; our own decoder runs it, or transformers does."""
    checkpoint, assistant, executor = request.checkpoint, request.assistant, request.executor
    if reason := checkpoint.why_not_ours():
        # Nobody is to take it for the native core, which may have been asked for.
        level = logging.WARNING if executor == "native" or find(checkpoint.architecture) else logging.INFO
        log.log(level, "%s runs through transformers, not our own decoder: %s", checkpoint.source, reason)
        return _by_transformers(request)
    if assistant is not None and (reason := assistant.why_not_ours()):
        raise UsageError(
            f"our decoder cannot run the assistant {assistant.source} ({reason}), and through transformers, which can, "
            f"{checkpoint.source} would be slower with it than without. Choose another --assistant-model, self or "
            "lookup, or go without by --no-assisted"
        )
    read_tokenizer = _reading(request)
    shared, assistant_tokenizer = _vocabulary(request, read_tokenizer)
    target, assistant_model, loading = _models(request, read_tokenizer)
    tokenizer = read_tokenizer()
    draft_vocabulary = request.options.draft_vocabulary
    measure = functools.partial(calibration.calibrate, target, assistant_model, shared.limited(draft_vocabulary))
    drafting = Drafting(
        target.spec.vocab_size,
        measure,
        assistant_model,
        request.name.lookup,
        draft_vocabulary,
        assistant_tokenizer,
        tokenizer,
        shared,
    )
    if drafting.possible:
        drafting.go_on_from(_cache(request, assistant_model is not None))
    eos = frozenset(eos_token_ids(checkpoint, tokenizer))
    identity = request.identity(assistant_tokenizer is not None)
    model = AssistedModel(target, tokenizer, eos, identity, assistant_model, drafting=drafting)
    model.loading = loading
    return model


def _reading(request: _Request) -> Callable[[], PreTrainedTokenizerBase]:
    """What gives the target's tokenizer. A quick start reads it in a thread, while the packed weights are checked."""
    if request.quick and request.tokenizer is None:
        aside = ThreadPoolExecutor(1)
        reading = aside.submit(load_tokenizer, request.checkpoint)
        aside.shutdown(wait=False)
        return reading.result
    tokenizer = request.tokenizer or load_tokenizer(request.checkpoint)
    return lambda: tokenizer


def _models(request: _Request, before_packing: Callable[[], object]) -> tuple[Model, Model | None, Loading]:
    """The target, the assistant where a model drafts, and how long loading each of them took."""
    options = request.options
    if options.kv_memory is not None and request.executor != "native":
        log.warning(
            "--kv-memory: no effect with --executor %s, where each text has memory of its own", request.executor
        )
    kv_memory = KvMemory(options.kv_memory, options.kv_share)
    started = time.perf_counter()
    target = load_model(
        request.checkpoint,
        request.precision,
        request.executor,
        progress=options.progress,
        cache_packed=options.cache_packed,
        kv_memory=kv_memory,
        kv_precision=options.kv_precision,
        quick=request.quick,
        before_packing=before_packing,
    )
    loaded = time.perf_counter()
    if request.assistant is None and request.name.model != SELF:
        return target, None, Loading(loaded - started)
    assert request.assistant_precision is not None
    assistant = load_model(
        request.assistant or request.checkpoint,
        request.assistant_precision,
        request.executor,
        progress=options.progress,
        exact=False,
        cache_packed=options.cache_packed,
        table_of=None if request.assistant else target,
        group=DRAFT_INT4_GROUP,
        kv_memory=kv_memory,
        kv_precision=options.kv_precision,
    )
    if options.draft_threads is not None:
        _use_threads(assistant, options.draft_threads, request.executor)
    return target, assistant, Loading(loaded - started, time.perf_counter() - loaded)


def _use_threads(assistant: Model, number: int, executor: str) -> None:
    """Run the assistant's passes of few rows by so many threads."""
    if not isinstance(assistant, FewerThreads):
        log.warning("--draft-threads: no effect with --executor %s, whose passes have all threads", executor)
    elif number > assistant.thread_choices[0]:
        raise UsageError(f"--draft-threads {number}: there are {assistant.thread_choices[0]} threads")
    else:
        assistant.use_threads(number)


def _by_transformers(request: _Request) -> TextModel:
    """A model that our decoder does not run: transformers has no draft source but an assistant model."""
    from ipex_assist.generation.transformers_model import TransformersModel

    options = request.options
    if request.name.lookup or request.name.model == SELF:
        raise UsageError(
            f"{request.checkpoint.architecture or 'this architecture'} runs through transformers, which drafts with an "
            "assistant model only: name one with --assistant-model, or go without by --no-assisted"
        )
    idle = {
        "--cache-packed": options.cache_packed,
        "--draft-threads": options.draft_threads is not None,
        "--draft-vocabulary": options.draft_vocabulary is not None,
        "--kv-memory": options.kv_memory is not None,
        "--kv-precision": options.kv_precision is not None,
    }
    for flag in (flag for flag, given in idle.items() if given):
        log.warning("%s: no effect, since %s runs through transformers", flag, request.checkpoint.source)
    executor = library_executor() if request.executor == "native" else request.executor
    return TransformersModel(
        request.checkpoint,
        request.assistant,
        request.precision,
        request.assistant_precision,
        executor,
        progress=options.progress,
        universal=options.universal,
        named=request.name.model != AUTO,
    )


def _vocabulary(
    request: _Request, read_tokenizer: Callable[[], PreTrainedTokenizerBase]
) -> tuple[SharedVocabulary, PreTrainedTokenizerBase | None]:
    """How far the vocabulary is shared; the assistant's tokenizer where it is another one, and that is allowed."""
    if request.assistant is None or request.shared is not None:
        return request.shared or SharedVocabulary(), None
    other = load_tokenizer(request.assistant)
    try:
        return _compare(request.checkpoint, read_tokenizer(), request.assistant, other), None
    except UsageError:
        if not request.options.universal:
            raise
        log.warning("%s has another vocabulary: its drafts are encoded anew, as text", request.assistant.source)
        return SharedVocabulary(), other


def _cache(request: _Request, drafts: bool) -> PairCache:
    """Open the cache of what earlier processes learnt of this pair. drafts: a model does, not lookup alone."""
    import importlib.metadata  # late, as it takes long

    pair = pair_facts(
        request.checkpoint,
        request.precision,
        request.assistant or (request.checkpoint if drafts else None),
        request.assistant_precision,
        draft_vocabulary=request.options.draft_vocabulary,
        kv_precision=request.options.kv_precision,
        int4_groups=(INT4_GROUP, DRAFT_INT4_GROUP),
    )
    plan = launch.inherited_plan(os.environ)
    machine = {
        "executor": request.executor,
        "machine": read_isa().model,
        "cpus": sorted(plan.cpus if plan else MASK_AT_START),
        "threads": plan.threads if plan else compute_threads(),
        "draft_threads": request.options.draft_threads,
        "core": library.PATH.stat().st_mtime_ns if request.executor == "native" else None,
        "torch": importlib.metadata.version("torch"),
    }
    return PairCache(pair, machine, anew=request.options.recalibrate)


@dataclass(frozen=True)
class _Family:
    """An assistant, how far its vocabulary is the target's, and the target's tokenizer; None is not known yet."""

    assistant: Checkpoint | None = None
    shared: SharedVocabulary | None = None
    tokenizer: PreTrainedTokenizerBase | None = None


def _family_assistant(checkpoint: Checkpoint, options: LoadOptions, checkpoints: OpenCheckpoints) -> _Family:
    """The family's default. Nobody asked for it by name, so one that cannot be had or does not fit ends nothing."""
    name = default_assistant(checkpoint.config, options.target or "")
    if name is None:
        log.warning(
            "no default assistant for %s: generating without one; name one with --assistant-model",
            checkpoint.architecture,
        )
        return _Family()
    try:
        assistant = checkpoints.open(name, offline=options.offline)
        if not checkpoint.why_not_ours() and (reason := assistant.why_not_ours()):
            raise IpexAssistError(reason)
        tokenizer = load_tokenizer(checkpoint)
        return _Family(assistant, _compare(checkpoint, tokenizer, assistant, load_tokenizer(assistant)), tokenizer)
    except IpexAssistError as error:
        log.warning("generating without the default assistant %s: %s", name, error)
        return _Family()


def _compare(
    target: Checkpoint, tokenizer: PreTrainedTokenizerBase, assistant: Checkpoint, other: PreTrainedTokenizerBase
) -> SharedVocabulary:
    return share_vocabulary(tokenizer, other, vocabulary_rows(target, tokenizer), vocabulary_rows(assistant, other))
