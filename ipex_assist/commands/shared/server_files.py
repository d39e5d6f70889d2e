"""Files by which the running servers of this user are found: one each, locked for as long as its server lives.

Never imports torch.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ipex_assist.env.cache import cache_folder
from ipex_assist.env.hints import machine_name

log = logging.getLogger("ipex_assist")


@dataclass(frozen=True)
class RunningServer:
    """A server of this machine. address: its URL, or unix:PATH. keys: whether it asks for an API key. started: Unix
    time."""

    process: int
    address: str
    keys: bool
    started: float


@contextlib.contextmanager
def announced(address: str, *, keys: bool) -> Iterator[None]:
    """Be found by `running_servers` within this context; nothing happens where no cache folder can be written."""
    path = None
    with contextlib.ExitStack() as stack:
        try:
            folder = cache_folder("servers")
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = folder / f"{machine_name()}.{os.getpid()}"
            file = stack.enter_context(path.open("w", encoding="utf-8"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(json.dumps(asdict(RunningServer(os.getpid(), address, keys, time.time()))))
            file.flush()
        except (OSError, RuntimeError) as error:
            log.info("ipex-assist ps will not find this server: %s", error)
        try:
            yield
        finally:
            if path is not None:
                with contextlib.suppress(OSError):
                    path.unlink()


def running_servers() -> list[RunningServer]:
    """The servers of this user on this machine, the oldest first. Files of those that have died are deleted."""
    found = []
    with contextlib.suppress(OSError, RuntimeError):
        for path in cache_folder("servers").glob(f"{machine_name()}.*"):
            with contextlib.suppress(OSError, ValueError, TypeError):
                if (server := _living(path)) is not None:
                    found.append(server)
    return sorted(found, key=lambda server: server.started)


def _living(path: Path) -> RunningServer | None:
    with path.open(encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return RunningServer(**json.load(file))
        path.unlink(missing_ok=True)
        return None
