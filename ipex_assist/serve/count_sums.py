"""Sums of what engines have counted, those that have died included. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# Of one moment, or of one process: of no use in a sum.
NO_COUNTS = ("running", "waiting", "most_running")


def sum_counts(counts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sum of `EngineStats.as_dict()`s, name by name and row by row, without what is no count."""
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
