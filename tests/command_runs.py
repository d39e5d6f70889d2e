"""Runs `ipex-assist` as a process of its own, on a pair of tiny models."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import checkpoint_files
import pytest

Done = TypeVar("Done")

PROMPT = ["-p", "the quick brown fox", "--raw", "--executor", "torch", "--precision", "fp32"]


def command(*arguments: str) -> list[str]:
    """The console script by its module, so that an environment's PATH does not matter."""
    return [sys.executable, "-m", "ipex_assist", *arguments]


def run(
    *arguments: str, stdin: str | None = "", before: Sequence[str] = (), **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, and return what it printed. before: words of another one that starts it."""
    return subprocess.run(
        [*before, *command(*arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environ},
    )


def on_own_cpus(*jobs: Callable[[list[str]], Done]) -> list[Done]:
    """What the jobs return, a few of which run at a time: most of a command's start is one thread's work.

    Each gets the words that, before a command, give it a CPU of its own: commands that share their CPUs wait at every
    barrier for threads which the others have put off.
    """
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    cpus = sorted(os.sched_getaffinity(0))[:4]
    for cpu in cpus:
        free.put(cpu)
    env, taskset = (shutil.which(program) or program for program in ("env", "taskset"))

    def on_one(job: Callable[[list[str]], Done]) -> Done:
        cpu = free.get()
        try:
            return job([env, "OMP_NUM_THREADS=1", taskset, "-c", str(cpu)])
        finally:
            free.put(cpu)

    with ThreadPoolExecutor(len(cpus)) as pool:
        return list(pool.map(on_one, jobs))


def run_all(*commands: Sequence[str]) -> list[subprocess.CompletedProcess[str]]:
    """`run` them all on CPUs of their own."""
    return on_own_cpus(*(lambda before, words=words: run(*words, before=before) for words in commands))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A target and another model of the same vocabulary."""
    folder = checkpoint_files.save_pair(tmp_path_factory.mktemp("pair"))
    return str(folder / "target"), str(folder / "assistant")


@pytest.fixture(scope="module")
def usual(pair: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    """A run with nothing but a model and a prompt, which several tests look at."""
    done = run("-m", pair[0], *PROMPT)
    assert done.returncode == 0, done.stderr
    return done


def last_json(output: str) -> dict:
    """The object on the last line of standard output."""
    return json.loads(output.splitlines()[-1])
