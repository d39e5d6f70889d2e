"""What the tests of the benchmark of peers share: cases, what a turn answers, and children that say it."""

from __future__ import annotations

import sys
from typing import Any

import peers_known as known

A, B, C = known.Case("vllm", "bf16"), known.Case("vllm", "bf16", "bf16"), known.Case(known.OURS, "int4", "int4")


def answer(speed: float, **more: Any) -> dict[str, Any]:
    return {"tokens": 128, "passes": 128, "tokens_per_s": speed, "first_token_s": 0.5, "output": "o", **more}


def python_says(code: str) -> known.Child:
    return known.Child((sys.executable, "-c", code))


def load_answer(speed: float, **more: Any) -> dict[str, Any]:
    """What a turn of many prompts answers."""
    waits = {"first_token_s": {"p50": 0.5, "p99": 1.25}, "token_s": {"p50": 0.02, "p99": 0.03}}
    return {"requests": 2, "tokens": 64, "passes": 32, "tokens_per_s": speed, **waits, "outputs": ["a", "b"], **more}
