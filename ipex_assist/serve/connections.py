"""Open connections: how many there may be, how long each may take, and which of them gives way to a new one."""

from __future__ import annotations

import enum
import os
import resource
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from ipex_assist.serve.options import ServeOptions

KEEP_ALIVE_SECONDS = 75.0  # longer than clients keep idle connections, to avoid closing one that is being reused
HEAD_SECONDS = 20.0  # for the head of a request, from its first byte or from the connection's beginning
STALL_SECONDS = 120.0  # in which a client must read some of what waits for it
MOST_CONNECTIONS = 4096
LEAST_CONNECTIONS = 16  # whatever the limit of open files is
ACCEPT_AT_ONCE = 16  # connections accepted before those accepted earlier are counted
SPARE = 16  # connections beyond the limit, which monitoring may use
# Descriptors that are not for connections: engines' pipes, files, spare connections, and some turns of accepting.
RESERVED_DESCRIPTORS = 128


class Phase(enum.IntEnum):
    """What a connection does, in the order in which connections give way to new ones; from BUSY on they do not."""

    HEAD = 0  # sends the head of a request, or nothing yet
    REST = 1  # is answered, and still sends the body
    IDLE = 2  # between two requests
    BODY = 3  # sends the body of a request
    BUSY = 4  # waits for its answer, or gets it
    UNREAD = 5  # has been sent more than it reads, or is being closed


@dataclass(frozen=True)
class ConnectionLimits:
    """most: connections at a time. The others: seconds for a phase.

    body: from the end of the head. unread: without a byte being read.
    """

    most: int = MOST_CONNECTIONS
    head: float = HEAD_SECONDS
    body: float = 600.0
    idle: float = KEEP_ALIVE_SECONDS
    unread: float = STALL_SECONDS


class Connection(Protocol):
    """What the table needs of a connection."""

    def may_close(self) -> bool:
        """Whether nothing waits to be sent on it, so that closing it frees its descriptor."""

    def give_way(self) -> None:
        """Close for the sake of a new connection."""


class ConnectionTable:
    """All open connections by their phase, each phase in the order in which they came to it."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._in: dict[Phase, OrderedDict[Connection, None]] = {phase: OrderedDict() for phase in Phase}

    def __len__(self) -> int:
        return sum(map(len, self._in.values()))

    @property
    def full(self) -> bool:
        """Whether there are more than the limit."""
        return len(self) > self.limits.most

    def move(self, connection: Connection, old: Phase | None, new: Phase | None) -> None:
        """Note that a connection has come to a phase. None: before it is open, and after it is closed."""
        if old is not None:
            self._in[old].pop(connection, None)
        if new is not None:
            self._in[new][connection] = None

    def first_to_close(self, newest: Connection) -> Connection | None:
        """The connection, other than `newest`, that gives way to it; None where all are busy."""
        for phase in Phase:
            if phase < Phase.BUSY:
                for each in self._in[phase]:
                    if each is not newest and each.may_close():
                        return each
        return None


def connection_limits(options: ServeOptions) -> ConnectionLimits:
    """The limits of a server in this process. Raises the soft limit of open files, as far as needed and allowed."""
    wanted = max(MOST_CONNECTIONS, 2 * options.max_queue)
    taken = _open_descriptors() + RESERVED_DESCRIPTORS
    files = _raise_file_limit(wanted + taken)
    return ConnectionLimits(most=max(LEAST_CONNECTIONS, min(wanted, files - taken)), body=options.timeout)


def _raise_file_limit(wanted: int) -> int:
    """Returns how many files may be open now."""
    soft, hard = (
        wanted if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    if soft < wanted and soft < hard:
        soft = min(wanted, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        except (OSError, ValueError):  # some systems have a lower bound of their own
            return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft


def _open_descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 32
