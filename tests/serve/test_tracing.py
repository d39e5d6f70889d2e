"""Traces of texts: a span each for queue, prompt and tokens, under the caller's own, with draft counts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import aclosing
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from fake_backend import FakeBackend, serving

export = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")

from ipex_assist.serve import app  # noqa: E402
from ipex_assist.serve.backend import Failed, GenerationRequest, NotReady  # noqa: E402
from ipex_assist.serve.observed_backend import ObservedBackend  # noqa: E402
from ipex_assist.serve.tracing import Tracing  # noqa: E402
from ipex_assist.speculative.options import GenerationOptions  # noqa: E402

pytestmark = pytest.mark.one_stack

HI: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = export.InMemorySpanExporter()
    made.shutdown = lambda: None  # what it holds stays
    monkeypatch.setattr(app, "collector", lambda url: made)
    return made


def spans_of(exporter: Any, backend: FakeBackend, headers: dict[str, str] | None = None, **body: Any) -> Sequence[Any]:
    with serving(backend, otel="http://127.0.0.1:1") as client:
        client.post("/v1/chat/completions", json=HI | body, headers=headers)
    return exporter.get_finished_spans()


def test_the_spans_of_a_text(exporter: Any) -> None:
    spans = {span.name: span for span in spans_of(exporter, FakeBackend(), {"traceparent": CALLER})}
    text = spans["text"]
    assert spans.keys() == {"text", "queue", "prompt", "tokens"}
    assert format(text.context.trace_id, "032x") == CALLER.split("-")[1]
    assert format(text.parent.span_id, "016x") == CALLER.split("-")[2]
    for name in ("queue", "prompt", "tokens"):
        assert spans[name].parent.span_id == text.context.span_id
        assert text.start_time <= spans[name].start_time <= spans[name].end_time <= text.end_time
    assert spans["queue"].end_time == spans["prompt"].start_time
    assert spans["prompt"].end_time == spans["tokens"].start_time
    told = text.attributes
    assert told["gen_ai.request.model"] == "tiny"
    assert told["gen_ai.request.temperature"] == 0
    assert told["gen_ai.usage.input_tokens"] > 0
    assert told["ipex_assist.drafted"] > told["ipex_assist.accepted"] > 0
    assert told["gen_ai.response.finish_reasons"] == ("eos",)


def test_each_text_and_each_failure(exporter: Any) -> None:
    """Two texts of a request are two traces' spans; one that fails says by what."""
    assert sum(span.name == "text" for span in spans_of(exporter, FakeBackend(), n=2)) == 2
    exporter.clear()
    failing = FakeBackend()
    failing.error = lambda: RuntimeError("oh")
    (text,) = [span for span in spans_of(exporter, failing) if span.name == "text"]
    assert not text.status.is_ok
    assert "oh" in text.status.description


def read(backend: Any) -> None:
    """A text of it, to the end."""

    async def main() -> None:
        async with aclosing(backend.generate(GenerationRequest([5], GenerationOptions(max_new_tokens=2)))) as parts:
            async for _ in parts:
                pass

    asyncio.run(main())


def test_the_spans_of_many_models_arrive() -> None:
    """Finds an end of the first model's tracing that closes what sends the others' spans."""
    made = export.InMemorySpanExporter()
    tracing = Tracing(made)
    backends = [ObservedBackend(FakeBackend(), [tracing.observe]) for _ in range(2)]
    for backend in backends:
        read(backend)
    tracing.close()
    assert sum(span.name == "text" for span in made.get_finished_spans()) == 2


def test_a_text_whose_model_is_gone(exporter: Any) -> None:
    """Its client is told why it failed, and not that the model is not loaded; its span has the model's name."""
    backend = FakeBackend()

    def fail() -> Exception:
        type(backend).facts = property(lambda self: (_ for _ in ()).throw(NotReady("not loaded")))
        return Failed("the engines have died")

    known = type(backend).facts
    backend.error = fail
    tracing = Tracing(exporter)
    try:
        with pytest.raises(Failed, match="the engines have died"):
            read(ObservedBackend(backend, [tracing.observe]))
    finally:
        type(backend).facts = known
    tracing.close()
    (text,) = [span for span in exporter.get_finished_spans() if span.name == "text"]
    assert text.attributes["gen_ai.request.model"] == "tiny"


def test_a_collector_over_http() -> None:
    """Spans arrive at a collector's /v1/traces before the server has ended."""
    paths = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        try:
            with serving(FakeBackend(), otel=f"http://127.0.0.1:{listening.server_address[1]}") as client:
                assert client.post("/v1/chat/completions", json=HI).status_code == 200
        finally:
            listening.shutdown()
    assert paths == ["/v1/traces"]
