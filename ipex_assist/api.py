"""The Python API: load a target and an assistant once, generate many times."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ipex_assist import launch
from ipex_assist.assistants import default_assistant
from ipex_assist.checkpoint import Checkpoint, open_checkpoint
from ipex_assist.decode import Round, decode
from ipex_assist.draft import AssistantModel, DraftSource
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors import Decoder
from ipex_assist.executors.choose import library_executor, load_decoder, resolve_executor, stored_precision
from ipex_assist.generation import Identity
from ipex_assist.models import find
from ipex_assist.sampling import Sampling
from ipex_assist.text_model import TextModel
from ipex_assist.tokenizer import eos_token_ids, load_tokenizer
from ipex_assist.vocabulary import check_vocabulary

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger("ipex_assist")

# Four rows, the drafted tokens and the target's own, are the most that cost a target pass no more than one row does
# on every machine we measured (benchmarks/RESULTS.md).
NUM_ASSISTANT_TOKENS = 3


def load(
    target: str,
    assistant: str | None = "auto",
    *,
    precision: str | None = None,
    assistant_precision: str | None = None,
    executor: str = "auto",
    revision: str | None = None,
    offline: bool = False,
    progress: bool = False,
    cache_packed: bool = False,
) -> TextModel:
    """Load a target and its assistant.

    target, assistant: hub id, folder, or .gguf file. assistant "auto" is the family's default, None is none.
    precision: bf16, fp32, int8 or int4 (the last two need an executor that has them). None is bf16, or the 4 bits of a
    checkpoint that is quantised already (GPTQ, AWQ). assistant_precision defaults to the assistant's own such bits,
    then to the target's precision. cache_packed: keep the native core's packed weights in the cache folder, and take
    them from there when the same checkpoint is loaded again. An architecture we have no spec for runs through
    transformers, with the same methods.
    Raises UsageError for a combination that cannot work, IpexAssistError where a model cannot be loaded.
    """
    checkpoint = open_checkpoint(target, revision=revision, offline=offline)
    if assistant == "auto":
        helper = _family_assistant(checkpoint, target, offline)
    else:
        helper = open_checkpoint(assistant, offline=offline) if assistant else None
    executor = resolve_executor(executor, precision, assistant_precision if helper else None)
    precision = precision or stored_precision(checkpoint, executor) or "bf16"
    if helper is not None:
        assistant_precision = assistant_precision or stored_precision(helper, executor)
    model = _build(
        checkpoint, helper, precision, assistant_precision, executor, assistant == "auto", progress, cache_packed
    )
    # Loading computed something, so OpenMP has bound its threads by now, and this one, to a core each; threads that
    # are started from here on shall have all of them.
    launch.restore_affinity(launch.inherited_plan(os.environ))
    return model


def _build(
    checkpoint: Checkpoint,
    helper: Checkpoint | None,
    precision: str,
    assistant_precision: str | None,
    executor: str,
    vocabulary_checked: bool,
    progress: bool,
    cache_packed: bool,
) -> TextModel:
    if find(checkpoint.architecture) is None or (helper and find(helper.architecture) is None):
        from ipex_assist.adapter import TransformersModel

        if executor == "native":
            executor = library_executor()
        return TransformersModel(checkpoint, helper, precision, assistant_precision, executor, progress=progress)

    tokenizer = load_tokenizer(checkpoint)
    if helper is not None and not vocabulary_checked:
        _check_same_vocabulary(checkpoint, tokenizer, helper)
    decoder = load_decoder(checkpoint, precision, executor, progress=progress, cache_packed=cache_packed)
    assistant_decoder = None
    if helper is not None:
        assistant_decoder = load_decoder(
            helper,
            assistant_precision or precision,
            executor,
            progress=progress,
            exact=False,
            cache_packed=cache_packed,
        )
    identity = Identity(
        target=checkpoint.source,
        assistant=helper.source if helper else None,
        precision=precision,
        assistant_precision=(assistant_precision or precision) if helper else None,
        executor=executor,
    )
    eos = frozenset(eos_token_ids(checkpoint, tokenizer))
    return AssistedModel(decoder, tokenizer, eos, identity, assistant_decoder)


def _family_assistant(checkpoint: Checkpoint, source: str, offline: bool) -> Checkpoint | None:
    """The family's default. Nobody asked for it by name, so one that cannot be had or does not fit ends nothing."""
    name = default_assistant(checkpoint.config, source)
    if name is None:
        log.warning(
            "no default assistant for %s: generating without one; name one with --assistant-model",
            checkpoint.architecture,
        )
        return None
    try:
        helper = open_checkpoint(name, offline=offline)
        _check_same_vocabulary(checkpoint, load_tokenizer(checkpoint), helper)
    except IpexAssistError as error:
        log.warning("generating without the default assistant %s: %s", name, error)
        return None
    return helper


def _check_same_vocabulary(target: Checkpoint, tokenizer: PreTrainedTokenizerBase, assistant: Checkpoint) -> None:
    check_vocabulary(tokenizer, load_tokenizer(assistant), target.config["vocab_size"], assistant.config["vocab_size"])


class AssistedModel(TextModel):
    """Our own decoders and decode loop."""

    def __init__(
        self,
        decoder: Decoder,
        tokenizer: PreTrainedTokenizerBase,
        eos: frozenset[int],
        identity: Identity,
        assistant: Decoder | None = None,
    ) -> None:
        self.decoder, self.tokenizer, self.eos, self.identity = decoder, tokenizer, eos, identity
        self.assistant = assistant
        # For experiments: what `draft_source` returns passes through here, with the prompt's token ids. A wrapper
        # forwards `propose` and `accept`; tokens that are not the source's own choice come without confidence.
        self.wrap_draft: Callable[[DraftSource, Sequence[int]], DraftSource] | None = None

    @property
    def context_length(self) -> int:
        """Tokens a sequence can hold."""
        return self.decoder.spec.context_length

    def draft_source(self, sampling: Sampling, generator: torch.Generator, length: int) -> DraftSource | None:
        """What drafts for one text of at most `length` tokens; None where there is no assistant."""
        if self.assistant is None:
            return None
        self.assistant.reserve(min(length, self.assistant.spec.context_length))
        return AssistantModel(self.assistant, sampling, generator, self.decoder.spec.vocab_size)

    def _rounds(
        self, tokens: list[int], limit: int, sampling: Sampling, num_assistant_tokens: int | None, assisted: bool
    ) -> tuple[Iterator[Round], bool]:
        k = NUM_ASSISTANT_TOKENS if num_assistant_tokens is None else num_assistant_tokens
        generator = sampling.generator()
        length = len(tokens) + limit
        draft = self.draft_source(sampling, generator, length) if assisted and k > 0 else None
        if draft is not None:
            if self.wrap_draft is not None:
                draft = self.wrap_draft(draft, tokens)
            if self.decoder.exact_rows == 1:
                log.warning(
                    "no pass of several rows gives the bits of a pass of one on this machine: verifying costs a pass "
                    "a token, so that assisted generation is slower than plain (--no-assisted)"
                )
        self.decoder.reserve(length)
        rounds = decode(
            self.decoder,
            tokens,
            max_new_tokens=limit,
            sampling=sampling,
            generator=generator,
            draft=draft,
            num_assistant_tokens=k,
        )
        return rounds, draft is not None
