"""The one runner: which exit code and which message each end of a command has."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.runner import (
    REPEAT_SECONDS,
    Terminated,
    held_interrupts,
    run_command,
    same_interrupts_after,
    terminated_by_sigterm,
)

pytestmark = pytest.mark.one_stack


def run(error: BaseException | None, verbose: bool | None = False) -> int:
    def work() -> int:
        if error is not None:
            raise error
        return 7

    return run_command(work, "command: error", verbose=verbose)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (None, 7, ""),
        (IpexAssistError("it failed"), 1, "command: error: it failed\n"),
        (UsageError("a wrong flag"), 2, "command: error: a wrong flag\n"),
        (SystemExit(2), 2, ""),
        (SystemExit(None), 0, ""),
        (SystemExit("a text"), 1, "a text\n"),
        (KeyboardInterrupt(), 130, ""),
        (Terminated(), 143, ""),
        (MemoryError(), 1, "command: error: out of memory; use a smaller --precision or model, or --no-assisted\n"),
        (ZeroDivisionError("a bug"), 1, "command: error: ZeroDivisionError: a bug (run with -v for the whole story)\n"),
    ],
    ids=repr,
)
def test_each_end_has_its_code(
    error: BaseException | None, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One table for all commands; none ends in a traceback."""
    assert run(error) == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("error", "verbose", "traceback"),
    [
        (ValueError("a bug"), True, True),
        (ValueError("a bug"), None, True),
        (OSError(28, "full"), None, False),
        (UsageError("x"), True, False),
    ],
    ids=repr,
)
def test_who_sees_a_traceback(
    error: Exception, verbose: bool | None, traceback: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under -v, and where there is no -v to be asked for; a full disk and a wrong flag have none."""
    run(error, verbose)
    err = capsys.readouterr().err
    assert ("Traceback" in err) is traceback
    assert ("run with -v" in err) is (verbose is True and traceback)


def test_sigterm_raises_meanwhile_and_is_given_back() -> None:
    """In process, as tests and other programs call a command: the signal is theirs again afterwards."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # another test's library may have taken it
    try:
        with terminated_by_sigterm():
            assert run_command(lambda: os.kill(os.getpid(), signal.SIGTERM) or 0, "command") == 143
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_same_signal_twice_at_once_ends_a_command_once(number: signal.Signals) -> None:
    """One to a process group comes from the parent as well: the second must not interrupt the answer to the first."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    done = []

    def work() -> int:
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)
            done.append(True)
        return 0

    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        time.sleep(REPEAT_SECONDS)  # since another test's
        with same_interrupts_after(), terminated_by_sigterm():
            assert run_command(work, "command") == 128 + number
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert done


@pytest.mark.parametrize(
    ("end", "unbuffered", "what"),
    [
        ("0", "", "standard output"),  # a command's
        ("sys.exit(0)", "", "standard output"),  # argparse's after the help
        ("0", "1", "standard output, or another file,"),
    ],
)
def test_a_full_disk_is_one_sentence_and_exit_1(end: str, unbuffered: str, what: str) -> None:
    """What was not written is not tried again at exit, which would end with 120 and a second message."""
    code = (
        "from ipex_assist.env.runner import run_command as run; import sys\n"
        f"sys.exit(run(lambda: print('x') or {end}, 'c'))"
    )
    environ = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, env=environ)
    assert done.returncode == 1
    assert done.stderr == f"c: {what} cannot be written: No space left on device\n"


def test_an_interrupt_waits_for_the_command_that_the_process_becomes() -> None:
    """A Ctrl-C between exec and the new interpreter's first line would be a traceback of its start."""
    code = (
        "import os, signal, sys; from ipex_assist.env.runner import held_interrupts, run_command\n"
        "if len(sys.argv) > 1: sys.exit(run_command(lambda: 5, 'c'))\n"
        "with held_interrupts():\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    os.execv(sys.executable, [sys.executable, '-c', os.environ['CODE'], 'again'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"CODE": code})
    assert (done.returncode, done.stderr) == (130, "")


def test_interrupts_are_held_no_longer_than_asked() -> None:
    """An exec that fails leaves a process that Ctrl-C ends."""
    with pytest.raises(OSError, match="no such"), held_interrupts():
        raise OSError("no such program")
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_an_interrupt_in_the_body_of_a_class(capsys: pytest.CaptureFixture[str]) -> None:
    """Python before 3.12 gives it as the cause of a RuntimeError: not a word, and the code of Ctrl-C."""

    def work() -> int:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    assert run_command(work, "command") == 130
    assert capsys.readouterr().err == ""
