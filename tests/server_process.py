"""`ipex-assist serve` as a process, with engines that need no model (serve_fake.py)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FAKE = [sys.executable, str(Path(__file__).with_name("serve_fake.py")), "--no-launch", "--offline", "--port", "0"]


class Server:
    """A server in the background. files: how many it may have open, of which the limit cannot be raised."""

    def __init__(self, *arguments: object, target: str = "fake", files: int | None = None, **environ: str) -> None:
        prefix = [] if files is None else ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh"]
        self.process = subprocess.Popen(
            [*prefix, *FAKE, "-m", target, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "FIRST": "", **environ},
        )
        self.err = ""

    def until_said(self, words: str) -> str:
        """Read its standard error until a line has these words; returns that line."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.err += line
            if words in line:
                return line
        raise AssertionError(f"it has ended without saying {words!r}: {self.err}")

    def url(self) -> str:
        found = re.search(r"http://127\.0\.0\.1:\d+", self.until_said("answers /health"))
        assert found is not None
        return found[0]

    def end(self, seconds: float = 30) -> tuple[int, str]:
        """Its exit code and all that it said."""
        _, err = self.process.communicate(timeout=seconds)
        self.err += err
        assert "Traceback" not in self.err, self.err
        return self.process.returncode, self.err


@contextmanager
def running(*arguments: object, **more: Any) -> Iterator[Server]:
    server = Server(*arguments, **more)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.communicate()
