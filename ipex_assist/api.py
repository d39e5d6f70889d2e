"""The Python API: load a target and an assistant once, generate many times."""

from __future__ import annotations

import functools
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ipex_assist import launch
from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.isa import read_isa
from ipex_assist.executors.choose import compute_threads, library_executor, resolve_executor, stored_precision
from ipex_assist.executors.load import load_model
from ipex_assist.generation.assisted_model import AssistedModel
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.generation.result import Identity
from ipex_assist.generation.text_model import TextModel
from ipex_assist.launch.plan import MASK_AT_START
from ipex_assist.models import find
from ipex_assist.native import library
from ipex_assist.quantization.precision import DRAFT_INT4_GROUP, INT4_GROUP
from ipex_assist.speculative import calibration
from ipex_assist.speculative.assistant_name import AUTO, NONE, SELF, AssistantName, parse_assistant
from ipex_assist.speculative.default_assistants import default_assistant
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.pair_cache import PairCache, pair_facts
from ipex_assist.tokenization.tokenizer import eos_token_ids, load_tokenizer
from ipex_assist.tokenization.vocabulary import SharedVocabulary, share_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("ipex_assist")


def load(target: str, assistant: str | None = AUTO, **options: Any) -> TextModel:
    """Load a target and its assistant.

    target, assistant: hub id, folder, or .gguf file. assistant "auto" is the family's default, None is none; "self" is
    the target's own int4 copy, "lookup" copies from the text so far, "lookup+MODEL" both ("auto-lookup" is
    "lookup+auto"). options: the other fields of LoadOptions, by their names. An architecture we have no spec for runs
    through transformers, with the same methods.
    Raises UsageError for an option that is none, a wrong value, or a combination that cannot work, IpexAssistError
    where a model cannot be loaded.
    """
    return load_by(LoadOptions.of(target=target, assistant=NONE if assistant is None else assistant, **options))


def load_by(options: LoadOptions) -> TextModel:
    """`load` with everything in one object. precision None is bf16, or the 4 bits of a checkpoint that is quantized
    already (GPTQ, AWQ); assistant_precision None is the assistant's own such bits, then the target's precision.
    """
    if options.target is None:
        raise UsageError("target: which model? Give a hub id, a folder or a .gguf file")
    assistant_precision = options.assistant_precision
    checkpoint = open_checkpoint(options.target, revision=options.revision, offline=options.offline)
    if not checkpoint.why_not_ours():
        checkpoint.check_weights()  # before an assistant is downloaded for a target that cannot be read
    name = parse_assistant(options.assistant)
    helper, shared = None, None
    if name.model == AUTO:
        helper, shared = _family_assistant(checkpoint, options.target, options.offline)
    elif name.model not in (None, SELF):
        helper = open_checkpoint(str(name.model), offline=options.offline)
    elif name.model == SELF:
        assistant_precision = assistant_precision or "int4"
    drafted = assistant_precision if helper or name.model == SELF else None
    executor = resolve_executor(options.executor, options.precision, drafted)
    precision = options.precision or stored_precision(checkpoint, executor) or "bf16"
    if helper is not None:
        assistant_precision = assistant_precision or stored_precision(helper, executor) or precision
    request = _Request(
        checkpoint,
        helper,
        name,
        precision,
        assistant_precision,
        executor,
        options.universal,
        options.draft_vocabulary,
        shared,
    )
    model = _build(request, options.progress, options.cache_packed, options.recalibrate)
    if options.calibrate and isinstance(model, AssistedModel) and model.drafting.possible:
        _ = model.drafting.costs
    # Loading computed something, so OpenMP has bound its threads by now, and this one, to a core each; threads that
    # are started from here on shall have all of them.
    launch.restore_affinity(launch.inherited_plan(os.environ))
    return model


@dataclass(frozen=True)
class _Request:
    """Names what is to be loaded; `helper` is None where nothing, lookup alone, or the target's copy drafts.

    shared: how far the helper's vocabulary is the target's, where that was compared already.
    """

    checkpoint: Checkpoint
    helper: Checkpoint | None
    name: AssistantName
    precision: str
    assistant_precision: str | None
    executor: str
    universal: bool
    draft_vocabulary: int | None
    shared: SharedVocabulary | None = None

    def identity(self, universal: bool) -> Identity:
        """The names that results repeat."""
        model = SELF if self.name.model == SELF else self.helper.source if self.helper else None
        if model is not None and universal:
            model += " (universal)"
        parts = [*(["lookup"] if self.name.lookup else []), *([model] if model else [])]
        return Identity(
            target=self.checkpoint.source,
            assistant="+".join(parts) or None,
            precision=self.precision,
            assistant_precision=self.assistant_precision if model else None,
            executor=self.executor,
        )


def _build(request: _Request, progress: bool, cache_packed: bool, recalibrate: bool) -> TextModel:
    checkpoint, helper, executor = request.checkpoint, request.helper, request.executor
    if reason := checkpoint.why_not_ours():
        # Nobody is to take it for the native core, which may have been asked for.
        level = logging.WARNING if executor == "native" or find(checkpoint.architecture) else logging.INFO
        log.log(level, "%s runs through transformers, not our own decoder: %s", checkpoint.source, reason)
        return _by_transformers(request, progress, cache_packed)
    if helper is not None and (reason := helper.why_not_ours()):
        raise UsageError(
            f"our decoder cannot run the assistant {helper.source} ({reason}), and through transformers, which can, "
            f"{checkpoint.source} would be slower with it than without. Choose another --assistant-model, self or "
            "lookup, or go without by --no-assisted"
        )

    tokenizer = load_tokenizer(checkpoint)
    shared, helper_tokenizer = _vocabulary(request, tokenizer)
    target = load_model(checkpoint, request.precision, executor, progress=progress, cache_packed=cache_packed)
    assistant = None
    if helper is not None or request.name.model == SELF:
        assert request.assistant_precision is not None
        assistant = load_model(
            helper or checkpoint,
            request.assistant_precision,
            executor,
            progress=progress,
            exact=False,
            cache_packed=cache_packed,
            table_of=None if helper else target,
            group=DRAFT_INT4_GROUP,
        )
    measure = functools.partial(calibration.calibrate, target, assistant, shared.limited(request.draft_vocabulary))
    drafting = Drafting(
        target.spec.vocab_size,
        measure,
        assistant,
        request.name.lookup,
        request.draft_vocabulary,
        helper_tokenizer,
        tokenizer,
        shared,
    )
    if drafting.possible:
        drafting.go_on_from(_cache(request, assistant is not None, recalibrate))
    eos = frozenset(eos_token_ids(checkpoint, tokenizer))
    identity = request.identity(helper_tokenizer is not None)
    return AssistedModel(target, tokenizer, eos, identity, assistant, drafting=drafting)


def _by_transformers(request: _Request, progress: bool, cache_packed: bool) -> TextModel:
    """A model that our decoder does not run: transformers has no draft source but an assistant model."""
    from ipex_assist.generation.transformers_model import TransformersModel

    if request.name.lookup or request.name.model == SELF:
        raise UsageError(
            f"{request.checkpoint.architecture or 'this architecture'} runs through transformers, which drafts with an "
            "assistant model only: name one with --assistant-model, or go without by --no-assisted"
        )
    idle = {"--cache-packed": cache_packed, "--draft-vocabulary": request.draft_vocabulary is not None}
    for flag in (flag for flag, given in idle.items() if given):
        log.warning("%s: no effect, since %s runs through transformers", flag, request.checkpoint.source)
    executor = library_executor() if request.executor == "native" else request.executor
    return TransformersModel(
        request.checkpoint,
        request.helper,
        request.precision,
        request.assistant_precision,
        executor,
        progress=progress,
        universal=request.universal,
        named=request.name.model != AUTO,
    )


def _vocabulary(
    request: _Request, tokenizer: PreTrainedTokenizerBase
) -> tuple[SharedVocabulary, PreTrainedTokenizerBase | None]:
    """How far the vocabulary is shared; the assistant's tokenizer where it is another one, and that is allowed."""
    if request.helper is None or request.shared is not None:
        return request.shared or SharedVocabulary(), None
    other = load_tokenizer(request.helper)
    try:
        return _compare(request.checkpoint, tokenizer, request.helper, other), None
    except UsageError:
        if not request.universal:
            raise
        log.warning("%s has another vocabulary: its drafts are encoded anew, as text", request.helper.source)
        return SharedVocabulary(), other


def _cache(request: _Request, drafts: bool, anew: bool) -> PairCache:
    """Open the cache of what earlier processes learnt of this pair. drafts: a model does, not lookup alone."""
    pair = pair_facts(
        request.checkpoint,
        request.precision,
        request.helper or (request.checkpoint if drafts else None),
        request.assistant_precision,
        draft_vocabulary=request.draft_vocabulary,
        int4_groups=(INT4_GROUP, DRAFT_INT4_GROUP),
    )
    plan = launch.inherited_plan(os.environ)
    machine = {
        "executor": request.executor,
        "machine": read_isa().model,
        "cpus": sorted(plan.cpus if plan else MASK_AT_START),
        "threads": plan.threads if plan else compute_threads(),
        "core": library.PATH.stat().st_mtime_ns if request.executor == "native" else None,
        "torch": torch.__version__,
    }
    return PairCache(pair, machine, anew=anew)


def _family_assistant(
    checkpoint: Checkpoint, source: str, offline: bool
) -> tuple[Checkpoint | None, SharedVocabulary | None]:
    """The family's default. Nobody asked for it by name, so one that cannot be had or does not fit ends nothing."""
    name = default_assistant(checkpoint.config, source)
    if name is None:
        log.warning(
            "no default assistant for %s: generating without one; name one with --assistant-model",
            checkpoint.architecture,
        )
        return None, None
    try:
        helper = open_checkpoint(name, offline=offline)
        if not checkpoint.why_not_ours() and (reason := helper.why_not_ours()):
            raise IpexAssistError(reason)
        return helper, _compare(checkpoint, load_tokenizer(checkpoint), helper, load_tokenizer(helper))
    except IpexAssistError as error:
        log.warning("generating without the default assistant %s: %s", name, error)
        return None, None


def _compare(
    target: Checkpoint, tokenizer: PreTrainedTokenizerBase, assistant: Checkpoint, other: PreTrainedTokenizerBase
) -> SharedVocabulary:
    return share_vocabulary(tokenizer, other, target.config["vocab_size"], assistant.config["vocab_size"])
