"""Sums of engine counters, including those of dead processes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# Gauges, which must not be summed over time.
NO_COUNTS = ("running", "waiting", "most_running")


def sum_counts(counts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Sum `EngineStats.as_dict()`s, recursively by name, without gauges."""
    summed: dict[str, Any] = {}
    for each in counts:
        _add(summed, {name: value for name, value in each.items() if name not in NO_COUNTS})
    return summed


def _add(summed: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, Mapping):
            _add(summed.setdefault(name, {}), value)
        else:
            summed[name] = summed.get(name, 0) + value
