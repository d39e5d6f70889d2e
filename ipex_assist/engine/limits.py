"""Limits of an engine: requests at a time, rows of a pass, seconds of a pass."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineLimits:
    """requests: running at a time. rows: of one pass. max_pass_s: seconds of a pass with a prompt chunk in
    which other requests decode; None: PASSES times a pass without a chunk."""

    requests: int = 256
    rows: int = 512
    max_pass_s: float | None = None
