"""Memory that processes have booked for keys and values and not yet taken. Never imports torch.

Pages of keys and values are taken as they are written, so that free memory does not show what others count on: two
servers that start together would both plan with all of it. Each process keeps a file in the cache folder with what it
has booked, and a lock on it for as long as it lives; a lock on the folder lets one process at a time look and book.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ipex_assist.env.cache import cache_folder
from ipex_assist.env.hints import machine_name
from ipex_assist.env.memory import resident_bytes
from ipex_assist.executors.folder_lock import one_at_a_time

log = logging.getLogger("ipex_assist")


@dataclass
class _OwnFile:
    """This process's file. booked: bytes. resident: its own memory when it booked, in bytes."""

    process: int
    path: Path
    file: BinaryIO
    booked: int = 0
    resident: int = 0
    share: float = 1.0
    nodes: tuple[int, ...] = ()

    def write(self) -> None:
        fields = {
            "booked": self.booked,
            "resident": self.resident,
            "share": self.share,
            "nodes": self.nodes,
            "parent": os.getppid(),
        }
        self.file.seek(0)
        self.file.truncate()
        self.file.write(json.dumps(fields).encode())
        self.file.flush()


_own: _OwnFile | None = None
_lock = threading.RLock()  # of _own; a finalizer may run in the thread that holds it


class Bookings:
    """What is booked on this machine, while nobody else can book. folder: None where nothing can be kept."""

    def __init__(self, folder: Path | None, share: float, nodes: tuple[int, ...] = ()) -> None:
        """share: the part of the memory of `nodes` that this process was given; none: all nodes."""
        self._folder, self._share, self._nodes = folder, share, nodes

    def of_others(self) -> int:
        """Bytes that other processes have booked and not yet taken.

        Neighbours that a launcher has given their parts do not count: what they may take is in nobody else's part. Nor
        do processes that take memory from other nodes.
        """
        if self._folder is None:
            return 0
        found = 0
        for path in self._folder.glob(f"{machine_name()}.*"):
            process = path.name.rpartition(".")[2]
            if process.isdecimal() and int(process) != os.getpid():
                found += self._outstanding(path, int(process))
        return found

    def _outstanding(self, path: Path, process: int) -> int:
        fields = _fields_of_living(path)
        booked, resident, share, nodes = (fields.get(key) for key in ("booked", "resident", "share", "nodes"))
        if type(booked) is not int or type(resident) is not int:
            return 0
        if nodes and isinstance(nodes, list) and self._nodes and set(self._nodes).isdisjoint(nodes):
            return 0
        shares = isinstance(share, float) and share < 1 and self._share < 1
        if shares and fields.get("parent") == os.getppid():
            return 0
        now = resident_bytes(own=True, process=process)
        return max(0, booked - max(0, now - resident))

    def book(self, owner: object, size: int) -> None:
        """Book `size` bytes for as long as `owner` lives."""
        if self._folder is None:
            return
        try:
            with _lock:
                own = _own_file(self._folder)
                # What was booked before may be taken by now, and is then part of the resident memory.
                left = max(0, own.booked - max(0, resident_bytes(own=True) - own.resident))
                own.booked, own.resident, own.share = left + size, resident_bytes(own=True), self._share
                own.nodes = self._nodes
                own.write()
        except OSError as error:
            log.info("memory for keys and values is not booked in %s: %s", self._folder, error)
            return
        weakref.finalize(owner, _release, own.process, own.path, size)


@contextlib.contextmanager
def bookings(share: float = 1.0, nodes: tuple[int, ...] = ()) -> Iterator[Bookings]:
    """Look at what is booked, and book, while other processes of this machine wait.

    Without a cache folder, or in one without locks, everybody is alone.
    """
    with contextlib.ExitStack() as stack:
        folder: Path | None = None
        try:
            folder = cache_folder("memory")
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            stack.enter_context(one_at_a_time(folder))
        except (OSError, RuntimeError) as error:
            log.info("memory for keys and values is not booked: %s", error)
            folder = None
        yield Bookings(folder, share, nodes)


def _own_file(folder: Path) -> _OwnFile:
    """The file of this process, which a child of fork() does not share with it."""
    global _own
    path = folder / f"{machine_name()}.{os.getpid()}"
    if _own is None or (_own.process, _own.path) != (os.getpid(), path):
        file = path.open("wb")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a disk without locks: nobody could tell that this process has ended
            file.close()
            path.unlink(missing_ok=True)
            raise
        _own = _OwnFile(os.getpid(), path, file)
    return _own


def _fields_of_living(path: Path) -> dict[str, Any]:
    """What a process has booked; nothing where it has ended, and then its file is deleted."""
    with contextlib.suppress(OSError, ValueError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            fields = json.loads(file.read())
            return fields if isinstance(fields, dict) else {}
        path.unlink(missing_ok=True)
    return {}


def _release(process: int, path: Path, size: int) -> None:
    """Give back what an owner had booked; the file goes with the last of it."""
    global _own
    if process != os.getpid():  # in a child of fork()
        return
    with _lock:
        if _own is None or (_own.process, _own.path) != (process, path):
            return
        _own.booked = max(0, _own.booked - size)
        with contextlib.suppress(OSError, ValueError):
            if _own.booked:
                _own.write()
                return
            _own.path.unlink(missing_ok=True)
            _own.file.close()
        _own = None
