"""The ASGI application: routes, error handlers, authentication and limits."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware.cors import CORSMiddleware

from ipex_assist.serve.allowed_hosts import AllowedHosts, allowed_hosts
from ipex_assist.serve.api_keys import ApiKeys, Authentication, is_open
from ipex_assist.serve.backend import Backend, NotReady
from ipex_assist.serve.errors import add_error_handlers
from ipex_assist.serve.held_models import HeldModels
from ipex_assist.serve.middleware import BodyLimit, OneLength, RequestIds, RootPath
from ipex_assist.serve.options import ServeOptions
from ipex_assist.serve.page import add_page
from ipex_assist.serve.protocol.common import TOKEN_ID
from ipex_assist.serve.routes import completions, embeddings, messages, responses, server, tokens
from ipex_assist.serve.served_models import OneModel, ServedModels
from ipex_assist.serve.service import Service
from ipex_assist.serve.tracing import TraceParents, Tracing, collector
from ipex_assist.version import __version__

DESCRIPTION = (
    "OpenAI's and Anthropic's API, by a model and its draft; fields beyond theirs are transformers', vLLM's or "
    "llama.cpp's."
)


def create_app(backend: Backend, options: ServeOptions) -> FastAPI:
    """Create the ASGI application of one model. Raises UsageError if the API key file cannot be read."""
    if options.otel is None:
        return app_of(OneModel(Service(backend, options)), options)
    tracing = Tracing(collector(options.otel))
    return app_of(OneModel(Service(backend, options, observers=[tracing.observe])), options, tracing.close)


def app_of(models: ServedModels, options: ServeOptions, finish: Callable[[], None] | None = None) -> FastAPI:
    """Create the ASGI application. finish: called in a thread at the end. Raises as `create_app` does."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        models.close()
        if finish is not None:
            await asyncio.to_thread(finish)

    # A documentation page only where it is asked for, as it loads scripts from another server; /openapi.json is served.
    app = FastAPI(
        title="ipex-assist",
        version=__version__,
        description=DESCRIPTION,
        docs_url="/docs" if options.docs else None,
        redoc_url=None,
        lifespan=lifespan,
    )
    add_error_handlers(app)
    for each in (completions, responses, messages, embeddings, tokens, server):
        app.include_router(each.router(models))
    add_page(app)
    keys = ApiKeys(options.keys())
    app.add_middleware(HeldModels)
    app.add_middleware(BodyLimit, limit=options.max_body, seconds=options.timeout)
    app.add_middleware(Authentication, keys=keys)
    if options.cors_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(options.cors_origin),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After"],
        )
    if (hosts := allowed_hosts(options, keys=bool(keys))) is not None:
        app.add_middleware(AllowedHosts, names=hosts)
    app.add_middleware(OneLength)
    app.add_middleware(RequestIds)
    if options.otel is not None:
        app.add_middleware(TraceParents)
    if options.root_path is not None:
        app.add_middleware(RootPath, prefix=options.root_path)
    # Made once: it takes a tenth of a second, in which nobody else is answered, and needs no key.
    made = functools.cache(functools.partial(_openapi, app, options, bool(keys)))
    app.openapi = lambda: made(_vocab_size(models))  # type: ignore[method-assign]
    return app


def _vocab_size(models: ServedModels) -> int | None:
    """Of the one model, once it is loaded."""
    if isinstance(models, OneModel):
        with contextlib.suppress(NotReady):
            return models.service.facts.vocab_size
    return None


def _openapi(app: FastAPI, options: ServeOptions, keys: bool, vocab_size: int | None) -> dict[str, Any]:
    """The OpenAPI document of this server: with its vocabulary size and security; invalid bodies get 400, not 422."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        servers=[{"url": options.root_path or "/"}],
    )
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            if keys and not is_open(path):
                operation["security"] = [{"key": []}]
            elif not keys:
                operation["responses"].pop("401", None)
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    if keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    if vocab_size is not None:
        _limit_ids(document, vocab_size)
    return document


def _limit_ids(node: Any, vocab_size: int) -> None:
    """Set the maximum of every token id in the document."""
    if isinstance(node, dict):
        if node.pop(TOKEN_ID, False):
            node.pop("exclusiveMaximum", None)
            node["maximum"] = vocab_size - 1
        for value in node.values():
            _limit_ids(value, vocab_size)
    elif isinstance(node, list):
        for value in node:
            _limit_ids(value, vocab_size)
