"""Starts batches as processes, and looks at what they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ipex_assist.generation.text_model import TextModel
from ipex_assist.launch.spawn import read_processes
from ipex_assist.workers.request_loop import failure
from ipex_assist.workers.wire import Answered, TextRequest
from ipex_assist.workers.worker_model import begin

FAKE = [sys.executable, str(Path(__file__).with_name("batch_fake.py")), "-m", "fake", "--offline"]
REAL = [sys.executable, "-m", "ipex_assist", "batch"]


def write_prompts(path: Path, prompts: Iterable[str | dict[str, Any]]) -> Path:
    """Texts get ids p0, p1, …; objects are written as they are."""
    lines = [{"id": f"p{i}", "prompt": item} if isinstance(item, str) else item for i, item in enumerate(prompts)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def start(program: Sequence[str], *arguments: object, **environ: str) -> subprocess.Popen[str]:
    """Start a batch in the background."""
    return subprocess.Popen(
        [*program, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environ},
    )


def run(program: Sequence[str], *arguments: object, seconds: float = 120, **environ: str) -> tuple[int, str]:
    """A batch to its end: exit code and standard error. Nothing of it may be left running.

    Standard output stays empty, but for what Ray reports there of workers that died, in earlier batches as well.
    """
    reports = "(raylet)" if "--ray" in arguments else None
    process = start(program, *arguments, **environ)
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    assert not [line for line in out.splitlines() if reports is None or reports not in line], out
    assert "Traceback" not in err, err
    return process.returncode, err


def records(path: Path) -> list[dict[str, Any]]:
    """Return all records; each line must be whole."""
    data = path.read_bytes()
    assert not data or data.endswith(b"\n"), data[-100:]
    return [json.loads(line) for line in data.splitlines()]


def by_id(path: Path) -> dict[Any, dict[str, Any]]:
    """Records by id, of which there must be one each."""
    found = records(path)
    ids = [record["id"] for record in found]
    assert len(ids) == len(set(ids)), "an id has two records"
    return dict(zip(ids, found, strict=True))


def lines_in(path: Path) -> int:
    """How many lines there are now, while somebody writes."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def instances_in(path: Path) -> set[int]:
    """The instances of whole lines, likewise."""
    whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return {json.loads(line)["instance"] for line in whole}


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait until `condition` holds; raise an error after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.005)


def children(pid: int) -> list[int]:
    """The running processes whose parent is `pid`."""
    return [child for child, (parent, _) in read_processes().items() if parent == pid]


def gone(pids: Iterable[int]) -> bool:
    """Whether none of them runs any more."""
    return not set(pids) & set(read_processes())


TWO = ["--no-launch", "--instances", 2]
SIXTEEN = ["--concurrency", 16]


def answer(model: TextModel, request: TextRequest) -> Answered:
    """The answer of a worker that has this request alone."""
    try:
        generation = begin(model, request)
        for _ in generation:
            pass
        return Answered(request.id, generation.result().as_dict())
    except Exception as error:
        return failure(request.id, error)
