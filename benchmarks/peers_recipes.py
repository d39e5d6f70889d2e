"""Folders that are made once by a list of commands and then reused: environments of the peers, converted models.

A folder's name ends with a hash of everything that goes into it, so another pin or another checkpoint makes another
folder. A stamp, written last, says that all commands succeeded; a folder without one is made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipex_assist.env.errors import IpexAssistError

STAMP = "made.json"
LOG = "making.log"
LAST_LINES = 8  # of a command's output in the message about its failure
HEADROOM = 6 << 30  # bytes that stay free on the disk; a half-filled environment helps nobody


class MakingFailed(IpexAssistError):
    """A folder could not be made: no package, no compiler, no room."""


def last_lines(text: str, count: int = LAST_LINES) -> str:
    """The last lines that say something."""
    return "\n".join([line.rstrip() for line in text.splitlines() if line.strip()][-count:])


@dataclass(frozen=True)
class Recipe:
    """The commands that make a folder. In arguments, {folder} is its path, {cpus} how many processors may build.

    facts: whatever else decides what comes out (versions, the state of a checkpoint); it is part of the key.
    """

    name: str
    steps: tuple[tuple[str, ...], ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Twelve hexadecimal digits of all that decides the outcome."""
        content = [self.steps, dict(self.facts), dict(self.environ)]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def folder(self, root: Path) -> Path:
        """Return where the folder is, or will be, under `root`."""
        return root / f"{self.name}-{self.key}"

    def ready(self, root: Path) -> bool:
        """Whether it has been made to its end."""
        return (self.folder(root) / STAMP).is_file()

    def make(self, root: Path) -> Path:
        """The folder, made now unless it is there. Raises MakingFailed with the last lines of what failed."""
        folder = self.folder(root)
        with _alone(folder.with_name(f"{folder.name}.lock")):
            if self.ready(root):
                return folder
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for step in self.steps:
                self._run(step, folder)
            self._stamp(folder)
        return folder

    def _run(self, step: Sequence[str], folder: Path) -> None:
        free = shutil.disk_usage(folder).free
        if free < HEADROOM:
            raise MakingFailed(
                f"{self.name}: {free >> 20} MiB are free under {folder.parent}, and {HEADROOM >> 20} shall stay free; "
                f"make room, or choose another disk with --envs"
            )
        argv = [part.format(folder=folder, cpus=len(os.sched_getaffinity(0))) for part in step]
        log = folder / LOG
        with log.open("a") as out:
            print("$", *argv, file=out, flush=True)
            at = out.tell()
            try:
                code = subprocess.run(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=clean_environment() | dict(self.environ),
                    check=False,
                ).returncode
            except OSError as error:
                raise MakingFailed(f"{self.name}: {argv[0]} cannot be started: {error.strerror}") from error
        if code:
            with log.open(errors="replace") as text:
                text.seek(at)
                said = last_lines(text.read())
            raise MakingFailed(
                f"{self.name}: `{Path(argv[0]).name} {' '.join(argv[1:4])} …` ended with {code}:\n{said}"
            )

    def _stamp(self, folder: Path) -> None:
        python = folder / "bin" / "python"
        freeze = ""
        if python.exists():
            command = [str(python), "-m", "pip", "freeze", "--disable-pip-version-check"]
            freeze = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        content = {"steps": self.steps, "facts": dict(self.facts), "installed": freeze.splitlines()}
        part = folder / f"{STAMP}.part"
        part.write_text(json.dumps(content, indent=1))
        part.rename(folder / STAMP)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Two runs do not make the same folder at the same time; the second waits and finds it made."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def clean_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`environ` without what would lead another interpreter to this one's packages."""
    return {key: value for key, value in environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}


def environment(
    name: str,
    requirements: Sequence[str],
    *more: tuple[str, ...],
    environ: Mapping[str, str] | None = None,
) -> Recipe:
    """A virtual environment of this interpreter's version with pinned requirements, then further commands."""
    python = "{folder}/bin/python"
    steps = (
        (sys.executable, "-m", "venv", "{folder}"),
        (python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *requirements),
        *more,
    )
    return Recipe(name, steps, {"python": platform.python_version(), "machine": platform.machine()}, environ or {})


def state_of(source: str) -> list[list[Any]]:
    """Names, sizes and times of a checkpoint's files: what a conversion of it depends on."""
    path = Path(source)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [[str(each.resolve()), each.stat().st_size, each.stat().st_mtime_ns] for each in files if each.is_file()]
