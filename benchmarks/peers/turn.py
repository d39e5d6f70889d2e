"""What the runners share: settings in, a clock of tokens as they come, one JSON line out.

Imported in every peer's environment, so nothing but the standard library. One prompt's speed is tokens after the first
delivery ÷ seconds after it, since an assisted generation may deliver several tokens at once; that of many prompts at
once is all their tokens ÷ all seconds, prompts included.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Generate = Callable[[int, "Clock"], None]  # how many new tokens, and whom to tell about them
Serve = Callable[[int, "Load"], None]  # the same for each of many prompts


class Clock:
    """Notes when tokens came, in seconds from its making, which is when the prompt goes in."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.deliveries: list[tuple[float, int]] = []
        self.tokens: list[int] = []

    def add(self, tokens: Sequence[int]) -> None:
        """Note that these tokens are out now."""
        if tokens:
            self.deliveries.append((time.perf_counter() - self.started, len(tokens)))
            self.tokens.extend(tokens)

    def figures(self) -> dict[str, Any]:
        """Counts, seconds and tokens/s. Raises ValueError where everything came at once, which has no speed."""
        if len(self.deliveries) < 2:
            raise ValueError(f"{len(self.tokens)} tokens came in {len(self.deliveries)} deliveries: no speed in that")
        (first, with_it), (last, _) = self.deliveries[0], self.deliveries[-1]
        return {
            "tokens": len(self.tokens),
            "seconds": last,
            "first_token_s": first,
            "tokens_per_s": (len(self.tokens) - with_it) / (last - first),
            "passes": len(self.deliveries),
            "output": digest(self.tokens),
        }


class Load:
    """Notes when the tokens of many prompts came, in seconds from its making, which is when all of them go in."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.deliveries: dict[int, list[tuple[float, int]]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.passes: int | None = None  # of the target, where the peer tells

    def add(self, prompt: int, tokens: Sequence[int]) -> None:
        """Note that these tokens behind a prompt are out now."""
        if tokens:
            self.deliveries.setdefault(prompt, []).append((time.perf_counter() - self.started, len(tokens)))
            self.tokens.setdefault(prompt, []).extend(tokens)

    def figures(self) -> dict[str, Any]:
        """Counts, seconds and tokens/s of all prompts, and percentiles over them."""
        seconds = max(each[-1][0] for each in self.deliveries.values())
        tokens = sum(map(len, self.tokens.values()))
        waits = [
            (each[-1][0] - each[0][0]) / sum(count for _, count in each[1:])
            for each in self.deliveries.values()
            if len(each) > 1
        ]
        return {
            "requests": len(self.tokens),
            "tokens": tokens,
            "seconds": seconds,
            "tokens_per_s": tokens / seconds,
            "first_token_s": percentiles([each[0][0] for each in self.deliveries.values()]),
            "token_s": percentiles(waits),
            "passes": self.passes,
            "outputs": [digest(self.tokens[prompt]) for prompt in sorted(self.tokens)],
        }


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """The median and the 99th percentile, between two values in proportion; None of no values."""
    if len(values) < 2:
        return dict.fromkeys(("p50", "p99"), values[0]) if values else None
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": cuts[49], "p99": cuts[98]}


def digest(tokens: Sequence[int]) -> str:
    """Return what tells one text from another."""
    return hashlib.sha256(json.dumps(list(tokens)).encode()).hexdigest()[:12]


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def settings_and_answer() -> tuple[dict[str, Any], Callable[[dict[str, Any]], None]]:
    """The settings, and who takes the answer. What libraries print goes to standard error from here on."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(figures: dict[str, Any]) -> None:
        print(json.dumps(figures), file=out, flush=True)

    return json.loads(sys.argv[1]), answer


def main(
    load: Callable[[dict[str, Any]], Generate],
    packages: Sequence[str],
    load_many: Callable[[dict[str, Any]], Serve] | None = None,
) -> None:
    """Load, warm up by a short generation, generate, answer. Settings with "prompts" are for `load_many`."""
    settings, answer = settings_and_answer()
    started = time.perf_counter()
    if "prompts" in settings:
        assert load_many is not None
        serve = load_many(settings)
        loaded = time.perf_counter() - started
        serve(settings["warm_up_tokens"], Load())
        many = Load()
        serve(settings["new_tokens"], many)
        answer({**many.figures(), "load_s": loaded, "versions": versions(packages)})
        return
    generate = load(settings)
    loaded = time.perf_counter() - started
    generate(settings["warm_up_tokens"], Clock())
    clock = Clock()
    generate(settings["new_tokens"], clock)
    answer({**clock.figures(), "load_s": loaded, "versions": versions(packages)})
