"""The Python API: load a target and an assistant once, generate many times."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipex_assist.assistants import default_assistant
from ipex_assist.checkpoint import Checkpoint, open_checkpoint
from ipex_assist.decode import decode
from ipex_assist.draft import AssistantModel, DraftSource
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors import Decoder
from ipex_assist.executors.choose import load_decoder, resolve_executor
from ipex_assist.generation import Generation, Identity, Result
from ipex_assist.models import find
from ipex_assist.sampling import Sampling
from ipex_assist.tokenizer import encode_prompt, eos_token_ids, load_tokenizer
from ipex_assist.vocabulary import check_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from ipex_assist.adapter import TransformersModel

log = logging.getLogger("ipex_assist")

# Four rows, the drafted tokens and the target's own, are the most that cost a target pass no more than one row does
# on every machine we measured (benchmarks/RESULTS.md).
NUM_ASSISTANT_TOKENS = 3


def load(
    target: str,
    assistant: str | None = "auto",
    *,
    precision: str = "bf16",
    assistant_precision: str | None = None,
    executor: str = "auto",
    revision: str | None = None,
    offline: bool = False,
    progress: bool = False,
) -> AssistedModel | TransformersModel:
    """Load a target and its assistant.

    target, assistant: hub id, folder, or .gguf file. assistant "auto" is the family's default, None is none.
    precision: bf16, fp32, int8 or int4 (the last two need an executor that has them); assistant_precision defaults
    to the target's. An architecture we have no spec for runs through transformers, with the same methods.
    Raises UsageError for a combination that cannot work, IpexAssistError where a model cannot be loaded.
    """
    checkpoint = open_checkpoint(target, revision=revision, offline=offline)
    if assistant == "auto":
        helper = _family_assistant(checkpoint, target, offline)
    else:
        helper = open_checkpoint(assistant, offline=offline) if assistant else None
    executor = resolve_executor(executor, precision, assistant_precision if helper else None)
    if find(checkpoint.architecture) is None or (helper and find(helper.architecture) is None):
        from ipex_assist.adapter import TransformersModel

        return TransformersModel(checkpoint, helper, precision, assistant_precision, executor, progress=progress)

    tokenizer = load_tokenizer(checkpoint)
    if helper is not None and assistant != "auto":
        _check_same_vocabulary(checkpoint, tokenizer, helper)
    decoder = load_decoder(checkpoint, precision, executor, progress=progress)
    assistant_decoder = None
    if helper is not None:
        assistant_decoder = load_decoder(
            helper, assistant_precision or precision, executor, progress=progress, exact=False
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


@dataclass
class AssistedModel:
    """A loaded target with its tokenizer and, where there is one, its assistant."""

    decoder: Decoder
    tokenizer: PreTrainedTokenizerBase
    eos: frozenset[int]
    identity: Identity
    assistant: Decoder | None = None

    def generate(self, prompt: str | Sequence[int], **options: object) -> Result:
        """`stream` to its end."""
        generation = self.stream(prompt, **options)  # type: ignore[arg-type]
        for _ in generation:
            pass
        return generation.result()

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        chat: bool = False,
        max_new_tokens: int = 128,
        stop: Sequence[str] = (),
        num_assistant_tokens: int | None = None,
        assisted: bool = True,
        do_sample: bool = False,
        temperature: float = 1.0,
        top_k: int = 50,
        top_p: float = 1.0,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
    ) -> Generation:
        """Generate from a text or from token ids; yields `Chunk`s as tokens are accepted.

        chat: put a text into the tokenizer's chat template, as a user's message. stop: the text ends before the first
        of these strings. num_assistant_tokens: drafted tokens a round. The sampling options are transformers'.
        Raises UsageError for an empty prompt and for one that leaves no room in the model's context.
        """
        tokens = encode_prompt(self.tokenizer, prompt, chat) if isinstance(prompt, str) else list(prompt)
        room = self.decoder.spec.context_length - len(tokens)
        self._check_prompt(len(tokens), room)
        limit = min(max_new_tokens, room)
        sampling = Sampling(do_sample, temperature, top_k, top_p, repetition_penalty, seed)
        generator = sampling.generator()
        k = NUM_ASSISTANT_TOKENS if num_assistant_tokens is None else num_assistant_tokens
        draft = self._draft(len(tokens) + limit, sampling, generator) if assisted and k > 0 else None
        if draft is not None and self.decoder.exact_rows == 1:
            log.warning(
                "no pass of several rows gives the bits of a pass of one on this machine: verifying costs a pass a "
                "token, so that assisted generation is slower than plain (--no-assisted)"
            )
        self.decoder.reserve(len(tokens) + limit)
        rounds = decode(
            self.decoder,
            tokens,
            max_new_tokens=limit,
            sampling=sampling,
            generator=generator,
            draft=draft,
            num_assistant_tokens=k,
        )
        return Generation(
            rounds,
            self.tokenizer,
            self.identity,
            prompt_tokens=len(tokens),
            max_new_tokens=limit,
            eos=self.eos,
            stop=stop,
            assisted=draft is not None,
            limit_is_context=room < max_new_tokens,
        )

    def _draft(self, tokens: int, sampling: Sampling, generator: object) -> DraftSource | None:
        if self.assistant is None:
            return None
        self.assistant.reserve(min(tokens, self.assistant.spec.context_length))
        return AssistantModel(self.assistant, sampling, generator, self.decoder.spec.vocab_size)  # type: ignore[arg-type]

    def _check_prompt(self, length: int, room: int) -> None:
        if length == 0:
            raise UsageError("the prompt is empty: give -p TEXT, --prompt-file FILE, or text on standard input")
        if room <= 0:
            raise UsageError(
                f"the prompt has {length} tokens and the context of {self.identity.target} holds "
                f"{self.decoder.spec.context_length}: shorten the prompt by at least {1 - room}"
            )
