"""The cache folder of packed copies: listing them, their size limit, and deleting the least recently used.

Never imports torch.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from ipex_assist.env.errors import UsageError
from ipex_assist.env.memory import gib
from ipex_assist.env.options import Size

log = logging.getLogger("ipex_assist")

HEADER_BYTES = 4096
SIZE_VARIABLE = "IPEX_ASSIST_CACHE_SIZE"
DEFAULT_SIZE = 64 << 30
_SPARE = 256 << 20  # bytes that stay free beside a copy that was asked for


@dataclass(frozen=True)
class PackedCopy:
    """A packed model on disk. bytes: its size; used: when it was last loaded or written, in seconds since 1970."""

    path: Path
    bytes: int
    used: float
    source: str | None = None
    precision: str | None = None


def size_limit() -> int:
    """The most bytes that all copies may take: $IPEX_ASSIST_CACHE_SIZE, or DEFAULT_SIZE. UsageError for no size."""
    text = os.environ.get(SIZE_VARIABLE, "")
    if not text:
        return DEFAULT_SIZE
    try:
        return Size().read(text)
    except ValueError as error:
        raise UsageError(f"{SIZE_VARIABLE}={text} {error}; or unset it, for {gib(DEFAULT_SIZE)}") from None


def copies(folder: Path) -> list[PackedCopy]:
    """All packed copies in a folder, the least recently used first; empty where there is no such folder."""
    found = []
    for path in folder.glob("*.packed"):
        with contextlib.suppress(FileNotFoundError):  # another process has just removed it
            state = path.stat()
            header = _header(path)
            source, precision = (header.get(key) for key in ("source", "precision"))
            found.append(PackedCopy(path, state.st_size, state.st_mtime, source, precision))
    return sorted(found, key=lambda copy: (copy.used, copy.path.name))


def _header(path: Path) -> dict[str, str]:
    """The string fields of a copy's first page; empty where it cannot be read or is not ours."""
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        header = json.loads(file.read(HEADER_BYTES).rstrip(b"\0"))
        if isinstance(header, dict):
            return {key: value for key, value in header.items() if isinstance(value, str)}
    return {}


def note_use(path: Path) -> None:
    """Set the time of a copy's last use to now. Without write permission the time it was made stays."""
    with contextlib.suppress(OSError):
        os.utime(path)


def make_room(path: Path, needed: int, *, asked: bool) -> None:
    """Delete the least recently used copies until a new one of `needed` bytes at `path` fits the limit.

    asked: the user asked for this copy; else it must leave as much of the disk free as it takes. Raises OSError, and
    deletes nothing, where even that would not make enough room.
    """
    limit = size_limit()
    if needed > limit:
        raise OSError(f"it takes {gib(needed)}, and copies may take {gib(limit)} ({SIZE_VARIABLE} changes that)")
    others = [copy for copy in copies(path.parent) if copy.path != path]
    excess = sum(copy.bytes for copy in others) + needed - limit
    goes: list[PackedCopy] = []
    while excess > 0:
        goes.append(others.pop(0))
        excess -= goes[-1].bytes
    free = shutil.disk_usage(path.parent).free + sum(copy.bytes for copy in goes)
    wanted = needed + _SPARE if asked else max(2 * needed, needed + _SPARE)
    if free < wanted:
        raise OSError(f"{gib(wanted)} are needed and {gib(free)} are free")
    for copy in goes:
        copy.path.unlink(missing_ok=True)
        log.warning("deleted the packed copy %s, used longest ago: copies may take %s", copy.path, gib(limit))
