"""The file of results: whole lines only, one writer, nothing written twice; existing records are kept."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ipex_assist.batch.prompts import Id
from ipex_assist.env.errors import IpexAssistError, UsageError

SYNC_SECONDS = 1.0  # the most that a power failure costs
SYNC_SHARE = 0.1  # of the time; a shared file system may take long for one
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class OutputError(IpexAssistError):
    """A result cannot be written. What was written before is whole."""


@dataclass(frozen=True)
class KeptRecord:
    """The state of one prompt in the file of results. `model` is the target and its precision."""

    failed: bool
    digest: str | None
    model: tuple[str, str] | None


class ResultFile:
    """Appends records, one line each by one write(2).

    `done` is what was there at the start, by id. A record is with the kernel when `append` returns, and survives
    the end of this process; to survive a power failure it waits for the next `sync`, up to SYNC_SECONDS later. A kill
    in the very moment of a write may leave a part of that one line, which is removed when the file is next opened.
    """

    def __init__(self, path: str, *, resume: bool, prompts: str) -> None:
        self.path = os.path.realpath(path)  # a rewrite replaces the file, not a link to it
        self.notes: list[str] = []
        self.done: dict[Id, KeptRecord] = {}
        self.written = 0
        self._unsynced = False
        self._next_sync = 0.0
        if os.path.exists(self.path) and os.path.exists(prompts) and os.path.samefile(self.path, prompts):
            raise UsageError(f"-o {path} is the file of prompts itself; name another")
        self._fd = _open(self.path, path)
        try:
            self._regular = stat.S_ISREG(os.fstat(self._fd).st_mode)
            if self._regular:
                _lock(self._fd, self.path)
                if os.fstat(self._fd).st_size and not resume:
                    raise UsageError(f"{path} has results already: add --resume to do what is missing, or remove it")
                self._read()
        except BaseException:
            os.close(self._fd)
            raise

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line.

        Raises:
            OutputError: it cannot be written; no part of it is left in the file.
        """
        data = json.dumps(record).encode() + b"\n"
        before = os.fstat(self._fd).st_size if self._regular else 0
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            if self._regular:
                with suppress(OSError):
                    os.ftruncate(self._fd, before)
            raise self._error(error) from None
        self.written += 1
        self._unsynced = True

    def sync(self, *, now: bool = False) -> None:
        """Bring to disk what `append` gave to the kernel, if it is time to (or `now`).

        Raises:
            OutputError: some of it was lost; file systems over a network say so only here.
        """
        started = time.monotonic()
        if not (self._unsynced and self._regular) or (started < self._next_sync and not now):
            return
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise self._error(error) from None
        ended = time.monotonic()
        self._unsynced = False
        self._next_sync = ended + max(SYNC_SECONDS, (ended - started) / SYNC_SHARE)

    def close(self) -> None:
        """Sync and close; raises as `sync`."""
        try:
            self.sync(now=True)
        finally:
            os.close(self._fd)

    def drop(self, unwanted: Callable[[Id, KeptRecord], bool]) -> int:
        """Remove records, so that their prompts count as missing; returns how many. The file is replaced in one step.

        Raises:
            OutputError: there is no room for the copy; the file is as it was.
        """
        ids = {own_id for own_id, done in self.done.items() if unwanted(own_id, done)}
        if not ids or not self._regular:
            return 0
        copy = f"{self.path}.{os.getpid()}.tmp"
        try:
            target = os.open(copy, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                fcntl.flock(target, fcntl.LOCK_EX)
                os.fchmod(target, stat.S_IMODE(os.fstat(self._fd).st_mode))
                with open(self.path, "rb") as source, open(target, "ab", closefd=False) as sink:
                    sink.writelines(raw for raw in source if (found := _parse(raw)) is None or found[0] not in ids)
                os.fsync(target)
                os.replace(copy, self.path)
            except BaseException:
                os.close(target)
                raise
        except OSError as error:
            with suppress(OSError):
                os.unlink(copy)
            raise self._error(error) from None
        os.close(self._fd)
        self._fd = target
        for own_id in ids:
            del self.done[own_id]
        return len(ids)

    def _read(self) -> None:
        """Read the existing records; a last line that a crash cut short is dropped."""
        strange: list[int] = []
        size = number = 0
        with open(self.path, "rb") as file:
            for number, raw in enumerate(file, start=1):
                found = _parse(raw)
                if not raw.endswith(b"\n"):
                    try:
                        self._repair(size, raw, whole=found is not None)
                    except OSError as error:
                        raise self._error(error) from None
                size += len(raw)
                if found is None:
                    if raw.endswith(b"\n") and raw.strip():
                        strange.append(number)
                    continue
                own_id, done = found
                if own_id not in self.done or self.done[own_id].failed:
                    self.done[own_id] = done
        if strange:
            self.notes.append(
                f"{self.path}: {len(strange)} line{'s' * (len(strange) != 1)} of {number}, the first {strange[0]}, "
                "are no results; they stay there and count for nothing"
            )

    def _repair(self, start: int, tail: bytes, *, whole: bool) -> None:
        if whole:
            os.write(self._fd, b"\n")
            return
        os.ftruncate(self._fd, start)
        self.notes.append(f"{self.path}: the last line was cut short; removed its {len(tail)} bytes")

    def _error(self, error: OSError) -> OutputError:
        reason = os.strerror(error.errno or errno.EIO)
        remedy = "make room and" if error.errno in FULL else "when it can be written again,"
        return OutputError(
            f"{self.path} cannot be written: {reason}. The {len(self.done) + self.written} results in it are whole; "
            f"{remedy} run the same command with --resume for the rest"
        )


def _parse(raw: bytes) -> tuple[Id, KeptRecord] | None:
    """Return the id and the state that one line records, or None where it is no record of ours."""
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    own_id = record.get("id")
    if isinstance(own_id, bool) or not isinstance(own_id, (int, str)) or not ("text" in record or "error" in record):
        return None
    failed = record.get("error") is not None
    model = None if failed else (str(record.get("target")), str(record.get("precision")))
    return own_id, KeptRecord(failed, record.get("digest"), model)


def _open(path: str, shown: str) -> int:
    flags = os.O_RDWR if os.path.isfile(path) or not os.path.exists(path) else os.O_WRONLY
    try:
        new = not os.path.exists(path)
        fd = os.open(path, flags | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if new:
            _sync_folder(os.path.dirname(path))
        return fd
    except OSError as error:
        raise UsageError(f"-o {shown} cannot be written: {error.strerror}") from None


def _sync_folder(folder: str) -> None:
    """A new file survives a power failure only when its folder is on disk, too."""
    fd = os.open(folder, os.O_RDONLY)
    with suppress(OSError):  # some file systems cannot
        os.fsync(fd)
    os.close(fd)


def _lock(fd: int, shown: str) -> None:
    """Two runs into one file would do the same prompts twice."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(f"-o {shown}: another run is writing it; wait for its end, or name another file") from None
    except OSError:  # a file system without locks; nothing is lost by that but this check
        return
    if not os.path.samestat(os.fstat(fd), os.stat(shown)):
        raise UsageError(f"-o {shown}: another run has just replaced it; wait for its end, or name another file")
