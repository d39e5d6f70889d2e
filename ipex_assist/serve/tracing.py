"""OpenTelemetry: a trace of each text, with a span each for the queue, the prompt and the tokens after the first."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp, Receive, Scope, Send

from ipex_assist.env.errors import UsageError
from ipex_assist.serve.backend import Backend, Finished, GenerationRequest, ModelFacts, OutputChunk, ServerStatistics
from ipex_assist.version import __version__

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Tracer
    from transformers import PreTrainedTokenizerBase

EXPORT_SECONDS = 5.0  # for a collector that does not answer
_parent: ContextVar[Context | None] = ContextVar("parent", default=None)  # of the request's caller


def check_packages() -> None:
    """Raise UsageError where OpenTelemetry's libraries are not installed."""
    missing = [name for name in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http") if not _is_here(name)]
    if missing:
        raise UsageError(f"--otel needs {' and '.join(missing)}: type pip install 'ipex-assist[otel]'")


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

    def traced(self, backend: Backend) -> TracedBackend:
        """A backend whose texts are traced."""
        return TracedBackend(backend, self._provider.get_tracer("ipex_assist"))

    def close(self) -> None:
        """Send what has not been sent; waits for the collector, but not long."""
        self._provider.force_flush(int(1000 * EXPORT_SECONDS))
        self._provider.shutdown()


class TracedBackend:
    """A backend whose texts are traced, by OpenTelemetry's attributes of generative models where there are any."""

    def __init__(self, backend: Backend, tracer: Tracer) -> None:
        self._backend, self._tracer = backend, tracer

    @property
    def ready(self) -> bool:
        return self._backend.ready

    @property
    def draining(self) -> bool:
        return self._backend.draining

    @property
    def facts(self) -> ModelFacts:
        return self._backend.facts

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._backend.tokenizer

    def statistics(self) -> ServerStatistics:
        return self._backend.statistics()

    async def generate(
        self, request: GenerationRequest, *, timeout: float | None = None
    ) -> AsyncGenerator[OutputChunk | Finished, None]:
        """`Backend.generate`; its spans are made when the text has ended, by the times that it had."""
        started, first, result, error = time.time_ns(), None, None, None
        name = self.facts.name  # now: a model whose engines have died has no facts when its text ends
        try:
            async with aclosing(self._backend.generate(request, timeout=timeout)) as parts:
                async for part in parts:
                    if isinstance(part, Finished):
                        result = part.result
                    elif first is None and part.token_deltas:
                        first = time.time_ns()
                    yield part
        except Exception as caught:
            error = caught
            raise
        finally:
            self._trace(name, request, started, first, result, error)

    def _trace(
        self,
        name: str,
        request: GenerationRequest,
        started: int,
        first: int | None,
        result: dict[str, Any] | None,
        error: Exception | None,
    ) -> None:
        """name: the model's. Times are nanoseconds since 1970; first: of the first token, None where there was none."""
        from opentelemetry import trace

        ended = time.time_ns()
        options = request.options
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "text_completion" if request.inputs is None else "embeddings",
            "gen_ai.request.model": name,
            "gen_ai.request.max_tokens": options.max_new_tokens,
            "gen_ai.request.temperature": options.temperature if options.do_sample else 0.0,
            "gen_ai.usage.input_tokens": len(request.tokens),
        }
        text = self._tracer.start_span("text", context=_parent.get(), start_time=started, attributes=attributes)
        if error is not None:
            text.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
        if result is not None:
            text.set_attributes(_of_result(result))
        begun = first if first is None or result is None else first - int(1e9 * (result["ttft_s"] or 0.0))
        inside = trace.set_span_in_context(text)
        spans = [("queue", started, begun or ended)]
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
