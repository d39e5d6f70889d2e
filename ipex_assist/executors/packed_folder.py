"""The folder of packed copies: what lies there, how much it may take, and what goes when that is too much.

Never imports torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ipex_assist.env.errors import UsageError
from ipex_assist.env.options import Size

log = logging.getLogger("ipex_assist")

HEADER_BYTES = 4096
SIZE_VARIABLE = "IPEX_ASSIST_CACHE_SIZE"
DEFAULT_SIZE = 64 << 30
_SPARE = 256 << 20  # bytes that stay free beside a copy that was asked for
_LOCK_SECONDS = 2.0


@dataclass(frozen=True)
class PackedCopy:
    """A packed model on disk; `used` is when a start last took it, or when it was written, in seconds since 1970."""

    path: Path
    bytes: int
    used: float
    source: str | None = None
    precision: str | None = None


def size_limit() -> int:
    """Bytes that all copies may take together: $IPEX_ASSIST_CACHE_SIZE, or DEFAULT_SIZE. UsageError for no size."""
    text = os.environ.get(SIZE_VARIABLE, "")
    if not text:
        return DEFAULT_SIZE
    try:
        return Size().read(text)
    except ValueError as error:
        raise UsageError(f"{SIZE_VARIABLE}={text} {error}; or unset it, for {_gb(DEFAULT_SIZE)}") from None


def copies(folder: Path) -> list[PackedCopy]:
    """All packed copies of a folder, the one that was used longest ago first. None where there is no such folder."""
    found = []
    for path in folder.glob("*.packed"):
        with contextlib.suppress(FileNotFoundError):  # another process has just removed it
            state = path.stat()
            header = _header(path)
            source, precision = (header.get(key) for key in ("source", "precision"))
            found.append(PackedCopy(path, state.st_size, state.st_mtime, source, precision))
    return sorted(found, key=lambda copy: (copy.used, copy.path.name))


def _header(path: Path) -> dict[str, str]:
    """The texts of a copy's first page; none of a page that is not ours, or cannot be read."""
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        header = json.loads(file.read(HEADER_BYTES).rstrip(b"\0"))
        if isinstance(header, dict):
            return {key: value for key, value in header.items() if isinstance(value, str)}
    return {}


def note_use(path: Path) -> None:
    """Remember that a copy was used now; where it may not be written it goes by the time it was made."""
    with contextlib.suppress(OSError):
        os.utime(path)


def make_room(path: Path, needed: int, *, asked: bool) -> None:
    """Delete the copies that were used longest ago, until one of `needed` bytes at `path` is within the limit.

    asked: somebody wants this copy by name; else it must leave as much of the disk free as it takes. Raises OSError,
    and deletes nothing, where there is no room for it all the same.
    """
    limit = size_limit()
    if needed > limit:
        raise OSError(f"it takes {_gb(needed)}, and copies may take {_gb(limit)} ({SIZE_VARIABLE} changes that)")
    others = [copy for copy in copies(path.parent) if copy.path != path]
    excess = sum(copy.bytes for copy in others) + needed - limit
    goes: list[PackedCopy] = []
    while excess > 0:
        goes.append(others.pop(0))
        excess -= goes[-1].bytes
    free = shutil.disk_usage(path.parent).free + sum(copy.bytes for copy in goes)
    wanted = needed + _SPARE if asked else max(2 * needed, needed + _SPARE)
    if free < wanted:
        raise OSError(f"{_gb(wanted)} are needed and {_gb(free)} are free")
    for copy in goes:
        copy.path.unlink(missing_ok=True)
        log.warning("deleted the packed copy %s, used longest ago: copies may take %s", copy.path, _gb(limit))


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Keep other processes of this machine from choosing what is written and what goes, for a moment.

    Where a file system has no locks, or somebody who holds this one is stopped, it goes on without.
    """
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        end = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < end:
            try:
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break
        yield
    finally:
        os.close(number)


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
