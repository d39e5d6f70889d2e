"""Runs `ipex-assist` as a process of its own, on a pair of tiny models."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import checkpoint_files
import pytest

PROMPT = ["-p", "the quick brown fox", "--executor", "torch", "--precision", "fp32"]


def command(*arguments: str) -> list[str]:
    """The console script by its module, so that an environment's PATH does not matter."""
    return [sys.executable, "-m", "ipex_assist", *arguments]


def run(*arguments: str, stdin: str | None = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, and return what it printed."""
    return subprocess.run(
        command(*arguments),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environ},
    )


def run_all(*commands: Sequence[str]) -> list[subprocess.CompletedProcess[str]]:
    """Run them to their ends, a few at a time: most of a start is one thread's work."""
    with ThreadPoolExecutor(min(4, len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(lambda arguments: run(*arguments), commands))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A target and another model of the same vocabulary."""
    folder = tmp_path_factory.mktemp("pair")
    target = checkpoint_files.save(checkpoint_files.tiny_model("llama"), folder / "target")
    assistant = checkpoint_files.save(checkpoint_files.tiny_model("llama", seed=1), folder / "assistant")
    return str(target), str(assistant)


@pytest.fixture(scope="module")
def usual(pair: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    """A run with nothing but a model and a prompt, which several tests look at."""
    done = run("-m", pair[0], *PROMPT)
    assert done.returncode == 0, done.stderr
    return done


def last_json(output: str) -> dict:
    """The object on the last line of standard output."""
    return json.loads(output.splitlines()[-1])
