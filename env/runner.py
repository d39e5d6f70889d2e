"""Runs a command: turns errors into a message and an exit code, signals and closed pipes into what shells expect."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.pipes import discard_output, reader_has_gone

# Exit codes as shells report them: 128 + the signal's number.
INTERRUPT_EXIT, TERMINATE_EXIT = 128 + signal.SIGINT, 128 + signal.SIGTERM
# The same signal within this time is one: a scheduler signals a job and each of its processes, and what is sent to a
# whole process group also comes from our parent, which passes it on. A person who insists presses Ctrl-C later.
REPEAT_SECONDS = 0.5


class Terminated(KeyboardInterrupt):
    """SIGTERM as an exception: it ends a command as Ctrl-C does, but with its own exit code."""


def interrupt_exit(error: KeyboardInterrupt) -> int:
    """The exit code of a command ended by Ctrl-C or SIGTERM."""
    return TERMINATE_EXIT if isinstance(error, Terminated) else INTERRUPT_EXIT


def run_command(work: Callable[[], int], prefix: str, *, verbose: bool | None = False) -> int:
    """Run `work`, flush standard output, and return the exit code whatever happens.

    prefix: of error messages. verbose: show the traceback of an unexpected error; None for a command without a -v
    flag, which always shows it, except for errors of the operating system (a full disk).
    """
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by `held_interrupts`
        code = work()
        if sys.stdout is not None:
            sys.stdout.flush()  # here, so that a closed pipe is handled below
        return code
    except IpexAssistError as error:
        return _fail(prefix, str(error), error.exit_code)
    except SystemExit as stop:  # argparse has printed the help, or what is wrong
        return _leave(stop, prefix, verbose)
    except KeyboardInterrupt as error:
        return interrupt_exit(error)
    except BrokenPipeError:
        return reader_has_gone()
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # in the body of a class, which Python before 3.12 wraps
            return interrupt_exit(error.__cause__)
        return _fail(prefix, _describe(error, verbose), 1)


@contextlib.contextmanager
def terminated_by_sigterm() -> Iterator[None]:
    """Let SIGTERM raise Terminated inside the `with`, in the main thread, unless it already has a handler."""
    ours = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, _ending)
    try:
        yield
    finally:
        if ours and signal.getsignal(signal.SIGTERM) is _ending:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def held_interrupts() -> Iterator[None]:
    """Hold back Ctrl-C while this process becomes another command of ours by exec, which handles it in `run_command`.

    An interpreter that is just starting would answer Ctrl-C with a traceback. The mask of blocked signals and pending
    signals survive exec.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def same_interrupts_after() -> Iterator[None]:
    """Have the handler of Ctrl-C after the `with` that there was before it: for commands called from Python."""
    ours = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if ours and before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _ending)
    try:
        yield
    finally:
        if ours and signal.getsignal(signal.SIGINT) is not before:
            signal.signal(signal.SIGINT, before)


def ignore_interrupts() -> None:
    """Ignore Ctrl-C in the main thread, once work is done and written: what frees memory cannot be interrupted.

    In a `__del__` or a callback of `weakref`, Python prints KeyboardInterrupt with its traceback and goes on.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error is Python's or torch's for failed memory allocation."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


class _Ending:
    """Handlers of SIGINT and SIGTERM, which raise at once, but not again for the same signal within REPEAT_SECONDS."""

    def __init__(self) -> None:
        self._came: dict[int, float] = {}

    def __call__(self, number: int, frame: FrameType | None) -> None:
        before, self._came[number] = self._came.get(number, -math.inf), time.monotonic()
        typed = number == signal.SIGINT and os.isatty(0)  # Ctrl-C, which a terminal sends to each process once
        if typed or self._came[number] - before >= REPEAT_SECONDS:
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated


_ending = _Ending()


def _describe(error: Exception, verbose: bool | None) -> str:
    unwritten = None
    if isinstance(error, OSError) and sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError:  # it could not be written at exit, either
            discard_output()
            unwritten = _unwritten("standard output", error)
        else:
            if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                unwritten = _unwritten("standard output, or another file,", error)  # without a buffer nobody can tell
    if verbose or (verbose is None and not isinstance(error, OSError)):
        import traceback

        traceback.print_exc()
    if out_of_memory(error):
        return "out of memory; use a smaller --precision or model, or --no-assisted"
    if unwritten:
        return unwritten
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        return f"no further thread can be started; this user may have {limit:,} (ulimit -u): raise it, or end some"
    return f"{type(error).__name__}: {error}" + (" (run with -v for the whole story)" if verbose is not None else "")


def _unwritten(what: str, error: OSError) -> str:
    return f"{what} cannot be written: {error.strerror or error}"


def _fail(prefix: str, message: str, code: int) -> int:
    print(f"{prefix}: {message}", file=sys.stderr)
    return code


def _leave(stop: SystemExit, prefix: str, verbose: bool | None) -> int:
    """The exit code of a SystemExit as Python takes it; a text is printed to stderr, as Python does."""
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            return reader_has_gone()
        except OSError as error:  # a full disk
            discard_output()
            return _fail(prefix, _unwritten("standard output", error), 1)
    if stop.code is None or isinstance(stop.code, int):
        return int(stop.code or 0)
    print(stop.code, file=sys.stderr)
    return 1
