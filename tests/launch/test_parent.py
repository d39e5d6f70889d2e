"""A command below a process that stands for it: signals, stops, exit codes and terminals as if it were the command."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.one_stack

BELOW = (
    "import sys; from ipex_assist import launch\n"
    "sys.exit(launch.run_below(launch.prepare(launch.PlacementRequest(), sys.argv[1:]), 'ours'))"
)
WAITS = "import time; print('ready', flush=True); time.sleep(30)"


def below(*command: str) -> list[str]:
    return [sys.executable, "-c", BELOW, *command]


def started(code: str) -> tuple[subprocess.Popen[str], int]:
    """A parent whose child has begun, in a process group of its own, and the child's pid."""
    process = subprocess.Popen(
        below(sys.executable, "-u", "-c", f"import os; print(os.getpid())\n{code}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.stdout.readline()
    return process, child


def state_of(pid: int) -> str:
    """R, S, T …; empty for none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_exit_code_and_the_arguments() -> None:
    done = subprocess.run(below("sh", "-c", 'echo "$1"; exit 7', "sh", "a  b"), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (7, "a  b\n", "")
    missing = subprocess.run(below("no-such-program"), capture_output=True, text=True)
    assert missing.returncode
    assert "there is no program no-such-program" in missing.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_to_the_parent_is_the_childs(number: signal.Signals) -> None:
    process, child = started(
        f"import signal, sys, time; signal.signal({int(number)}, lambda *_: sys.exit(41))\nprint('ready', flush=True)\n"
        "time.sleep(30)"
    )
    process.send_signal(number)
    assert process.wait(20) == 41
    until(lambda: not state_of(child))
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGSEGV])
def test_who_is_ended_by_a_signal_ends_so(number: signal.Signals) -> None:
    """A shell's loop stops at a command that Ctrl-C ended, which it knows by its wait status alone."""
    process, child = started(WAITS)
    os.kill(child, number)
    assert process.wait(20) == -number
    assert process.communicate()[1] == ""


def test_a_killed_child_is_told() -> None:
    """`Killed` was all there was to read."""
    process, child = started(WAITS)
    os.kill(child, signal.SIGKILL)
    assert process.wait(20) == -signal.SIGKILL
    assert process.communicate()[1].startswith("ours: the process was killed by SIGKILL")


def test_a_killed_parent_leaves_nothing() -> None:
    process, child = started(WAITS)
    process.kill()
    process.wait(20)
    until(lambda: state_of(child) in ("", "Z"))
    process.communicate()


def test_both_stop_and_go_on() -> None:
    """Ctrl-Z by another process (`kill -TSTP`), and `fg`: a shell waits for the parent to stop."""
    process, child = started(WAITS)
    process.send_signal(signal.SIGTSTP)
    until(lambda: state_of(child) == state_of(process.pid) == "T")
    os.killpg(process.pid, signal.SIGCONT)
    until(lambda: "T" not in (state_of(child), state_of(process.pid)))
    process.terminate()
    assert process.wait(20) == -signal.SIGTERM
    process.communicate()


def test_ctrl_c_on_a_terminal_comes_once() -> None:
    """To both, as they are in one group: a parent that passed it on would be a second Ctrl-C, which ends more."""
    code = (
        "import signal, sys, time; came = []\n"
        "signal.signal(signal.SIGINT, lambda *_: came.append(1))\n"
        "print('ready', flush=True)\n"
        "while not came: time.sleep(0.01)\n"
        "time.sleep(0.3); print('came', len(came), flush=True)"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, below(sys.executable, "-c", code))
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 1000)
    os.write(terminal, b"\x03")
    while not re.search(rb"came \d", said):
        said += os.read(terminal, 1000)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    assert b"came 1" in said


def test_what_nohup_ignores_stays_ignored() -> None:
    command = below(sys.executable, "-u", "-c", WAITS.replace("30", "0.6"))
    pipe = subprocess.PIPE
    process = subprocess.Popen(["nohup", *command], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    assert process.wait(20) == 0
    process.communicate()
