"""A process that tries grammars, and that is killed when one of them takes too long."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import psutil

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.versions import install_command
from ipex_assist.launch.spawn import kill_child
from ipex_assist.serve.backend import Failed, NotReady
from ipex_assist.speculative.choosing.grammar import GrammarSpec

SECONDS = 1.0  # of CPU time that a grammar may take
PATIENCE = 10.0  # seconds of wall-clock time
TRIES = 2  # of a grammar whose process died: others may have killed it


def trial_program() -> list[str]:
    """The argv of `grammar_trial`."""
    return [sys.executable, "-m", "ipex_assist.serve.grammar_trial"]


class CheckerProcess:
    """One process of a `GrammarChecker`: started with its first grammar, and again after its end. Thread-safe."""

    def __init__(self, program: Callable[[], list[str]] = trial_program) -> None:
        """program: returns the argv."""
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def reason_against(self, spec: GrammarSpec) -> str | None:
        """Why the grammar cannot be used, or None. Takes about a second of CPU time at most.

        Raises IpexAssistError where the process does not start, Failed where the machine had no time for it, NotReady
        after `close`.
        """
        line = json.dumps({"kind": spec.kind, "value": spec.value}).encode() + b"\n"
        with self._lock:
            for _ in range(TRIES):
                try:
                    reason = json.loads(self._ask(self._running(), line, SECONDS))["reason"]
                    return None if reason is None else str(reason)
                except TimeoutError:
                    self._end()
                    return f"it takes longer than {SECONDS:g} s to compile, or to begin a text; make it smaller"
                except ChildProcessError:
                    self._end()
        return "it takes too much memory to compile, or breaks the compiler; make it smaller"

    def close(self) -> None:
        """End the process, also in the midst of a grammar."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        """The process, which is started if there is none, or if it has ended on its own."""
        if self._closed:
            raise NotReady("the server is about to end")
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        self._process = process = subprocess.Popen(
            self._program(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            self._ask(process, b"", PATIENCE)
        except (ChildProcessError, TimeoutError):
            self._end()
            raise IpexAssistError(
                f"grammars cannot be checked, as the process for it does not start: {install_command('serve')}"
            ) from None
        return process

    def _ask(self, process: subprocess.Popen[bytes], line: bytes, seconds: float) -> bytes:
        """Send a line, and return the next line of the process.

        Raises ChildProcessError if it dies, TimeoutError if it takes more CPU `seconds`, Failed if it gets none.
        """
        assert process.stdin is not None
        assert process.stdout is not None
        before, until = _spent(process.pid), time.monotonic() + PATIENCE
        answer = b""
        with selectors.DefaultSelector() as selector, contextlib.suppress(BrokenPipeError):
            selector.register(process.stdout, selectors.EVENT_READ)
            process.stdin.write(line)
            process.stdin.flush()
            while not answer.endswith(b"\n"):
                if selector.select(0.02):
                    piece = os.read(process.stdout.fileno(), 65536)
                    if not piece:
                        break
                    answer += piece
                elif _spent(process.pid) - before > seconds:
                    raise TimeoutError
                elif time.monotonic() > until:
                    self._end()
                    raise Failed(f"the grammar could not be tried in {PATIENCE:g} s: the machine is busy", again=True)
            else:
                return answer
        process.wait()
        raise ChildProcessError

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            kill_child(process)


def _spent(pid: int) -> float:
    """CPU seconds that a process has used."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
