"""Writes the output of several instances to one terminal or file: whole lines, labelled with the instance if asked."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable

# A longer line is passed on in parts that each end with a line end, so that buffers stay bounded.
LONGEST_LINE = 1 << 20
READ_SIZE = 1 << 16


class Sink:
    """Our standard output or error, by file descriptor. Writing never blocks.

    A reader may stop reading (a pager, Ctrl-S) while signals and deadlines must still be handled. Bytes that it has not
    taken stay in `pending`. `lost` is the errno of the first write that failed, after which nothing more is written.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.lost: int | None = None
        self.pending = bytearray()

    def write(self, data: bytes) -> None:
        """Append `data` to the pending bytes, and write as many as the reader takes."""
        if self.lost is None:
            self.pending += data
            self.flush()

    def flush(self) -> None:
        """Write as many pending bytes as possible without waiting."""
        while self.pending and select.select([], [self.fd], [], 0)[1]:
            try:
                # Where select reports room, PIPE_BUF bytes fit without waiting.
                written = os.write(self.fd, self.pending[: select.PIPE_BUF])
            except BlockingIOError:  # somebody who shares this terminal made it non-blocking
                return
            except OSError as error:
                self.lost = error.errno or errno.EIO
                self.pending.clear()
                return
            del self.pending[:written]


class LineAssembler:
    """Collects bytes into lines, and writes whole lines, each after `prefix`."""

    def __init__(self, write: Callable[[bytes], None], prefix: str = "") -> None:
        self._write = write
        self._prefix = prefix.encode()
        self._rest = bytearray()

    def feed(self, data: bytes) -> None:
        """Add `data`, and write all lines that are complete now, in one write."""
        self._rest += data
        end = self._rest.rfind(b"\n") + 1
        if end:
            lines = bytes(self._rest[:end])
            del self._rest[:end]
            self._write(self._label(lines))
        while len(self._rest) >= LONGEST_LINE:
            start = bytes(self._rest[:LONGEST_LINE])
            del self._rest[:LONGEST_LINE]
            self._write(self._label(start + b"\n"))

    def finish(self) -> None:
        """Write the rest. A last line without a line end gets one, so that the next instance begins a new line."""
        if self._rest:
            rest = bytes(self._rest)
            self._rest.clear()
            self._write(self._label(rest + b"\n"))

    def _label(self, lines: bytes) -> bytes:
        if not self._prefix:
            return lines
        return self._prefix + lines[:-1].replace(b"\n", b"\n" + self._prefix) + b"\n"


class OutputSource:
    """One output stream of one instance: the pipe that it writes to, or its log file, which is followed as it grows."""

    def __init__(self, fd: int, lines: LineAssembler) -> None:
        self.fd = fd
        self.open = True
        self._lines = lines
        os.set_blocking(fd, False)

    def read(self) -> bool:
        """Read up to READ_SIZE available bytes. False where there were none: the end of a pipe, or of a log so far."""
        try:
            data = os.read(self.fd, READ_SIZE)
        except BlockingIOError:
            return False
        self._lines.feed(data)
        return bool(data)

    def close(self) -> None:
        """Write the last line and close. A process that writes on gets SIGPIPE, as with a pipe in a shell."""
        if self.open:
            self._lines.finish()
            os.close(self.fd)
            self.open = False
