"""The whole server application with scripted texts behind it, on a thread of the test."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import checkpoint_files
import uvicorn

from ipex_assist.serve.app import create_app
from ipex_assist.serve.backend import Finished, GenerationRequest, ModelFacts, OutputChunk, ServerStatistics, TokenDelta
from ipex_assist.serve.options import ServeOptions

# What the model says to a message that has this word: the tokens of each pass, the last of which is the target's own.
FOX = [["The"], [" quick", " brown", " fox"], [" jumps"], [" over", " the"], [" lazy", " dog", ".", "\n\n"]]
FOX += [["```", "python\n"], ["def", " add", "(a, b):\n"], ["    return", " a", " + b\n"], ["```", "\n\n"]]
FOX += [["- **one", "** and", " `two`\n"], ["- three"]]
EVIL = [
    ["<script>window.bad = 1</script>\n\n"],
    ['<img src="x" onerror="window.bad = 1">', "\n\n"],
    ["[click](javascript:window.bad=1)", " [data](data:text/html,<script>window.bad=1</script>)\n\n"],
    ["[mixed](JaVaScRiPt:window.bad=1) [vb](vbscript:x) [user](https://google.com@evil.example/)\n\n"],
    ['```html"><script>window.bad = 1</script>\n<b>bold</b>\n```\n\n'],
    ["[good](https://example.org/path) https://example.com/x."],
]
FORMULAS = [
    ["Euler: $e^{i", "\\pi} + 1", " = 0$, which costs $5 or $10.\n\n"],
    ["$$\n\\frac{1}{2}", "\n$$\n\n"],
    ["\\(x^2\\) and \\[ y \\] and $\\nonsense{$ and $\\href{javascript:window.bad=1}{z}$.\n\n"],
    ["a `$b$` and \\$c$ d."],
]
PONDER = [["<think>\n"], ["Is it", " <b>red"], ["</b>?\n</think>", "\n\n"], ["It is", " red."]]
SCRIPTS = {"fox": FOX, "ponder": PONDER, "formulas": FORMULAS, "evil": EVIL, "endless": [[" more", " and"]] * 100_000}


class Scripted:
    """A backend of one text for each word."""

    ready, draining = True, False
    facts = ModelFacts(
        name="tiny-chat",
        target="tiny-chat",
        assistant="tiny-draft",
        precision="fp32",
        executor="torch",
        context_length=4096,
        vocab_size=checkpoint_files.VOCAB_SIZE,
        created=0,
    )

    def __init__(self) -> None:
        self.tokenizer = checkpoint_files.tiny_tokenizer()
        self.requests: list[GenerationRequest] = []
        self.cancelled = threading.Event()

    def said(self) -> str:
        """The last prompt as text."""
        return str(self.tokenizer.decode(self.requests[-1].tokens))

    async def generate(
        self, request: GenerationRequest, *, timeout: float | None = None
    ) -> AsyncGenerator[OutputChunk | Finished, None]:
        """A pass every few milliseconds."""
        self.requests.append(request)
        prompt = self.said()
        word = max(SCRIPTS, key=lambda each: prompt.rfind(each))
        passes: list[list[str]] = []
        try:
            for texts in SCRIPTS[word][: request.options.max_new_tokens]:
                await asyncio.sleep(0.005 if word == "endless" else 0.001)
                passes.append(texts)
                pieces = [TokenDelta(text, n, n < len(texts) - 1) for n, text in enumerate(texts)]
                yield OutputChunk(pieces, None, 3 if len(passes) > 1 else 0, len(texts) - 1)
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled.set()
            raise
        yield Finished(self.result(request, passes))

    def result(self, request: GenerationRequest, passes: list[list[str]]) -> dict[str, Any]:
        """As `Result.as_dict()` has it."""
        count = sum(len(texts) for texts in passes)
        return {
            "text": "".join(text for texts in passes for text in texts),
            "tokens": [0] * count,
            "prompt_tokens": len(request.tokens),
            "new_tokens": count,
            "cached_tokens": 0,
            "stop_text": None,
            "ttft_s": 0.05,
            "decode_s": 0.5,
            "tokens_per_s": (count - 1) / 0.5,
            "speedup": 1.75,
            "stop_reason": "eos",
            "logprobs": None,
            "seed": None,
            "times": {"assistant": {"later_tokens": None, "later_s": None}},
            "draft": {"accepted_histogram": [1], "drafted_by_position": None, "accepted_by_position": None},
            "draft_head": None,
        }

    def statistics(self) -> ServerStatistics:
        """A server at work."""
        return ServerStatistics(
            waiting=3, running=2, engine={"prompt_tokens": 50, "prefix_tokens": 150}, blocks_used=16, blocks_total=64,
            slots=2, alive=2,
        )  # fmt: skip


@contextmanager
def served(**options: Any) -> Iterator[tuple[str, Scripted]]:
    """The application on a free port."""
    backend = Scripted()
    config = uvicorn.Config(create_app(backend, ServeOptions(**options)), port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/", backend
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
