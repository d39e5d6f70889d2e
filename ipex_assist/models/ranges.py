"""Values of a spec are checked when it is made: a number's range, and a name among those that there are."""

from __future__ import annotations

import math
from typing import Any, get_args

from ipex_assist.models.config import ConfigError


def check_range(name: str, value: float, ends: tuple[float, float]) -> None:
    """Raise ConfigError for a value out of its range. NaN compares as false with everything."""
    low, high = ends
    if not (low <= value <= high) or not math.isfinite(value):
        raise ConfigError(name, value, f"from {low:,} to {high:,}")


def check_ranges(spec: Any, ranges: dict[str, tuple[str, tuple[float, float]]]) -> None:
    """The same for each field of a spec that is given: `ranges` has Hugging Face's name, our field and its range."""
    for name, (ours, ends) in ranges.items():
        if (value := getattr(spec, ours)) is not None:
            check_range(name, value, ends)


def check_kind(name: str, value: str, kinds: Any) -> None:
    """Raise ConfigError for a value that is none of the Literal `kinds`."""
    if value not in get_args(kinds):
        raise ConfigError(name, value, f"one of {', '.join(get_args(kinds))}")
