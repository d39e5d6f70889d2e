"""GET /v1/models, /health, /ready, /version and /metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from ipex_assist.serve.errors import RETRY_SECONDS, ApiError, responses
from ipex_assist.serve.metrics import CONTENT_TYPE
from ipex_assist.serve.protocol.adapters import LoadedAdapter, Success
from ipex_assist.serve.protocol.common import AdapterScales
from ipex_assist.serve.protocol.models import Health, ModelCard, ModelList, Version
from ipex_assist.serve.routes.other_methods import refuse_other_methods
from ipex_assist.serve.served_models import ModelEntry, ServedModels
from ipex_assist.serve.service import unknown_model
from ipex_assist.version import __version__


def _card(entry: ModelEntry) -> ModelCard:
    facts, about = entry.facts, dict[str, Any]()
    if facts is not None:
        about = {
            name: getattr(facts, name) for name in ("assistant", "draft_head", "precision", "executor", "sampling")
        }
        about["max_model_len"] = facts.context_length
    return ModelCard(
        id=entry.name,
        created=entry.created,
        root=entry.source,
        parent=entry.parent,
        loaded=facts is not None,
        size=entry.size,
        default_max_tokens=entry.default_max_tokens,
        **about,
    )


def router(models: ServedModels) -> APIRouter:
    """All of them."""
    routes = APIRouter()

    @routes.get("/v1/models", responses=responses(401, 503))
    async def list_models() -> ModelList:
        """What is served."""
        return ModelList(data=[_card(entry) for entry in models.entries()])

    @routes.get("/v1/models/{model:path}", responses=responses(401, 404, 503))
    async def model(model: str) -> ModelCard:
        """One model, by its name."""
        for entry in models.entries():
            if entry.name == model:
                return _card(entry)
        raise unknown_model(model, [entry.name for entry in models.entries()])

    _add_adapters(routes, models)
    _add_monitoring(routes, models)
    return routes


def _add_adapters(routes: APIRouter, models: ServedModels) -> None:
    """/lora-adapters, as llama-server has it."""

    @routes.get("/lora-adapters", responses=responses(401, 503))
    async def adapters() -> list[LoadedAdapter]:
        """The adapters, with the scales of requests that name them."""
        if (service := models.adapted) is None:
            return []
        chosen = service.adapters
        folders = enumerate(chosen.folders.items())
        return [LoadedAdapter(id=i, path=path, scale=chosen.scale(name)) for i, (name, path) in folders]

    @routes.post("/lora-adapters", responses=responses(400, 401, 503))
    async def set_adapters(body: AdapterScales) -> Success:
        """Set the scales of requests to come; an adapter that is not listed gets 0."""
        if (service := models.adapted) is None:
            raise ApiError(400, "this is a server of many models, which have no adapters here")
        service.adapters.set_scales(body)
        return Success()

    refuse_other_methods(routes, "/lora-adapters", "GET", "POST")


def _add_monitoring(routes: APIRouter, models: ServedModels) -> None:
    """What watches the server, and needs no key."""

    @routes.get("/health")
    async def health() -> Health:
        """Whether the server lives: from its first moment on."""
        return Health(status="ok")

    @routes.get("/ready", responses=responses(503))
    async def ready() -> Health:
        """Whether it takes requests: 503 while models are loaded, and when it is about to end."""
        if not models.ready or models.draining:
            why = "about to end" if models.draining else "loading"
            raise ApiError(503, f"the server is {why}", code="not_ready", headers={"Retry-After": str(RETRY_SECONDS)})
        return Health(status="ready")

    @routes.get("/version")
    async def version() -> Version:
        """Of ipex-assist."""
        return Version(version=__version__)

    @routes.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(models.metrics(), media_type=CONTENT_TYPE)
