"""A backend without models: it writes what it was told, in passes with drafts, through the real stream of text."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import lru_cache
from typing import Any

import httpx
from tiny_tokenizers import TOKENS, tiny_tokenizer
from transformers import PreTrainedTokenizerFast

from ipex_assist.executors.interface import TokenLogprob
from ipex_assist.generation.result import Identity
from ipex_assist.generation.stream import Generation, OwnRounds
from ipex_assist.serve.app import create_app
from ipex_assist.serve.backend import (
    Busy,
    Finished,
    GenerationRequest,
    ModelFacts,
    NotReady,
    OutputChunk,
    ServerStatistics,
    TokenDelta,
)
from ipex_assist.serve.connections import ConnectionLimits
from ipex_assist.serve.listen import listen
from ipex_assist.serve.options import ServeOptions
from ipex_assist.serve.server import make_server
from ipex_assist.speculative.round import Round

REPLY = "The lazy dog's café: 12345 foxes jump."
EOS = 2  # <|im_end|>
DRAFTED, ACCEPTED = 3, (2, 0, 3, 1)  # drafted tokens of each pass after the first, and those accepted, in turns
VOCAB_SIZE = TOKENS + 20

tokenizer = lru_cache(tiny_tokenizer)


class FakeBackend:
    """Answers every request with `reply`, whose end is an end-of-text token, unless a limit or stop text comes before.

    pace: seconds between passes. error: raised before the pass `error_at`. room: texts at a time; more are Busy.
    requests: all that were asked for. cancelled: texts whose generator was closed before its end.
    """

    def __init__(self, reply: str = REPLY, *, context_length: int | None = 256) -> None:
        self.reset(reply, context_length=context_length)

    def reset(self, reply: str = REPLY, *, context_length: int | None = 256) -> None:
        """Be as new."""
        self.reply, self.pace, self.room = reply, 0.0, 1 << 30
        self.error: Callable[[], Exception] | None = None
        self.error_at = 0
        self.ready, self.draining = True, False
        self.requests: list[GenerationRequest] = []
        self.timeouts: list[float | None] = []
        self.running = self.most_running = self.cancelled = 0
        self.figures = ServerStatistics(slots=1, alive=1)
        self._facts = ModelFacts(
            name="tiny",
            target="folder/tiny",
            assistant="tiny-draft",
            precision="bf16",
            executor="native",
            context_length=context_length,
            vocab_size=VOCAB_SIZE,
            lm_head_rows=VOCAB_SIZE - 4,
            created=1000,
        )

    @property
    def facts(self) -> ModelFacts:
        if not self.ready and not self.draining:
            raise NotReady("the models are being loaded")
        return self._facts

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        if not self.ready and not self.draining:
            raise NotReady("the models are being loaded")
        return tokenizer()

    def statistics(self) -> ServerStatistics:
        return self.figures

    async def generate(
        self, request: GenerationRequest, *, timeout: float | None = None
    ) -> AsyncGenerator[OutputChunk | Finished, None]:
        if not self.ready or self.draining:
            raise NotReady("the server is about to end")
        if self.running >= self.room:
            raise Busy(f"{self.running} requests are waiting", 0.02)
        self.requests.append(request)
        self.timeouts.append(timeout)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        ended = False
        try:
            async for part in self._parts(request, timeout):
                ended = isinstance(part, Finished)
                yield part
        except Exception:
            ended = True
            raise
        finally:
            self.running -= 1
            self.cancelled += not ended

    async def _parts(
        self, request: GenerationRequest, timeout: float | None
    ) -> AsyncGenerator[OutputChunk | Finished, None]:
        options = request.options
        generation = Generation(
            OwnRounds(self._rounds(request)),
            tokenizer(),
            Identity("folder/tiny", "tiny-draft", "bf16", "bf16", "native"),
            prompt_tokens=len(request.tokens),
            max_new_tokens=options.max_new_tokens,
            eos=frozenset() if options.ignore_eos else frozenset({EOS}),
            stop=options.stop,
            assisted=options.may_draft,
            seed=options.seed,
        )
        started = time.monotonic()
        for number, chunk in enumerate(generation):
            await asyncio.sleep(self.pace)
            if timeout is not None and time.monotonic() - started > timeout:
                raise TimeoutError(f"the text took longer than {timeout:g} s")
            if self.error is not None and number == self.error_at:
                raise self.error()
            pieces = [
                TokenDelta(piece.text, token, piece.drafted)
                for piece, token in zip(chunk.pieces, chunk.tokens, strict=True)
            ]
            yield OutputChunk(pieces, chunk.logprobs, chunk.round.drafted, chunk.round.accepted)
        yield Finished(generation.result().as_dict())

    def _rounds(self, request: GenerationRequest) -> Iterator[Round]:
        tokens = [*tokenizer()(self.reply)["input_ids"], EOS]
        rest, number = itertools.cycle(tokens), 0
        while True:
            drafted = DRAFTED if number and request.options.may_draft else 0
            accepted = ACCEPTED[number % len(ACCEPTED)] if drafted else 0
            new = [next(rest) for _ in range(accepted + 1)]
            listed = None if request.options.logprobs is None else [choice(t, request.options.logprobs) for t in new]
            top = request.options.prompt_logprobs
            prompt = None if number or top is None else [choice(token, top) for token in request.tokens[1:]]
            times = {"draft_s": 0.001, "target_s": 0.002}
            yield Round(new, drafted, accepted, **times, prompt=not number, logprobs=listed, prompt_logprobs=prompt)
            number += 1


def choice(token: int, top: int) -> TokenLogprob:
    """A made-up log-probability, and the likeliest tokens: this one and those with the next ids."""
    return TokenLogprob(token, -token / 100, [((token + i) % TOKENS, -(token + i) / 100) for i in range(top)])


@contextlib.contextmanager
def serving(
    backend: Any,
    *,
    limits: ConnectionLimits | None = None,
    parser: str | None = None,
    listener: socket.socket | None = None,
    **options: Any,
) -> Iterator[httpx.Client]:
    """A client of a real server of its own, which ends with the context. parser: httptools or h11."""
    settings = ServeOptions.of(**{"port": 0, **options})
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    limits = limits or ConnectionLimits(body=settings.timeout)
    server = make_server(create_app(backend, settings), limits, parser, settings.tls())
    server.config.timeout_graceful_shutdown = 1
    listener = listener or listen(settings)
    port = listener.getsockname()[1]
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.005)
        keys = options.get("api_key", ())
        headers = {"Authorization": f"Bearer {keys[0]}"} if keys else {}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=20, verify=False) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(10)
