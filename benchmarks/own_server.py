"""A server of our own for as long as a benchmark lasts, and what it says of itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from types import TracebackType
from typing import IO, Any

import psutil
from peers_recipes import last_lines
from prometheus_client.parser import text_string_to_metric_families

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.launch.plan import MASK_AT_START, without_plan

WAIT = 0.05  # seconds between two looks
ADDRESS = re.compile(r"https?://([\d.]+):(\d+)(?: answers /health|, each loaded)")
END_SECONDS = 30.0
MOST_SAID = 1 << 20
PASSES = "ipex_assist:passes_total"


class OwnServer:
    """`ipex-assist serve` on a free port; use as a context. Entering it waits until it is ready.

    Raises IpexAssistError where it does not become so, with the last words it said.
    """

    address: tuple[str, int]
    process: subprocess.Popen[bytes]
    _said: IO[Any]

    def __init__(self, arguments: list[str], environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        self._argv = [sys.executable, "-m", "ipex_assist", "serve", *arguments, "--port", "0"]

    def __enter__(self) -> OwnServer:
        self._said = tempfile.TemporaryFile()
        mask = os.sched_getaffinity(0)
        os.sched_setaffinity(0, MASK_AT_START)  # OpenMP may have bound this thread to one of these CPUs
        try:
            self.process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                env=without_plan(self._environ),
            )
        finally:
            os.sched_setaffinity(0, mask)
        try:
            self._wait_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _wait_ready(self) -> None:
        found = None
        while "ready at http" not in (said := self._words()):
            found = found or ADDRESS.search(said)
            if self.process.poll() is not None:
                raise IpexAssistError(f"the server ended with {self.process.returncode}: {last_lines(said)}")
            time.sleep(WAIT)
        found = found or ADDRESS.search(said)
        assert found is not None, said
        self.address = found[1], int(found[2])

    def _words(self) -> str:
        # Not by seek and read, which would move the place where the server writes.
        return os.pread(self._said.fileno(), MOST_SAID, 0).decode(errors="replace")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for sign in (signal.SIGTERM, signal.SIGKILL):  # the kernel ends its engines with it
            self.process.send_signal(sign)
            try:
                self.process.wait(END_SECONDS)
                break
            except subprocess.TimeoutExpired:
                continue
        self._said.close()

    def passes(self) -> int:
        """Passes of the target so far; exact while nothing runs."""
        url = f"http://{self.address[0]}:{self.address[1]}/metrics"
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=60) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        return sum(int(one.value) for family in families for one in family.samples if one.name == PASSES)


def processor_seconds(pid: int) -> dict[str, float]:
    """Processor time so far of a server's front, and of its engines: all processes below it."""
    front = psutil.Process(pid)
    below = [sum(process.cpu_times()[:2]) for process in front.children(recursive=True)]
    return {"front": sum(front.cpu_times()[:2]), "engines": sum(below)}
