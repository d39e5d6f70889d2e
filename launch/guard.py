"""Runs work that starts processes so that none of them outlives it, whatever ends it, including kill -9."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from types import FrameType

from ipex_assist.launch.spawn import adopt_orphans, descendants, die_with_parent

# The kernel sends this to the worker when the guard has ended; nothing else uses it.
GUARD_HAS_ENDED = signal.SIGRTMIN + 11
FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGCONT,
)
SWEEP_SECONDS = 2.0


def guarded(work: Callable[[], int]) -> int:
    """Run `work` in a child of this process and return its exit code.

    Two processes watch each other, because no process can react to a kill -9 of itself. Each adopts the orphans below
    it. If this one is killed, the worker kills all of its descendants; if the worker is killed, this one does.
    Processes that `work` leaves running when it returns are ended as well. Signals are forwarded to the worker, which
    is in a process group of its own, so that a Ctrl-C reaches it once. Call it from the main thread, before threads
    are started.
    """
    adopt_orphans()
    _flush()
    guard = os.getpid()
    strangers = descendants(guard)  # children of the shell that this process was: exec ipex-launch … > >(tee log)
    signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    worker = os.fork()
    if worker == 0:
        _work(work, guard)
    previous = {number: signal.getsignal(number) for number in FORWARDED}

    def forward(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(worker, number)
        if number == signal.SIGTSTP:  # Ctrl-Z: the worker stops its processes, and the shell waits for this one to stop
            os.kill(guard, signal.SIGSTOP)

    for number, handler in previous.items():
        if handler is not signal.SIG_IGN:  # nohup
            signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
    try:
        _, status = os.waitpid(worker, 0)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        kill_descendants(strangers)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _work(work: Callable[[], int], guard: int) -> None:
    """The worker process, from fork to exit; never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        adopt_orphans()
        signal.signal(GUARD_HAS_ENDED, _guard_has_ended)
        die_with_parent(guard, GUARD_HAS_ENDED)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        code = work()
        _sweep()
        _flush()
    except BrokenPipeError:
        code = 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        kill_descendants()
        os._exit(code)


def _guard_has_ended(number: int, frame: FrameType | None) -> None:
    kill_descendants()
    os._exit(128 + signal.SIGKILL)


def _sweep() -> None:
    """Send SIGTERM to descendants that still run, and give them some time."""
    for pid in descendants(os.getpid()):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + SWEEP_SECONDS
    while descendants(os.getpid()) and time.monotonic() < deadline:
        time.sleep(0.02)


def kill_descendants(spared: Collection[int] = ()) -> None:
    """Kill and reap the descendants of this process, their subreaper, until only `spared` ones are left.

    A process that another user owns (from a setuid program) cannot be killed, and is left running.
    """
    while pids := set(descendants(os.getpid())) - set(spared):
        killed = 0
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        if not killed:
            break
        _reap(pids)
        time.sleep(0.005)


def _reap(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
