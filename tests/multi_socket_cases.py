"""What the tests of the benchmark of several instances share: small machines, answers of instances, and cases."""

from __future__ import annotations

from typing import Any

import multi_socket_figures as figures
import multi_socket_layouts as layouts
from machines import MachineSpec, machine


def small(cores: int) -> Any:
    return machine(MachineSpec(cores_per_socket=cores))


def answer(started: float, first: float, ended: float, new: int = 11, **fields: Any) -> dict[str, Any]:
    return {
        "started": started,
        "first": first,
        "ended": ended,
        "prompt_tokens": 20,
        "tokens": list(range(new)),
        "bytes": 4e9,
        "drafted": None,
        "accepted": None,
    } | fields


def case(name: str, turns: list[list[dict[str, Any]]], assisted: bool = False, reads: float | None = 8.0) -> Any:
    layout = layouts.placed(name, small(2), None)
    facts: list[dict[str, Any]] = [{}] * len(layout.placements)
    made = figures.Case("int4", layout, assisted, facts, facts)
    for turn in turns:
        made.add(turn, [None if reads is None else reads / len(turn)] * len(turn))
    return made
