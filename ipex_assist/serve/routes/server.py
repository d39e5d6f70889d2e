"""GET /v1/models, /health, /ready, /version and /metrics."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from ipex_assist.serve.errors import RETRY_SECONDS, ApiError, responses
from ipex_assist.serve.metrics import CONTENT_TYPE
from ipex_assist.serve.protocol.adapters import LoadedAdapter, Success
from ipex_assist.serve.protocol.common import AdapterScales
from ipex_assist.serve.protocol.models import Health, ModelCard, ModelList, Version
from ipex_assist.serve.service import Service
from ipex_assist.version import __version__


def _card(service: Service, name: str) -> ModelCard:
    facts, adapter = service.facts, service.adapter_of(name)
    return ModelCard(
        id=name,
        created=facts.created,
        root=facts.target if adapter is None else facts.adapters[adapter],
        parent=None if adapter is None else facts.name,
        assistant=facts.assistant,
        draft_head=facts.draft_head,
        precision=facts.precision,
        executor=facts.executor,
        max_model_len=facts.context_length,
        default_max_tokens=service.most_new_tokens(1, None),
    )


def router(service: Service) -> APIRouter:
    """All of them; what watches the server needs no key."""
    routes = APIRouter()

    @routes.get("/v1/models", responses=responses(401, 503))
    async def models() -> ModelList:
        """What is served."""
        return ModelList(data=[_card(service, name) for name in (*service.names(), *service.facts.adapters)])

    @routes.get("/v1/models/{model:path}", responses=responses(401, 404, 503))
    async def model(model: str) -> ModelCard:
        """One model, by its name."""
        service.check_model(model)
        return _card(service, model)

    @routes.get("/lora-adapters", responses=responses(401, 503))
    async def adapters() -> list[LoadedAdapter]:
        """The adapters, with the scales of requests that name them."""
        scales = service.adapter_scales
        paths = service.facts.adapters.items()
        return [LoadedAdapter(id=i, path=path, scale=scales[name]) for i, (name, path) in enumerate(paths)]

    @routes.post("/lora-adapters", responses=responses(400, 401, 503))
    async def set_adapters(body: AdapterScales) -> Success:
        """Set the scales of requests to come; an adapter that is not listed gets 0."""
        given = {service.checked_adapter(each.id): each.scale for each in body}
        service.adapter_scales.update({name: given.get(name, 0.0) for name in service.adapter_scales})
        return Success()

    @routes.get("/health")
    async def health() -> Health:
        """Whether the server lives: from its first moment on."""
        return Health(status="ok")

    @routes.get("/ready", responses=responses(503))
    async def ready() -> Health:
        """Whether it takes requests: 503 while models are loaded, and when it is about to end."""
        backend = service.backend
        if not backend.ready or backend.draining:
            why = "about to end" if backend.draining else "loading"
            raise ApiError(503, f"the server is {why}", code="not_ready", headers={"Retry-After": str(RETRY_SECONDS)})
        return Health(status="ready")

    @routes.get("/version")
    async def version() -> Version:
        """Of ipex-assist."""
        return Version(version=__version__)

    @routes.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.exposition(), media_type=CONTENT_TYPE)

    return routes
