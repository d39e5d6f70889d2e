"""What the runners share: settings in, a clock of tokens as they come, one JSON line out.

Imported in every peer's environment, so nothing but the standard library. Speed is tokens after the first delivery ÷
seconds after it, since an assisted generation may deliver several tokens at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Generate = Callable[[int, "Clock"], None]  # how many new tokens, and whom to tell about them


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
            "output": hashlib.sha256(json.dumps(self.tokens).encode()).hexdigest()[:12],
        }


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


def main(load: Callable[[dict[str, Any]], Generate], packages: Sequence[str]) -> None:
    """Load, warm up by a short generation, generate, answer."""
    settings, answer = settings_and_answer()
    started = time.perf_counter()
    generate = load(settings)
    loaded = time.perf_counter() - started
    generate(settings["warm_up_tokens"], Clock())
    clock = Clock()
    generate(settings["new_tokens"], clock)
    answer({**clock.figures(), "load_s": loaded, "versions": versions(packages)})
