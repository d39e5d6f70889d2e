"""Opens the checkpoints that are asked for, and decides what the options leave open."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.checkpoints.hub import NotOnThisMachine, online_advice
from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.hints import log_hint
from ipex_assist.executors.load import head_of, head_precision
from ipex_assist.executors.select_executor import resolve_executor, stored_precision
from ipex_assist.generation.config_sizes import vocabulary_rows
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.generation.result import Identity
from ipex_assist.generation.second_assistant import (
    SecondAssistant,
    head_first,
    is_draft_head,
    open_second,
    second_assistant,
)
from ipex_assist.models.draft_head import HeadSpec
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.native.library import is_built
from ipex_assist.quantization.precision import beside_experts, kv_precision_of
from ipex_assist.speculative.sources.assistant_name import AUTO, MTP, SELF, AssistantName, parse_assistant
from ipex_assist.speculative.sources.default_assistants import default_assistant, default_head, why_none
from ipex_assist.tokenization.tokenizer import load_tokenizer
from ipex_assist.tokenization.vocabulary import ADVICE, SharedVocabulary, share_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("ipex_assist")


@dataclass(frozen=True)
class ResolvedOptions:
    """What is to be loaded; `assistant` is None where nothing, lookup alone, or the target's copy or own head drafts.

    head: of the draft head that `assistant` is, or the target has. second: drafts in turn with it.
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
    head: HeadSpec | None = None
    second: SecondAssistant | None = None

    @property
    def quick(self) -> bool:
        """Whether a first pass may be slower: where there is no assistant, its time teaches nobody anything."""
        nothing_drafts = self.assistant is None and self.name.model is None and not self.name.lookup
        return self.options.quick_start and self.executor == "native" and nothing_drafts

    def identity(self, universal: bool) -> Identity:
        """The names that results repeat."""
        model = self.name.model if self.name.model in (SELF, MTP) else self.assistant.source if self.assistant else None
        if model is not None and universal:
            model += " (universal)"
        parts = [*(["lookup"] if self.name.lookup else []), *([model] if model else [])]
        drafted_in = self.assistant_precision
        if self.second is not None:
            parts.append(SELF if self.second.copy else self.second.checkpoint.source)
            drafted_in = f"{drafted_in}+{self.second.precision}"
        return Identity(
            target=self.checkpoint.source,
            assistant="+".join(parts) or None,
            precision=self.precision,
            assistant_precision=drafted_in if model else None,
            executor=self.executor,
            kv_precision=kv_precision_of(self.precision, self.options.kv_precision),
            draft_head=None if self.head is None else self.head.kind,
        )


def resolve(options: LoadOptions, checkpoints: OpenCheckpoints) -> ResolvedOptions:
    """Open the checkpoints, and settle what the options leave open."""
    if options.target is None:
        raise UsageError("target: which model? Give a hub id, a folder or a .gguf file")
    checkpoint = checkpoints.open(options.target, revision=options.revision, offline=options.offline)
    if is_draft_head(checkpoint):
        raise UsageError(
            f"{options.target} is a draft head: name it by --assistant-model, and by -m a model it was made for"
        )
    if not checkpoint.why_not_ours():
        checkpoint.check_weights()  # before an assistant is downloaded for a target that cannot be read
    name = head_first(parse_assistant(options.assistant), checkpoints, offline=options.offline)
    if options.copies_earlier_text:
        name = replace(name, lookup=True)
    assistant_precision = options.assistant_precision
    family = _Family()
    if name.model == AUTO:
        family = _default_head(checkpoint, options, checkpoints) or _family_assistant(checkpoint, options, checkpoints)
        if family.head is not None and family.assistant is None:
            name = AssistantName(name.lookup, MTP)
        elif family.assistant is None and not checkpoint.why_not_ours():
            name = AssistantName(lookup=True)  # which needs no model, and costs next to nothing
    elif name.model == MTP:
        family = _own_head(checkpoint)
    elif name.model not in (None, SELF):
        family = _named(checkpoint, checkpoints.open(str(name.model), offline=options.offline))
    elif name.model == SELF:
        assistant_precision = assistant_precision or "int4"
    assistant, second = family.assistant, open_second(checkpoint, name, options, checkpoints)
    drafted = assistant_precision if assistant or name.model in (SELF, MTP) else None
    executor = resolve_executor(options.executor, options.precision, drafted)
    precision = options.precision or stored_precision(checkpoint, executor) or "bf16"
    if family.head is not None:
        assistant_precision = assistant_precision or head_precision(precision, family.head)
    elif assistant is not None:
        assistant_precision = assistant_precision or stored_precision(assistant, executor)
        assistant_precision = assistant_precision or beside_experts(precision)
    return ResolvedOptions(
        *(options, checkpoint, assistant, name, precision, assistant_precision, executor),
        *(family.shared, family.tokenizer),
        head=None if family.head is None else family.head.head,
        second=second_assistant(second, name, options, precision, executor),
    )


def _own_head(checkpoint: Checkpoint) -> _Family:
    """The head in the target's checkpoint. Raises UsageError where it has none."""
    if not checkpoint.why_not_ours():
        found = head_of(checkpoint)
        if found is not None:
            return _Family(head=found.spec)
    raise UsageError(
        f"--assistant-model mtp: {checkpoint.source} has no layers that predict further tokens, or none that our "
        "decoder runs; name another assistant, or leave the option out for the best that is known"
    )


def _named(checkpoint: Checkpoint, assistant: Checkpoint) -> _Family:
    """The assistant that was named: a model, or a draft head, which must be this target's."""
    if not is_draft_head(assistant):
        return _Family(assistant)
    if reason := checkpoint.why_not_ours():
        raise UsageError(
            f"{assistant.source} is a draft head, and reads hidden states that only our own decoder gives, which does "
            f"not run {checkpoint.source} ({reason}): choose another --assistant-model, or go without by --no-assisted"
        )
    found = head_of(checkpoint, assistant)
    assert found is not None
    return _Family(assistant, SharedVocabulary(), head=found.spec)


def _default_head(checkpoint: Checkpoint, options: LoadOptions, checkpoints: OpenCheckpoints) -> _Family | None:
    """The target's own head, or else a published one. Nobody asked for it, so one that cannot be had ends nothing."""
    if checkpoint.why_not_ours():
        return None
    name: str | None = None
    try:
        if (found := head_of(checkpoint)) is not None:
            return _Family(head=found.spec)
        name = default_head(options.target or "")
        return None if name is None else _named(checkpoint, checkpoints.open(name, offline=options.offline))
    except IpexAssistError as error:
        incomplete = name is None and not isinstance(error, UsageError)  # its own, which our decoder would run
        log.log(logging.WARNING if incomplete else logging.INFO, "no draft head: %s", error)
        return None


@dataclass(frozen=True)
class _Family:
    """An assistant, how far its vocabulary is the target's, and the target's tokenizer; None is not known yet.

    head: what a draft head computes; it is the target's own where there is no assistant.
    """

    assistant: Checkpoint | None = None
    shared: SharedVocabulary | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    head: DecoderSpec | None = None


def _family_assistant(checkpoint: Checkpoint, options: LoadOptions, checkpoints: OpenCheckpoints) -> _Family:
    """The family's default. Nobody asked for it by name, so one that cannot be had or does not fit ends nothing."""
    name = default_assistant(checkpoint.config, options.target or "")
    if name is None:
        _say_what_drafts(checkpoint, why_none(checkpoint.config))
        return _Family()
    try:
        assistant = checkpoints.open(name, offline=options.offline)
        if not checkpoint.why_not_ours() and (reason := assistant.why_not_ours()):
            raise IpexAssistError(reason)
        tokenizer = load_tokenizer(checkpoint)
        return _Family(
            assistant, compare_vocabularies(checkpoint, tokenizer, assistant, load_tokenizer(assistant)), tokenizer
        )
    except NotOnThisMachine as error:
        log.info("%s", error)
        _say_what_drafts(
            checkpoint,
            f"{name} is not on this machine",
            f"{online_advice(options.offline)}, or give --assistant-model FOLDER",
        )
    except IpexAssistError as error:
        log.info("%s", error)
        _say_what_drafts(checkpoint, f"{name} cannot be used ({str(error).partition('. ')[0]})")
    return _Family()


def _say_what_drafts(checkpoint: Checkpoint, reason: str, better: str = "") -> None:
    """One line: why there is no default assistant, what drafts in its place, and what would be better."""
    ours = not checkpoint.why_not_ours()
    instead = "lookup drafts (copies from the text)" if ours else "nothing is drafted"
    copy = ", or self" if ours and is_built() else ""  # whose int4 the core has
    better = better or f"give --assistant-model ID, a small model of its vocabulary{copy}"
    hint = f"no default assistant of {checkpoint.source}"
    log_hint(log, hint, "no default assistant, since %s, so %s; %s", reason, instead, better)


def compare_vocabularies(
    target: Checkpoint,
    tokenizer: PreTrainedTokenizerBase,
    assistant: Checkpoint,
    other: PreTrainedTokenizerBase,
    advice: str = ADVICE,
) -> SharedVocabulary:
    rows = vocabulary_rows(target, tokenizer), vocabulary_rows(assistant, other)
    return share_vocabulary(tokenizer, other, *rows, advice=advice)
