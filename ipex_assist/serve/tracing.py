"""OpenTelemetry: a trace of each text, with a span each for the queue, the prompt and the tokens after the first."""

from __future__ import annotations

import importlib.util
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Receive, Scope, Send

from ipex_assist.env.errors import UsageError
from ipex_assist.env.versions import install_command
from ipex_assist.serve.backend import Finished, GenerationRequest, OutputChunk
from ipex_assist.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer

EXPORT_SECONDS = 5.0  # for a collector that does not answer
_parent: ContextVar[Context | None] = ContextVar("parent", default=None)  # of the request's caller


def check_packages() -> None:
    """Raise UsageError where OpenTelemetry's libraries are not installed."""
    missing = [name for name in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http") if not _is_here(name)]
    if missing:
        raise UsageError(f"--otel needs {' and '.join(missing)}: type {install_command('otel')}")


def _is_here(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a package around it
        return False


def collector(url: str) -> SpanExporter:
    """What sends spans to a collector: OTLP over HTTP."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    path = "" if url.rstrip("/").endswith("/v1/traces") else "/v1/traces"
    return OTLPSpanExporter(endpoint=url.rstrip("/") + path, timeout=EXPORT_SECONDS)


class Tracing:
    """What sends the spans of all models: one queue and one thread, so that all of them are sent before the end."""

    def __init__(self, exporter: SpanExporter) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create({"service.name": "ipex-assist", "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))

    def observe(self, model: str, request: GenerationRequest) -> _TracedGeneration:
        """See `Observer`: traces one text."""
        return _TracedGeneration(self._provider.get_tracer("ipex_assist"), model, request)

    def close(self) -> None:
        """Send what has not been sent; waits for the collector, but not long."""
        self._provider.force_flush(int(1000 * EXPORT_SECONDS))
        self._provider.shutdown()


class _TracedGeneration:
    """A text's spans, by OpenTelemetry's attributes of generative models where there are any.

    They are made when it has ended, by the times that it had.
    """

    def __init__(self, tracer: Tracer, model: str, request: GenerationRequest) -> None:
        self._tracer, self._model, self._request = tracer, model, request
        self._started = time.time_ns()
        self._first: int | None = None  # time of the first token
        self._result: dict[str, Any] | None = None

    def take(self, part: OutputChunk | Finished) -> None:
        """Note the first token, and the result."""
        if isinstance(part, Finished):
            self._result = part.result
        elif self._first is None and part.token_deltas:
            self._first = time.time_ns()

    def end(self, error: BaseException | None) -> None:
        """Make the spans."""
        from opentelemetry import trace

        ended = time.time_ns()
        options, first, result = self._request.options, self._first, self._result
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "text_completion" if self._request.inputs is None else "embeddings",
            "gen_ai.request.model": self._model,
            "gen_ai.request.max_tokens": options.max_new_tokens,
            "gen_ai.request.temperature": options.temperature if options.draws else 0.0,
            "gen_ai.usage.input_tokens": len(self._request.tokens),
        }
        text = self._tracer.start_span("text", context=_parent.get(), start_time=self._started, attributes=attributes)
        if isinstance(error, Exception):
            text.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
        if result is not None:
            text.set_attributes(_of_result(result))
        begun = first if first is None or result is None else first - int(1e9 * (result["ttft_s"] or 0.0))
        inside = trace.set_span_in_context(text)
        spans = [("queue", self._started, begun or ended)]
        if first is not None and begun is not None:
            spans += [("prompt", begun, first), ("tokens", first, ended)]
        for part, begin, end in spans:
            self._tracer.start_span(part, context=inside, start_time=begin).end(max(begin, end))
        text.end(ended)


def _of_result(result: dict[str, Any]) -> dict[str, Any]:
    if "draft" not in result:  # of texts that became vectors or scores
        return {"gen_ai.usage.output_tokens": 0}
    draft = result["draft"]
    counts = {
        "gen_ai.usage.output_tokens": result["new_tokens"],
        "gen_ai.response.finish_reasons": (result["stop_reason"],),
        "ipex_assist.cached_tokens": result["cached_tokens"],
        "ipex_assist.passes": draft["rounds"],
        "ipex_assist.drafted": draft["drafted"],
        "ipex_assist.accepted": draft["accepted"],
        "ipex_assist.speedup": result["speedup"],
    }
    return {name: value for name, value in counts.items() if value is not None}


class TraceParents:
    """ASGI middleware: texts belong to the trace of their request's `traceparent` header, if it has one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] == "http":
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            _parent.set(TraceContextTextMapPropagator().extract(headers))
        await self._app(scope, receive, send)
