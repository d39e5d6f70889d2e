"""Starts the process that trains a head, tells how far it is, and stops it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ipex_assist.distill.work_folder import WorkFolder, write
from ipex_assist.env.errors import IpexAssistError

SCRIPT = Path(__file__).with_name("train_process.py")
LOG_LINES = 3  # of the process's messages, that an error ends with
Said = Callable[[str], None]


def train(python: str, job: Mapping[str, Any], folder: WorkFolder, said: Said) -> dict[str, Any]:
    """Do a job of train_process.py; returns what its last event said.

    KeyboardInterrupt stops the process, which stores its state, and is raised again. Raises IpexAssistError where it
    fails.
    """
    path, log = folder.path / "job.json", folder.path / "training.log"
    write(path, json.dumps(job))
    with log.open("wb") as messages:
        process = subprocess.Popen(
            [python, "-I", str(SCRIPT), str(path)], stdout=subprocess.PIPE, stderr=messages, start_new_session=True
        )
        try:
            last = _follow(process, said)
        except BaseException:
            process.terminate()
            said("stopping: the training's state is stored, and the same command goes on from it")
            process.communicate()
            raise
    if process.wait() or last.get("event") != "done":
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-LOG_LINES:]
        raise IpexAssistError(
            f"the training process ended with exit code {process.returncode}: {' / '.join(lines) or 'no message'}. "
            f"All of its messages are in {log}"
        )
    return last


def _follow(process: subprocess.Popen[bytes], said: Said) -> dict[str, Any]:
    last: dict[str, Any] = {}
    assert process.stdout is not None
    for line in process.stdout:
        try:
            event = json.loads(line)
        except ValueError:  # a library prints there, too
            continue
        if isinstance(event, dict) and "event" in event:
            last = event
            if text := told(event):
                said(text)
    return last


def told(event: Mapping[str, Any]) -> str | None:
    """An event of the process for people; None for those that they need not know of."""
    kind = event["event"]
    if kind == "begin":
        return (
            f"training {event['parameters'] / 1e6:.1f} M weights on {event['samples']} texts; {event['held_out']} are "
            "held out"
        )
    if kind == "resumed":
        return f"training goes on after {event['step']} steps, {duration(event['seconds'])}"
    if kind == "step":
        loss = "" if event["loss"] is None else f", loss {event['loss']:.3f}"
        return f"step {event['step']}, epoch {event['epoch'] + 1}{loss}, {duration(event['left'])} left"
    if kind == "held_out":
        return (
            f"held out after {event['step']} steps: loss {event['loss']:.3f}, right by position "
            f"{shares(event['by_position'])}, {event['length']:.2f} tokens accepted a draft"
        )
    return None


def shares(values: list[float]) -> str:
    """Shares as percentages, in a row."""
    return " ".join(f"{value:.0%}" for value in values)


def duration(seconds: float) -> str:
    """A time, as precise as people want it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
