"""What a user sees: the text, the closing line of statistics, and the JSON object."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ipex_assist.launch import Plan
from ipex_assist.launch.plan import without_plan

if TYPE_CHECKING:
    from ipex_assist.generation import Result


PACKAGES = ("ipex-assist", "torch", "transformers", "intel-extension-for-pytorch", "optimum-intel")
KEPT_VARIABLES = ("OMP_", "KMP_", "GOMP_", "MALLOC_CONF", "LD_PRELOAD")


class TextPrinter:
    """Writes the text to standard output as it comes; remembers whether a line is open."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._open = False

    def write(self, text: str) -> None:
        """Raises BrokenPipeError where the reader has gone."""
        if self.enabled and text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._open = not text.endswith("\n")

    def close(self) -> None:
        """End an open line."""
        if self._open:
            self.write("\n")


def statistics_line(result: Result) -> str:
    """New tokens, speed, time to first token and, when assisted, how the draft did."""
    parts = [f"{result.new_tokens} new tokens"]
    if result.tokens_per_s is not None:
        parts.append(f"{result.tokens_per_s:.2f} tokens/s")
    if result.ttft_s is not None:
        parts.append(f"first token after {result.ttft_s:.2f} s")
    draft = result.draft
    if draft.acceptance_rate is not None:
        parts.append(f"acceptance rate {draft.acceptance_rate:.0%} ({draft.accepted} of {draft.drafted})")
    if draft.tokens_per_pass is not None:
        parts.append(f"{draft.tokens_per_pass:.2f} tokens per target pass")
    if not result.assisted:
        parts.append("not assisted")
    return ", ".join(parts)


def json_line(result: Result, environment: dict[str, Any]) -> str:
    """One object on one line; every key of Result is there, null where it does not apply."""
    return json.dumps({**result.as_dict(), "environment": environment})


def environment_facts(plan: Plan | None, warnings: Sequence[str]) -> dict[str, Any]:
    """Where and on what this process runs."""
    import torch

    from ipex_assist.env.cpulist import format_cpulist
    from ipex_assist.env.isa import read_isa

    versions: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "cpus": format_cpulist(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "plan": asdict(plan) if plan else None,
        "kept": {name: value for name, value in without_plan(os.environ).items() if name.startswith(KEPT_VARIABLES)},
        "isa": read_isa().as_dict(),
        "python": platform.python_version(),
        "versions": versions,
        "warnings": list(warnings),
    }
