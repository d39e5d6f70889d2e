"""How much an engine does at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineLimits:
    """requests: texts under way at a time. rows: of one pass. max_pass_s: a pass that other texts wait for is not made
    longer than this by the chunk of a prompt; None: PASSES times a pass without one."""

    requests: int = 256
    rows: int = 512
    max_pass_s: float | None = None
