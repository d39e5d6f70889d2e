"""Parses and formats sets of CPUs or nodes as the kernel writes them: lists (`0-27,56-83`), masks (`ff,ffffffff`)."""

from __future__ import annotations

from collections.abc import Iterable

# Linux supports at most 8192 CPUs; a larger number is a typing error, and must not be expanded into memory.
MAX_CPU = 65535


def parse_cpulist(text: str) -> tuple[int, ...]:
    """The ids of a list such as `0-27,56-83`, ascending and without duplicates; an empty text is an empty set.

    Raises:
        ValueError: the text is not a list, a range runs backwards, or an id is above `MAX_CPU`.
    """
    ids: set[int] = set()
    for part in text.strip("\0 \t\r\n").split(","):
        part = part.strip()
        if not part:
            continue
        first, dash, last = part.partition("-")
        if not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
            raise ValueError(f"'{part}' is not a number or a range")
        low, high = int(first), int(last if dash else first)
        if low > high:
            raise ValueError(f"the range {part} runs backwards")
        if high > MAX_CPU:
            raise ValueError(f"{high} is above {MAX_CPU}, the highest id accepted")
        ids.update(range(low, high + 1))
    return tuple(sorted(ids))


def format_cpulist(ids: Iterable[int]) -> str:
    """The shortest list of `ids`, e.g. `0-27,56-83`. The empty set is an empty text."""
    parts: list[str] = []
    ordered = sorted(set(ids))
    start = 0
    for end, value in enumerate(ordered):
        if end + 1 < len(ordered) and ordered[end + 1] == value + 1:
            continue
        parts.append(str(value) if start == end else f"{ordered[start]}-{value}")
        start = end + 1
    return ",".join(parts)


def parse_cpumask(text: str) -> tuple[int, ...]:
    """The ids of a mask such as `00000003,ffffffff` (groups of 32 bits, the highest first)."""
    mask = 0
    for group in text.strip("\0 \t\r\n").split(","):
        mask = (mask << 32) | int(group, 16)
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)
