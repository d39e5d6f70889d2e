"""Counters of an engine: passes, tokens, requests and seconds. No torch here."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass
class EngineStats:
    """Counts since the engine was made.

    passes: of the target. rows: summed over passes, drafted ones included. seconds_by_rows, passes_by_rows: of the
    target's passes, by their number of rows. prompt_tokens: prompt tokens that were read, without prefix_tokens, those
    found in the prefix cache. new_tokens: output tokens. drafted_by, accepted_by: drafted and accepted tokens by the
    source that drafted them, where there are several.
    """

    passes: int = 0
    rows: int = 0
    prompt_tokens: int = 0
    prefix_tokens: int = 0
    new_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_s: float = 0.0
    target_s: float = 0.0
    choose_s: float = 0.0
    step_s: float = 0.0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    preempted: int = 0
    running: int = 0
    waiting: int = 0
    most_running: int = 0
    seconds_by_rows: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    passes_by_rows: Counter[int] = field(default_factory=Counter)
    drafted_by: Counter[str] = field(default_factory=Counter)
    accepted_by: Counter[str] = field(default_factory=Counter)

    def count_pass(self, rows: int, seconds: float) -> None:
        """Count one pass of the target."""
        self.passes += 1
        self.rows += rows
        self.target_s += seconds
        self.seconds_by_rows[rows] += seconds
        self.passes_by_rows[rows] += 1

    def as_dict(self) -> dict[str, Any]:
        """All counters by name, as JSON can hold them."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: dict(value) if isinstance(value, dict) else value for name, value in values.items()}

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted ÷ drafted tokens; None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def own_s(self) -> float:
        """Seconds of the engine's own work: its steps without the models' passes and the choice of tokens."""
        return max(0.0, self.step_s - self.draft_s - self.target_s - self.choose_s)
