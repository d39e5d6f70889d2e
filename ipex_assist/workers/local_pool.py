"""Instances as pinned processes of this machine, which speak JSON lines over pipes."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from ipex_assist.launch import LaunchCommand, Placement
from ipex_assist.launch.endings import describe_kill, oom_kills
from ipex_assist.launch.spawn import signal_group, spawn_command
from ipex_assist.workers.wire import (
    Answered,
    Cancel,
    Ended,
    Event,
    LogLine,
    Pause,
    Ready,
    Refused,
    Request,
    Resume,
    ToWorker,
    encoded,
    from_worker,
)

READ_BYTES = 1 << 18
LONGEST_LINE = 1 << 16  # of standard error; results may be longer
EXIT_SECONDS = 1.0  # between the last word of a process and its end
REAP_SECONDS = 5.0  # a killed process that does not end by then hangs in the kernel, as on a dead file server
CLOSE_SECONDS = 2.0


class _Worker:
    """One process and its three pipes, none of which can make us wait."""

    def __init__(self, command: LaunchCommand, settings: object) -> None:
        self.oom_kills = oom_kills()
        self.process = spawn_command(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.requests = self.process.stdin.fileno()
        self.replies = self.process.stdout.fileno()
        self.messages = self.process.stderr.fileno()
        self.outgoing = bytearray(encoded(settings))
        self.incoming: dict[int, bytes] = {self.replies: b"", self.messages: b""}
        self.refusal: Refused | None = None
        self.killed_for: str | None = None
        self.ready = False
        self.in_flight = 0
        for fd in (self.requests, self.replies, self.messages):
            os.set_blocking(fd, False)

    def write(self) -> bool:
        """Send what fits into the pipe; whether all has been sent."""
        try:
            while self.outgoing:
                del self.outgoing[: os.write(self.requests, self.outgoing)]
        except BlockingIOError:
            return False
        except BrokenPipeError:  # the end of its replies says so, too
            self.outgoing.clear()
        return True

    def read(self, fd: int) -> tuple[list[bytes], bool]:
        """The lines that came through `fd`, and whether more may come; BlockingIOError where there is nothing now."""
        data = os.read(fd, READ_BYTES)
        *lines, rest = (self.incoming[fd] + data).split(b"\n")
        if fd == self.messages and (len(rest) > LONGEST_LINE or not data):
            lines, rest = [*lines, rest], b""
        self.incoming[fd] = rest
        return [line for line in lines if line], bool(data)

    def drain(self, fd: int) -> list[bytes]:
        """Return the lines that are in the pipe already."""
        found: list[bytes] = []
        more = True
        with suppress(BlockingIOError):
            while more:
                lines, more = self.read(fd)
                found += lines
        return found

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


class LocalPool:
    """Runs one process per command. `settings`, usually WorkerSettings, is the first line that each is sent."""

    def __init__(self, commands: Sequence[LaunchCommand], settings: object) -> None:
        self._commands, self._settings = commands, settings
        self._workers: dict[int, _Worker] = {}
        self._events: list[Event] = []
        self._selector = selectors.EpollSelector()

    @property
    def size(self) -> int:
        return len(self._commands)

    def fileno(self) -> int:
        """A descriptor that becomes readable when `wait` would return something, but for some ends of processes."""
        return self._selector.fileno()

    def describe(self, instance: int) -> str:
        return self._commands[instance].describe()

    def host(self, instance: int) -> str:
        return socket.gethostname()

    def start(self, instance: int) -> None:
        worker = self._workers[instance] = _Worker(self._commands[instance], self._settings)
        for fd in (worker.replies, worker.messages):
            self._selector.register(fd, selectors.EVENT_READ, instance)
        self._send(instance)

    def submit(self, instance: int, request: Request) -> None:
        self._workers[instance].in_flight += 1
        self._tell(instance, request)

    def cancel(self, instance: int, request: int) -> None:
        self._tell(instance, Cancel(request))

    def pause(self, instance: int, request: int) -> None:
        """Ask it to put a request aside; possible where its `Ready` says so."""
        self._tell(instance, Pause(request))

    def resume(self, instance: int, request: int) -> None:
        """Let it go on with a request that was paused."""
        self._tell(instance, Resume(request))

    def _tell(self, instance: int, message: ToWorker) -> None:
        self._workers[instance].outgoing += encoded(message)
        self._send(instance)

    def _send(self, instance: int) -> None:
        """Send now, or as the pipe gets room: an instance that reads nothing must not stop the others."""
        worker = self._workers[instance]
        waits = worker.requests in self._selector.get_map()
        if worker.write():
            if waits:
                self._selector.unregister(worker.requests)
        elif not waits:
            self._selector.register(worker.requests, selectors.EVENT_WRITE, instance)

    def wait(self, seconds: float) -> Sequence[Event]:
        for key, _ in self._selector.select(0 if self._events else seconds):
            worker = self._workers.get(key.data)
            if worker is None:  # it ended a moment ago, in this very loop
                continue
            if key.fd == worker.requests:
                self._send(key.data)
                continue
            try:
                lines, more = worker.read(key.fd)
            except BlockingIOError:
                continue
            self._take(key.data, worker, key.fd, lines)
            if not more:
                if key.fd == worker.messages:
                    self._selector.unregister(key.fd)
                else:
                    self._end(key.data, None)
        # A child that it forked may keep its pipes open beyond its death.
        for instance in [i for i, worker in self._workers.items() if worker.process.poll() is not None]:
            self._end(instance, None)
        events, self._events = self._events, []
        return events

    def _take(self, instance: int, worker: _Worker, fd: int, lines: Sequence[bytes]) -> None:
        if fd == worker.messages:
            self._events += [LogLine(line.decode(errors="replace"), instance=instance) for line in lines]
            return
        for line in lines:
            message = from_worker.read(line)
            message.instance = instance
            if isinstance(message, Refused):
                worker.refusal = message
                continue
            worker.ready = worker.ready or isinstance(message, Ready)
            worker.in_flight -= isinstance(message, Answered)
            self._events.append(message)

    def end(self, instance: int, reason: str) -> None:
        if instance in self._workers:
            self._end(instance, reason)

    def kill(self, instance: int, reason: str) -> None:
        """`end` without waiting: `wait` reports Ended when the kernel has freed what the process had."""
        worker = self._workers.get(instance)
        if worker is not None:
            worker.killed_for = worker.killed_for or reason
            signal_group(worker.process.pid, signal.SIGKILL)

    def _end(self, instance: int, reason: str | None) -> None:
        """Kill the process and its children, read what it sent before, and report its end."""
        worker = self._workers.pop(instance)
        for fd in (worker.requests, worker.replies, worker.messages):
            with suppress(KeyError):
                self._selector.unregister(fd)
        if reason is not None:
            signal_group(worker.process.pid, signal.SIGKILL)
        code = _reap(worker.process)
        signal_group(worker.process.pid, signal.SIGKILL)  # and its children
        for fd in (worker.replies, worker.messages):
            self._take(instance, worker, fd, worker.drain(fd))
        worker.close()
        placement = self._commands[instance].placement
        why = reason or worker.killed_for or _describe_end(code, placement, worker.oom_kills)
        self._events.append(Ended(why, worker.refusal, instance=instance))

    def close(self) -> None:
        """End all processes: those without a prompt end by themselves, the others are killed."""
        for worker in self._workers.values():
            with suppress(OSError):
                worker.process.stdin.close()  # type: ignore[union-attr]
        deadline = time.monotonic() + CLOSE_SECONDS
        for worker in self._workers.values():
            if worker.in_flight or not worker.ready:
                signal_group(worker.process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, deadline - time.monotonic()))
            signal_group(worker.process.pid, signal.SIGKILL)
        for worker in self._workers.values():
            _reap(worker.process)
            worker.close()
        self._workers.clear()
        self._selector.close()


def _reap(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code of a process that is ending; it is killed if it is not."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(EXIT_SECONDS)
    signal_group(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        return process.wait(REAP_SECONDS)
    return None


def _describe_end(code: int | None, placement: Placement, oom_kills: int | None) -> str:
    if code is None:
        return "hangs in the kernel, where no signal reaches it"
    return f"ended with exit code {code}" if code >= 0 else describe_kill(-code, placement, oom_kills)
