"""The output of several instances on one terminal or file: whole lines, each with its instance if asked for."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable

# A line longer than this is passed on in pieces, each ended by a line end: nothing may grow without bound.
LONGEST_LINE = 1 << 20
READ_SIZE = 1 << 16


class Sink:
    """Our own standard output or error, by its file descriptor; it never blocks.

    A reader may stop reading (a pager, Ctrl-S), and signals and deadlines must be acted on all the same. What it does
    not take stays in `pending`. `lost` is the errno of the first write that failed, after which nothing is written.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.lost: int | None = None
        self.pending = bytearray()

    def write(self, data: bytes) -> None:
        """Write what the reader takes of `data` after what is pending."""
        if self.lost is None:
            self.pending += data
            self.flush()

    def flush(self) -> None:
        """Write as much of what is pending as can be without waiting."""
        while self.pending and select.select([], [self.fd], [], 0)[1]:
            try:
                # So much fits without waiting wherever select says that there is room.
                written = os.write(self.fd, self.pending[: select.PIPE_BUF])
            except BlockingIOError:  # somebody who shares this terminal made it non-blocking
                return
            except OSError as error:
                self.lost = error.errno or errno.EIO
                self.pending.clear()
                return
            del self.pending[:written]


class LineAssembler:
    """Takes bytes as they come and hands on whole lines, each after `prefix`."""

    def __init__(self, write: Callable[[bytes], None], prefix: str = "") -> None:
        self._write = write
        self._prefix = prefix.encode()
        self._rest = bytearray()

    def feed(self, data: bytes) -> None:
        """Add `data`; all lines that it completes are written at once."""
        self._rest += data
        end = self._rest.rfind(b"\n") + 1
        if end:
            lines = bytes(self._rest[:end])
            del self._rest[:end]
            self._write(self._label(lines))
        while len(self._rest) >= LONGEST_LINE:
            piece = bytes(self._rest[:LONGEST_LINE])
            del self._rest[:LONGEST_LINE]
            self._write(self._label(piece + b"\n"))

    def finish(self) -> None:
        """Write what is left; a last line without an end gets one, so that the next instance's starts anew."""
        if self._rest:
            rest = bytes(self._rest)
            self._rest.clear()
            self._write(self._label(rest + b"\n"))

    def _label(self, lines: bytes) -> bytes:
        if not self._prefix:
            return lines
        return self._prefix + lines[:-1].replace(b"\n", b"\n" + self._prefix) + b"\n"


class OutputSource:
    """One stream of one instance: a pipe that it writes to, or the log file that is followed as it grows."""

    def __init__(self, fd: int, lines: LineAssembler) -> None:
        self.fd = fd
        self.open = True
        self._lines = lines
        os.set_blocking(fd, False)

    def read(self) -> bool:
        """Take one piece of what is there; whether there was any. The end of a pipe closes it."""
        try:
            data = os.read(self.fd, READ_SIZE)
        except BlockingIOError:
            return False
        self._lines.feed(data)
        return bool(data)

    def close(self) -> None:
        """Hand on the last line and close; a writer that goes on gets SIGPIPE, as it would from a shell's pipe."""
        if self.open:
            self._lines.finish()
            os.close(self.fd)
            self.open = False
