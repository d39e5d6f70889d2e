"""What every loaded model offers, whoever runs it: `generate` and `stream`."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from ipex_assist.engine.stats import EngineStats
from ipex_assist.env.errors import UsageError
from ipex_assist.executors.blocks import BlockPool
from ipex_assist.executors.image_rows import PromptImages
from ipex_assist.executors.interface import Meanwhile
from ipex_assist.executors.traffic import Traffic
from ipex_assist.generation.conversation import as_lists, check_kind, is_one, messages_of
from ipex_assist.generation.pictured import PicturedPrompt, placed, seen
from ipex_assist.generation.prefix_options import PrefixOptions
from ipex_assist.generation.result import Identity, Result
from ipex_assist.generation.stats import Loading
from ipex_assist.generation.stream import Generation, RoundStream
from ipex_assist.speculative.choosing.grammar import GrammarSpec
from ipex_assist.speculative.options import GenerationOptions, bias_fault
from ipex_assist.speculative.schedule import Schedule
from ipex_assist.speculative.sources.draft_source import DraftSource
from ipex_assist.tokenization.thinking import conversation_reader
from ipex_assist.tokenization.tokenizer import checked_ids, encode_messages, encode_prompt
from ipex_assist.vision.images import ImageSource
from ipex_assist.vision.reader import ImageReader

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Messages: TypeAlias = "Sequence[Mapping[str, Any]]"  # role and content each

log = logging.getLogger("ipex_assist")


class TextModel(AbstractContextManager["TextModel"]):
    """A loaded target with its tokenizer and, where there is one, its assistant."""

    tokenizer: PreTrainedTokenizerBase
    eos: frozenset[int]
    identity: Identity
    loading = Loading()  # until whoever loads the weights says how long it took
    allow_special_tokens = False  # whether special tokens named in messages are tokens (`encode_messages`)
    adapters: Mapping[str, str] = {}  # folders by the names that `lora` may have
    default_adapter: str | None = None  # of texts that name none
    sampling_defaults: Mapping[str, Any] = {}  # of texts that say nothing themselves
    lm_head_rows: int | None = None  # token ids that have a logit, the first ones; None where that is not known
    facts: None = None  # of an embedding model
    images: ImageReader | None = None  # reads images, where the model takes any
    one_at_a_time = False  # whether a stream must have ended before the next one begins

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise UsageError(
            "a loaded model cannot be pickled, nor sent to another process: call load() in each process that uses it"
        )

    def close(self) -> None:
        """End what runs in the background, where something does."""
        return

    def __repr__(self) -> str:
        names = {name: value for name, value in vars(self.identity).items() if value is not None}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in names.items())})"

    @property
    @abstractmethod
    def context_length(self) -> int | None:
        """Tokens a sequence can hold; None where the model sets no limit."""

    @property
    def vocab_size(self) -> int | None:
        """Token ids the model has an embedding for; None where that is not known."""
        return None

    @property
    def traffic(self) -> Traffic | None:
        """The bytes that a pass of the target reads from memory; None where that is not known."""
        return None

    @property
    def draft_threads(self) -> int | None:
        """How many threads run the assistant's passes of one row; None where nobody chooses."""
        return None

    @property
    def kv_blocks(self) -> BlockPool | None:
        """The blocks of keys and values that all texts share; None where each has memory of its own."""
        return None

    @property
    def pass_seconds(self) -> Sequence[float] | None:
        """Seconds of the target's passes of 1, 2, … rows, measured when first asked for; None where nobody measures."""
        return None

    def step(self, meanwhile: Meanwhile | None = None) -> bool:
        """Run one pass for all texts that share passes; False where there is nothing to do, or none share any.

        meanwhile: called while it runs, until it returns False.
        """
        return False

    @property
    def pauses(self) -> bool:
        """Whether `Generation.pause` makes room for others: what was read can be read again with the same bits."""
        return self.kv_blocks is not None

    @property
    def prefix_blocks(self) -> int:
        """Those of `kv_blocks` that are kept for texts that begin alike; they are given up where others need them."""
        return 0

    @property
    def engine_stats(self) -> EngineStats | None:
        """What its engine has done since it was loaded; None where none of ours runs it."""
        return None

    @abstractmethod
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
        """The rounds of one generation of at most `limit` tokens, and whether a draft takes part.

        draft, schedule: in place of the model's own. grammar: what the text must be. images: of the prompt; None
        where `self.images` is.
        """

    def keep_prefixes(self, options: PrefixOptions) -> None:
        """Keep prefixes in a store from now on, as `options` say; to be called before the first text."""
        if options.prefix_store is not None:
            log.warning("--prefix-store: no effect here: prefixes are kept of models that the native core runs")

    def close_prefixes(self, seconds: float) -> None:
        """Write what is to be kept, within `seconds`."""

    def prepare_grammars(self) -> None:
        """Do now what the first grammar would have to wait for."""

    @overload
    def generate(
        self, prompt: str | Sequence[int] | Messages, options: GenerationOptions | None = None, **more: Any
    ) -> Result: ...

    @overload
    def generate(
        self,
        prompt: Sequence[str] | Sequence[Sequence[int]] | Sequence[Messages],
        options: GenerationOptions | None = None,
        **more: Any,
    ) -> list[Result]: ...

    def generate(self, prompt: Any, options: GenerationOptions | None = None, **more: Any) -> Any:
        """`stream` to its end; the same options. Several prompts give their results in the same order.

        prompt: as for `stream`, or a list of such: `generate([{"role": "user", "content": "Hello"}])` is one
        conversation, and a list of conversations gives a list of results. So does an array of token ids with two
        dimensions, even of one row.
        On our own models several prompts share passes, which takes little longer than one of them would.
        """
        more = {"streamed": False, **more}
        prompt = as_lists(prompt)
        if isinstance(prompt, (list, tuple)) and not prompt:
            return []
        if is_one(prompt):
            return _finished([self.stream(prompt, options, **more)])[0]
        return _finished([self.stream(each, options, **more) for each in prompt])

    def stream(
        self,
        prompt: str | Sequence[int] | Messages | PicturedPrompt,
        options: GenerationOptions | None = None,
        *,
        chat: bool = False,
        draft: DraftSource | None = None,
        schedule: Schedule | None = None,
        grammar: GrammarSpec | None = None,
        images: Sequence[ImageSource] = (),
        **changes: Any,
    ) -> Generation:
        """Generate from a text, token ids or messages; yields `Chunk`s as tokens are accepted.

        prompt: a text is continued as it is; messages, objects with role and content, are put into the tokenizer's chat
        template, and the text is the answer to the last one.
        options, changes: GenerationOptions, and its fields by their names, which come before it:
        `stream("Once", max_new_tokens=20, stop="\\n")`. chat: put a text into that template, as a user's
        message; of token ids, that they are those of a conversation. draft, schedule: for experiments, in place of the
        model's own (AssistedModel.draft_source gives the one it would take); what then happens teaches the model
        nothing about its pair. grammar: what the text must
        be, from its first token to the end-of-text token, after which it ends whatever `ignore_eos` says.
        images: paths, contents of files, PIL images or arrays (height, width, 3) of uint8. In messages an image is a
        part {"type": "image", "image": …} of the content, and one without "image" is the next of `images`, which stand
        before a text of a chat; any other prompt has the model's own placeholders for them.
        Raises UsageError for a wrong option, an empty prompt, token ids that the model does not have, and a prompt that
        leaves no room in the model's context; GrammarError for a grammar that is none. Its iteration raises LogitsError
        where the model computes no numbers, and GrammarError where the grammar becomes too complex on the way.
        """
        given = [name for name, value in changes.items() if value is not None]
        options = GenerationOptions.of(options, **changes).resolved(self.sampling_defaults).seeded()
        options = _with_adapter(options, self.adapters, self.default_adapter)
        _check_biases(options, self)
        for name, switch in GenerationOptions.without_effect(given, options).items():
            log.warning("%s: no effect without %s=True; the likeliest token is taken", name, switch)
        rows = as_lists(prompt)
        prompt = rows[0] if rows is not prompt and len(rows) == 1 else prompt
        pictured = prompt if isinstance(prompt, PicturedPrompt) else self.see(prompt, images, chat=chat)
        tokens = pictured.tokens
        limit = self.limit_of(len(tokens), options)
        if pictured.images is not None and self.kv_blocks is not None:  # whoever asked did not know how long it is
            limit = max(1, min(limit, self.kv_blocks.count * self.kv_blocks.size - len(tokens)))
        rounds, drafting = self._rounds(tokens, limit, options, draft, schedule, grammar, pictured.images)
        talks = chat or messages_of(prompt) is not None
        return Generation(
            rounds,
            self.tokenizer,
            self.identity,
            prompt_tokens=len(tokens),
            max_new_tokens=limit,
            eos=frozenset() if options.ignore_eos and grammar is None else self.eos,
            stop=options.stop,
            before=() if talks else tokens,
            assisted=drafting,
            limit_is_context=limit < options.max_new_tokens,
            traffic=self.traffic,
            loading=self.loading,
            seed=options.seed if options.draws else None,
            thoughts=conversation_reader(self.tokenizer, tokens) if talks else None,
        )

    def see(
        self, prompt: str | Sequence[int] | Messages, images: Sequence[ImageSource] = (), *, chat: bool = False
    ) -> PicturedPrompt:
        """Read the images of a prompt, as `stream` takes it, which then takes what is returned. Raises what it does."""
        prompt, pictures = placed(prompt, images, chat)
        return seen(self.images, self.identity.target, self.encode(prompt, chat=chat), pictures, self.tokenizer)

    def encode(self, prompt: str | Sequence[int] | Messages, *, chat: bool = False) -> list[int]:
        """Return the token ids of a prompt, as `stream` takes it. UsageError for none, and for ids there are not."""
        check_kind(prompt)
        encoded: Any = prompt
        if isinstance(prompt, str):
            encoded = encode_prompt(self.tokenizer, prompt, chat, allow_special_tokens=self.allow_special_tokens)
        elif (messages := messages_of(prompt)) is not None:
            encoded = self.encode_messages(messages)
        tokens = checked_ids(encoded, self.vocab_size, self.tokenizer, self.identity.target)
        if not tokens:
            raise UsageError("the prompt is empty: it must have a token at least")
        return tokens

    def encode_messages(self, messages: list[dict[str, Any]]) -> list[int]:
        """The token ids of a conversation in the model's chat template. Raises UsageError where that refuses it."""
        return encode_messages(self.tokenizer, messages, allow_special_tokens=self.allow_special_tokens)

    def context_for(self, prompt_tokens: int) -> int | None:
        """How many tokens a text with a prompt of this length can hold: only longrope makes a difference."""
        return self.context_length

    def limit_of(self, prompt_tokens: int, options: GenerationOptions) -> int:
        """How many tokens may follow a prompt of this length: what is asked for, or what the context leaves.

        Raises UsageError where it leaves nothing.
        """
        context = self.context_for(prompt_tokens)
        room = options.max_new_tokens if context is None else context - prompt_tokens
        if room <= 0:
            raise UsageError(
                f"the prompt has {prompt_tokens} tokens and the context of {self.identity.target} holds "
                f"{context}: shorten the prompt by at least {1 - room} tokens"
            )
        return min(options.max_new_tokens, room)


def _finished(generations: Sequence[Generation]) -> list[Result]:
    """The results of generations, which may share passes."""
    for generation in generations:
        for _ in generation:
            pass
    return [generation.result() for generation in generations]


def _check_biases(options: GenerationOptions, model: TextModel) -> None:
    if (fault := bias_fault(options.logit_bias, model.vocab_size, model.lm_head_rows)) is not None:
        raise UsageError(f"logit_bias: {fault}")


def _with_adapter(options: GenerationOptions, adapters: Mapping[str, str], default: str | None) -> GenerationOptions:
    """The options with the adapter that they mean; None is none. Raises UsageError for one that is not loaded."""
    name = default if options.lora is None else options.lora
    name = None if name == "none" else name
    if name is not None and name not in adapters:
        known = f"there are {', '.join(adapters)}" if adapters else "none was loaded"
        raise UsageError(f"there is no adapter {name!r}: {known} (--lora NAME=FOLDER)")
    return replace(options, lora=name)
