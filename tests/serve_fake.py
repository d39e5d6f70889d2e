"""`ipex-assist serve` with engines that need no model (engine_fake.py) and two routes instead of OpenAI's API.

GET /health and /ready as ever; POST /text takes {"prompt": [token ids]} and streams a JSON line for each part.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import engine_fake
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from ipex_assist.serve.backend import Backend, Finished, GenerationRequest, NotReady, OutputChunk
from ipex_assist.serve.options import ServeOptions
from ipex_assist.speculative.options import GenerationOptions


def create_app(backend: Backend, options: ServeOptions) -> FastAPI:
    """In place of serve/app.py's."""
    app = FastAPI()

    @app.get("/health")
    async def health() -> str:
        return "alive"

    @app.get("/ready")
    async def ready() -> Response:
        return Response(status_code=200 if backend.ready else 503)

    @app.post("/text")
    async def text(request: Request) -> Response:
        prompt = (await request.json())["prompt"]
        items = backend.generate(GenerationRequest(prompt, GenerationOptions()))
        try:
            first = await anext(items)
        except NotReady as error:
            return Response(str(error), 503)

        async def lines() -> AsyncIterator[str]:
            yield line_of(first)
            try:
                async for item in items:
                    yield line_of(item)
            except Exception as error:
                yield json.dumps({"error": str(error)}) + "\n"
            finally:
                await items.aclose()

        return StreamingResponse(lines())

    return app


def line_of(item: OutputChunk | Finished) -> str:
    fields: Any = (
        item.result if isinstance(item, Finished) else {"text": "".join(piece.text for piece in item.token_deltas)}
    )
    return json.dumps(fields) + "\n"


def main() -> int:
    """The real command, with its engines, its routes and its tokenizer replaced."""
    from ipex_assist import cli
    from ipex_assist.serve.command import ServeCommand
    from ipex_assist.workers import placement

    placement.worker_program = lambda: [sys.executable, str(Path(engine_fake.__file__))]
    ServeCommand.load_tokenizer = lambda self: object()  # type: ignore[method-assign,assignment,return-value]
    app = ModuleType("ipex_assist.serve.app")
    app.create_app = create_app  # type: ignore[attr-defined]
    sys.modules["ipex_assist.serve.app"] = app
    return cli.main(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
