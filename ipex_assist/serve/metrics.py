"""Prometheus metrics, by vLLM's names where vLLM has them, so that dashboards and load generators work."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ipex_assist.serve.backend import Backend, Busy, Finished, GenerationRequest, NotReady, OutputChunk

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MODEL = "model_name"
# Histogram buckets are vLLM's, so that its dashboards work.
_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_S = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.075),
    *(0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 40.0, 80.0),
)
_REQUEST_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
_TOKENS = tuple(float(number * 10**power) for power in range(7) for number in (1, 2, 5))
_REASONS = {"eos": "stop", "stop": "stop", "length": "length", "context": "length", "interrupted": "abort"}


class ServerMetrics:
    """Counts generations that it observes, and reads the backend's statistics on each scrape."""

    def __init__(self, backend: Backend, name: str = "") -> None:
        """name: of the model while it is not loaded."""
        self._backend, self._name = backend, name
        self._registry = CollectorRegistry()
        self._registry.register(_EngineFigures(backend, name))
        self.drafts = self._counter("spec_decode_num_drafts", "Passes that verified drafted tokens")
        self.drafted = self._counter("spec_decode_num_draft_tokens", "Drafted tokens")
        self.accepted = self._counter("spec_decode_num_accepted_tokens", "Drafted tokens that were accepted")
        self.accepted_at = self._counter(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted tokens by their position in the draft", "position"
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens, including those found in the prefix cache")
        self.new_tokens = self._counter("generation_tokens", "Generated tokens")
        self.ended = self._counter("request_success", "Finished requests, by the reason", "finished_reason")
        self.first_token_s = self._histogram(
            "time_to_first_token_seconds", "From the request to its first token", _FIRST_TOKEN_S
        )
        self.token_s = self._histogram("inter_token_latency_seconds", "Time of each token after the first", _TOKEN_S)
        self.mean_token_s = self._histogram(
            "request_time_per_output_token_seconds", "Mean time of a text's tokens after the first", _TOKEN_S
        )
        self.request_s = self._histogram("e2e_request_latency_seconds", "From the request to its end", _REQUEST_S)
        self.prompts = self._histogram("request_prompt_tokens", "Tokens of a prompt", _TOKENS)
        self.texts = self._histogram("request_generation_tokens", "Generated tokens of a text", _TOKENS)
        self._full = Counter(
            "ipex_assist:queue_full", "Requests refused because a queue was full", [_MODEL],
            registry=self._registry,
        )  # fmt: skip

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"vllm:{name}", meaning, [_MODEL, *labels], registry=self._registry)

    def _histogram(self, name: str, meaning: str, bounds: tuple[float, ...]) -> Histogram:
        return Histogram(f"vllm:{name}", meaning, [_MODEL], buckets=bounds, registry=self._registry)

    @staticmethod
    def exposition(models: Sequence[ServerMetrics]) -> bytes:
        """The exposition text of these models' metrics. Draft counters are present from the start, as zeros."""
        for model in models:
            if name := _model_name(model._backend, model._name):
                for each in (model.drafts, model.drafted, model.accepted, model.prompt_tokens, model.new_tokens):
                    each.labels(name)
        return generate_latest(_Merged([model._registry for model in models]))  # type: ignore[arg-type]

    def observe(self, model: str, request: GenerationRequest) -> _CountedGeneration:
        """See `Observer`: counts one generation."""
        return _CountedGeneration(self, model, request)

    def count_full(self) -> None:
        """Count a request that a full queue refused."""
        self._full.labels(self._backend.facts.name).inc()


class _CountedGeneration:
    """The metrics of one generation, counted as its parts come."""

    def __init__(self, metrics: ServerMetrics, model: str, request: GenerationRequest) -> None:
        self._metrics, self._model, self._request = metrics, model, request
        self._started = self._last = time.perf_counter()
        self._first, self._tokens, self._reason = 0.0, 0, "abort"

    def take(self, part: OutputChunk | Finished) -> None:
        """Count the tokens of a chunk, or the texts that became vectors or scores."""
        if isinstance(part, Finished):
            self._reason = _REASONS.get(part.result["stop_reason"], "error")
            if self._request.inputs is not None:
                self._count_prompts(self._request.inputs.lengths)
        elif part.token_deltas:
            now = time.perf_counter()
            if not self._tokens:
                self._first = now
                self._metrics.first_token_s.labels(self._model).observe(now - self._started)
                self._count_prompts([len(self._request.tokens)])
            self._count_chunk(part, now - self._last)
            self._tokens, self._last = self._tokens + len(part.token_deltas), now

    def end(self, error: BaseException | None) -> None:
        """Count how it ended; one that was cancelled before its first token has not begun."""
        if isinstance(error, Busy):
            self._metrics.count_full()
        elif isinstance(error, Exception):
            self._reason = "error"
        if not self._tokens and self._reason == "abort":
            return
        metrics, model = self._metrics, self._model
        metrics.ended.labels(model, self._reason).inc()
        metrics.request_s.labels(model).observe(time.perf_counter() - self._started)
        metrics.texts.labels(model).observe(self._tokens)
        if self._tokens > 1:
            metrics.mean_token_s.labels(model).observe((self._last - self._first) / (self._tokens - 1))

    def _count_prompts(self, lengths: Sequence[int]) -> None:
        """lengths: in tokens."""
        self._metrics.prompt_tokens.labels(self._model).inc(sum(lengths))
        for length in lengths:
            self._metrics.prompts.labels(self._model).observe(length)

    def _count_chunk(self, chunk: OutputChunk, seconds: float) -> None:
        metrics, model = self._metrics, self._model
        metrics.new_tokens.labels(model).inc(len(chunk.token_deltas))
        if self._tokens:
            each = metrics.token_s.labels(model)
            for _ in chunk.token_deltas:
                each.observe(seconds / len(chunk.token_deltas))
        if chunk.drafted:
            metrics.drafts.labels(model).inc()
            metrics.drafted.labels(model).inc(chunk.drafted)
            metrics.accepted.labels(model).inc(chunk.accepted)
            for position in range(chunk.accepted):
                metrics.accepted_at.labels(model, str(position)).inc()


class _Merged:
    """Registries of several models as one, without the *_created samples, which load generators mistake for counts."""

    def __init__(self, registries: Sequence[CollectorRegistry]) -> None:
        self._registries = registries

    def collect(self) -> Iterator[Metric]:
        """Each metric once, with the samples of all models; those of later ones follow the first's."""
        found: dict[str, Metric] = {}
        for registry in self._registries:
            for metric in registry.collect():
                samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
                if metric.name in found:
                    found[metric.name].samples += samples
                else:
                    metric.samples = samples
                    found[metric.name] = metric
        yield from found.values()


class _EngineFigures(Collector):
    """Statistics of engines and queue, collected on each scrape."""

    def __init__(self, backend: Backend, name: str) -> None:
        self._backend, self._name = backend, name

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not query the backend."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Current gauges and counters."""
        model = [_model_name(self._backend, self._name)]
        now = self._backend.statistics()
        yield _gauge("vllm:num_requests_running", "Requests that an engine has begun", model, now.running)
        yield _gauge("vllm:num_requests_waiting", "Requests in the queue", model, now.waiting)
        if now.blocks_total:
            share = (now.blocks_used or 0) / now.blocks_total
            yield _gauge("vllm:kv_cache_usage_perc", "Blocks of keys and values in use, 0 to 1", model, share)
            yield _gauge("ipex_assist:kv_blocks_used", "Blocks in use", model, now.blocks_used or 0)
            yield _gauge("ipex_assist:kv_blocks_total", "Blocks in total", model, now.blocks_total)
            meaning = "Blocks in use that only the prefix cache holds"
            yield _gauge("ipex_assist:kv_blocks_cached", meaning, model, now.blocks_cached)
        yield _gauge("ipex_assist:model_loaded", "Whether the model is in memory", model, now.alive > 0)
        yield _gauge("ipex_assist:places", "Configured engine processes", model, now.slots)
        yield _gauge("ipex_assist:places_alive", "Engine processes that answer", model, now.alive)
        yield _counted("ipex_assist:restarts", "Restarts of engine processes", model, now.restarts)
        engine = now.engine
        read, found = engine.get("prompt_tokens", 0), engine.get("prefix_tokens", 0)
        yield _counted("vllm:prefix_cache_queries", "Tokens looked for in the prefix cache", model, read + found)
        yield _counted("vllm:prefix_cache_hits", "Tokens found in the prefix cache", model, found)
        yield _counted("vllm:num_preemptions", "Preempted requests", model, engine.get("preempted", 0))
        for name, meaning in (("draft", "drafting"), ("target", "the target's passes"), ("choose", "choosing tokens")):
            seconds = engine.get(f"{name}_s", 0.0)
            yield _counted(f"ipex_assist:{name}_seconds", f"Time of {meaning}", model, seconds)
        for name, meaning in (("drafted", "Drafted tokens"), ("accepted", "Those that were accepted")):
            yield _by_source(f"ipex_assist:{name}_tokens", meaning, model, engine.get(f"{name}_by", {}))
        yield _by_rows("ipex_assist:passes", "Passes of the target", model, engine.get("passes_by_rows", {}))
        yield _by_rows("ipex_assist:pass_seconds", "Time of passes", model, engine.get("seconds_by_rows", {}))


def _model_name(backend: Backend, otherwise: str) -> str:
    """The model's name in requests; `otherwise` while it is not loaded."""
    try:
        return backend.facts.name
    except NotReady:
        return otherwise


def _gauge(name: str, meaning: str, model: list[str], value: float) -> Metric:
    metric = GaugeMetricFamily(name, meaning, labels=[_MODEL])
    metric.add_metric(model, value)
    return metric


def _counted(name: str, meaning: str, model: list[str], value: float) -> Metric:
    metric = CounterMetricFamily(name, meaning, labels=[_MODEL])
    metric.add_metric(model, value)
    return metric


def _by_source(name: str, meaning: str, model: list[str], values: Mapping[str, float]) -> Metric:
    """A counter by who drafted, where two assistants do."""
    metric = CounterMetricFamily(name, f"{meaning}, by source", labels=[_MODEL, "source"])
    for source in sorted(values):
        metric.add_metric([*model, source], values[source])
    return metric


def _by_rows(name: str, meaning: str, model: list[str], values: Mapping[Any, float]) -> Metric:
    """A counter by rows of a pass: exact up to 8, then in powers of two (label: the upper bound)."""
    sums: dict[int, float] = {}
    for rows, value in values.items():
        most = int(rows) if int(rows) <= 8 else 1 << (int(rows) - 1).bit_length()
        sums[most] = sums.get(most, 0.0) + value
    metric = CounterMetricFamily(name, f"{meaning}, by their rows (label: the most)", labels=[_MODEL, "rows"])
    for most in sorted(sums):
        metric.add_metric([*model, str(most)], sums[most])
    return metric
