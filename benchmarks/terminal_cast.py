"""Records what a command writes to a terminal, with times, as an asciicast: https://docs.asciinema.org/manual/asciicast/v2/"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipex_assist.env.errors import IpexAssistError

TYPING = 0.05  # seconds between two keys
THINKING = 0.6  # before the first key and before Enter
PROMPT = "\x1b[32m$\x1b[0m "


@dataclass(frozen=True)
class Cast:
    """A terminal's size, the command line that is typed in it, and its output as (seconds, text), in order.

    title: for a reader of the file; here the machine.
    """

    columns: int
    rows: int
    command: str
    recorded: int  # seconds since the epoch
    output: tuple[tuple[float, str], ...]
    title: str = ""

    def dumps(self) -> str:
        """The file: a header, then a line for each event."""
        header: dict[str, Any] = {"version": 2, "width": self.columns, "height": self.rows, "timestamp": self.recorded}
        header |= {"title": self.title, "command": self.command, "env": {"TERM": "xterm-256color"}}
        lines: list[Any] = [header]
        lines += [[round(seconds, 3), "o", text] for seconds, text in self.output]
        return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)

    @classmethod
    def load(cls, path: Path) -> Cast:
        """Read a file that dumps() or another recorder wrote. Raises IpexAssistError where it is not version 2."""
        header, *events = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if header.get("version") != 2:
            raise IpexAssistError(f"{path} is an asciicast of version {header.get('version')}; version 2 can be read")
        output = tuple((seconds, text) for seconds, kind, text in events if kind == "o")
        size = header["width"], header["height"]
        return cls(*size, header.get("command", ""), header.get("timestamp", 0), output, header.get("title", ""))


def record(
    command: str, argv: Sequence[str], *, columns: int, rows: int, environ: Mapping[str, str], folder: Path
) -> Cast:
    """Run argv in a pseudo-terminal and record it; `command` is what a reader would type for it.

    The typed line is written here, key by key; everything after it is the program's own output at its own times.
    Raises IpexAssistError where the program does not end with 0.
    """
    typed = [(0.0, PROMPT)]
    typed += [(THINKING + number * TYPING, key) for number, key in enumerate(command)]
    entered = typed[-1][0] + THINKING
    typed.append((entered, "\r\n"))
    output: list[tuple[float, str]] = []
    code = run_in_terminal(
        argv, columns, rows, environ, folder, lambda seconds, text: output.append((entered + seconds, text))
    )
    if code:
        said = "".join(text for _, text in output)
        raise IpexAssistError(f"{command} ended with {code}, so that nothing is recorded: {said[-600:]}")
    return Cast(columns, rows, command, int(time.time()), (*typed, *output))


def run_in_terminal(
    argv: Sequence[str],
    columns: int,
    rows: int,
    environ: Mapping[str, str],
    folder: Path,
    written: Callable[[float, str], object],
) -> int:
    """Run argv in `folder` on a terminal of its own. written: called with (seconds since the start, text).

    Returns the exit code.
    """
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    own = {name: value for name, value in environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    started = time.monotonic()
    process = subprocess.Popen(
        argv, stdin=its, stdout=its, stderr=its, cwd=folder, env={**own, "TERM": "xterm-256color"},
        start_new_session=True,
    )  # fmt: skip
    os.close(its)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        while read := _read(ours):
            if text := decoder.decode(read):
                written(time.monotonic() - started, text)
        return process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        os.close(ours)


def _read(terminal: int) -> bytes:
    """Return what was written; nothing after the last program that could write has closed it."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # EIO, which is how Linux tells the end
        return b""
