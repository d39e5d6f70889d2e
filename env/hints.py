"""Hints that nobody can act on at every start: each is said once a day on a machine. Never imports torch."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import re
import time
from collections.abc import Iterable
from pathlib import Path

from ipex_assist.env.cache import cache_folder

VARIABLE = "IPEX_ASSIST_HINTS"  # "always": say each of them at every start
_OLD_SECONDS = 2 * 24 * 3600.0


def machine_name() -> str:
    """This machine's name, for names of files: several machines may share a home folder."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", platform.node()) or "unknown"


def first_today(hint: str) -> bool:
    """Whether no process has asked for this hint today, on this machine and with this cache folder.

    The answer is an empty file, which one process alone can create. Where that is not possible (no home, a read-only
    disk) the hint is said: too often is better than never.
    """
    if os.environ.get(VARIABLE) == "always":
        return True
    digest = hashlib.sha256(os.fsencode(hint)).hexdigest()[:16]
    try:
        folder = cache_folder("hints")
        folder.mkdir(parents=True, exist_ok=True)
        stamp = folder / f"{machine_name()}-{time.strftime('%Y-%m-%d')}-{digest}"
        if stamp.exists():
            return False
    except (OSError, RuntimeError):
        return True
    try:
        stamp.touch(exist_ok=False)
    except FileExistsError:  # another process was faster
        return False
    except OSError:
        return True
    _remove_old(folder)
    return True


def _remove_old(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            with contextlib.suppress(OSError):  # another process was faster
                if time.time() - path.stat().st_mtime > _OLD_SECONDS:
                    path.unlink()


def log_hint(log: logging.Logger, hint: str, message: str, *values: object) -> None:
    """Log a warning that is only information for the rest of the day. hint: what it is, by which it is remembered."""
    log.log(logging.WARNING if first_today(hint) else logging.INFO, message, *values)


def due(lines: Iterable[str], hints: Iterable[str], *, verbose: bool = False) -> list[str]:
    """The lines that are to be printed: of those that are `hints` only the first of today, and all if `verbose`.

    A hint is remembered by its words up to the first colon, the rest tells instances and nodes apart.
    """
    known = set(hints)
    return [line for line in lines if verbose or line not in known or first_today(line.partition(":")[0])]
