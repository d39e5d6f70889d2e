"""What all routes share: backend, tokenizer threads, and checks of model names and prompt lengths."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from ipex_assist.embedding.task import EMBED
from ipex_assist.native.rows import BLOCK
from ipex_assist.serve.backend import Backend, Busy, Finished, GenerationRequest, ModelFacts
from ipex_assist.serve.choice_runner import ChoiceRunner, seconds_left
from ipex_assist.serve.errors import ApiError, prompt_too_long
from ipex_assist.serve.grammar_checker import GrammarChecker
from ipex_assist.serve.image_hosts import ImageHosts
from ipex_assist.serve.metrics import ServerMetrics
from ipex_assist.serve.observed_backend import ObservedBackend, Observer
from ipex_assist.serve.options import ServeOptions
from ipex_assist.serve.pictured_messages import Address
from ipex_assist.serve.protocol.images import text_of
from ipex_assist.serve.requested_adapters import RequestedAdapters
from ipex_assist.serve.token_bytes import TokenBytes
from ipex_assist.speculative.choosing.grammar import GrammarSpec
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.tokenization.tokenizer import check_text, checked_ids, encode, encode_messages
from ipex_assist.version import __version__

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_NAMES = 20  # of models in a message
DOWNLOADS = 8  # images that are fetched at a time
THREADS = 4  # for tokenizers and chat templates, outside the event loop

T = TypeVar("T")


class Service:
    """Shared state of the routes. Expensive methods run in a thread; all may raise ApiError, NotReady or UsageError."""

    def __init__(
        self,
        backend: Backend,
        options: ServeOptions,
        metrics: ServerMetrics | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        """metrics: those of the backend, where it has had a service before. observers: of its generations."""
        self.options = options
        self.metrics = metrics or ServerMetrics(backend)
        self.backend = ObservedBackend(backend, [self.metrics.observe, *observers])
        self.adapters = RequestedAdapters(lambda: self.facts.adapters, self.names)
        self._grammars = GrammarChecker(most=options.max_queue)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tokenizer")
        self._downloads = ThreadPoolExecutor(DOWNLOADS, thread_name_prefix="images")

    @property
    def facts(self) -> ModelFacts:
        """The served model. Raises NotReady before it is loaded."""
        return self.backend.facts

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The target's tokenizer. Raises NotReady before it is loaded."""
        return self.backend.tokenizer

    @cached_property
    def token_texts(self) -> TokenBytes:
        """Bytes of single tokens."""
        return TokenBytes(self.tokenizer)

    @cached_property
    def fingerprint(self) -> str:
        """system_fingerprint: changes with everything that may change outputs: model, precision, executor, version."""
        facts = self.facts
        names = (facts.target, facts.precision, facts.executor, __version__)
        return "fp_" + hashlib.sha256("\0".join(names).encode()).hexdigest()[:10]

    def close(self) -> None:
        """Stop the threads and the grammar process."""
        self._grammars.close()
        for threads in (self._threads, self._downloads):
            threads.shutdown(wait=False, cancel_futures=True)

    async def in_thread(self, work: Callable[..., T], *arguments: Any, **more: Any) -> T:
        """Run `work` in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *arguments, **more))

    def names(self) -> tuple[str, ...]:
        """All names of the model."""
        return tuple(dict.fromkeys((self.facts.name, *self.options.served_model_name)))

    def check_model(self, name: str | None) -> None:
        """Raise 404 for a model that is not served; None is the served one."""
        names = (*self.names(), *self.facts.adapters)
        if name is not None and name not in names:
            raise unknown_model(name, names)

    def check_task(self, writes: bool = True) -> None:
        """Raise 400 where the model does another thing than an endpoint's. writes: text; else vectors or scores."""
        embedding, name = self.facts.embedding, self.facts.name
        if writes and embedding is not None:
            path = "/v1/embeddings" if embedding.task == EMBED else "/v1/rerank"
            raise ApiError(
                400,
                f"{name} writes no text here: ask {path}, or start the server with --task generate if it can write",
                code="wrong_task",
            )
        if not writes and embedding is None:
            raise ApiError(
                400,
                f"{name} writes text here, and gives neither vectors nor scores: start one with an embedding model or "
                "a reranker, or this with --task embed if its last token's state is what you want",
                code="wrong_task",
            )

    @cached_property
    def _longest_token(self) -> int:
        """Length of the longest token, in characters or bytes."""
        return max(map(len, self.tokenizer.get_vocab()), default=1)

    def check_characters(self, count: int) -> None:
        """Raise 400 for a text that is too long whatever its tokens are, without tokenizing it."""
        least = -(-count // self._longest_token)
        most, reason = self._prompt_limit()
        if most is not None and least > most:
            raise prompt_too_long(least, most, reason, least=True)

    async def encode(self, prompt: str, add_special_tokens: bool = True) -> list[int]:
        """Encode a text."""
        self.check_characters(len(prompt))

        def work() -> list[int]:
            check_text(prompt)
            return encode(self.tokenizer, prompt, add_special_tokens=add_special_tokens)

        return await self.in_thread(work)

    async def decode(self, tokens: Sequence[int]) -> str:
        """Decode token ids, including special tokens."""
        return str(await self.in_thread(self.tokenizer.decode, list(tokens)))

    async def encode_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Encode a conversation by the chat template, within the template's time limit. variables: of the template."""
        self.check_characters(sum(len(text_of(message["content"])) for message in messages))
        allow = self.options.allow_special_tokens
        return await self.in_thread(
            encode_messages, self.tokenizer, messages, tools, allow_special_tokens=allow, variables=variables
        )

    async def contents(self, images: Sequence[Address]) -> list[bytes]:
        """What images of a request hold; those elsewhere are fetched, several at a time. ApiError where that fails."""
        loop, hosts = asyncio.get_running_loop(), ImageHosts(self.options.allow_image_hosts)
        return await asyncio.gather(
            *(
                loop.run_in_executor(self._threads if each.is_here else self._downloads, each.content, hosts)
                for each in images
            )
        )

    async def image_tokens(self, tokens: list[int], images: Sequence[bytes], deadline: float) -> list[int]:
        """The tokens with those of images in their places, which an engine reads; it keeps their rows for the answer.

        Raises what `Backend.generate` does.
        """
        if not images:
            return tokens
        asked = GenerationRequest(tokens, GenerationOptions(), images=tuple(images), tokens_only=True)
        async with ChoiceRunner(self.backend.generate, [asked], deadline) as choices:
            event = await choices.next()
        assert event is not None
        assert isinstance(event.output, Finished)
        return [*event.output.result["prompt"]]

    def deadline(self) -> float:
        """When a request that arrives now must have been answered, by the clock of the event loop."""
        return asyncio.get_running_loop().time() + self.options.timeout

    async def checked(self, grammar: GrammarSpec | None, deadline: float) -> GrammarSpec | None:
        """Return the grammar. Raises InvalidField if it cannot be used, or takes more than a second to try, Busy if too
        many others wait, TimeoutError after the request's deadline."""
        try:
            return await self._grammars.checked(grammar, seconds_left(deadline))
        except Busy:
            self.metrics.count_full()
            raise

    def check_prompt(self, tokens: Sequence[int]) -> list[int]:
        """Return the prompt's token ids, checked. Raises 400 with the numbers if it is too long."""
        facts, count = self.facts, len(tokens)
        if not count:
            raise ApiError(400, "the prompt is empty: it must have a token at least")
        most, reason = self._prompt_limit()
        if most is not None and count > most:
            raise prompt_too_long(count, most, reason)
        return checked_ids(
            tokens, facts.vocab_size, self.tokenizer, facts.name
        )  # after the length check, so that it is bounded

    def _prompt_limit(self) -> tuple[int | None, str]:
        """How many tokens a prompt may have, and why; context and memory must hold a token of the answer, too."""
        context, memory = self.facts.context_length, self.memory_tokens()
        limits = [
            (None if context is None else context - 1, ", and one of the answer"),
            (self.options.max_prompt, ", as this server is set up"),
            (None if memory is None else memory - 1, ", and one of the answer, by this server's memory for them"),
        ]
        return min(((limit, why) for limit, why in limits if limit is not None), default=(None, ""))

    def most_new_tokens(self, prompt: int, wanted: int | None) -> int:
        """Return max_new_tokens after `prompt` tokens: `wanted` or the default, as far as context and memory go."""
        limits = [limit - prompt for limit in (self.facts.context_length, self.memory_tokens()) if limit is not None]
        return max(1, min([*limits, wanted or self.options.max_new_tokens]))

    def memory_tokens(self) -> int | None:
        """Tokens that the KV memory of every engine holds; None if unknown."""
        least = self.backend.statistics().blocks_least
        return None if least is None else least * BLOCK


def unknown_model(name: str, known: Sequence[str]) -> ApiError:
    """404 for a model that is not served."""
    shown = ", ".join(known[:MOST_NAMES]) + (f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else "")
    return ApiError(
        404, f"there is no model {name[:200]!r} here; there is {shown}", param="model", code="model_not_found"
    )
