"""Starts a placed command as a child that does not outlive its parent, and finds and signals the child's processes."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO, Any

from ipex_assist.env.cpulist import format_cpulist
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.launch.command import LaunchCommand
from ipex_assist.launch.plan import for_a_child
from ipex_assist.launch.process import CommandNotExecutable, check_program

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

Stream = int | IO[Any] | None

# Loaded here, because between fork and exec nothing may be imported or loaded.
_libc = ctypes.CDLL(None, use_errno=True)


def spawn_command(
    command: LaunchCommand,
    *,
    stdin: Stream = subprocess.DEVNULL,
    stdout: Stream = None,
    stderr: Stream = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start `command` in a process group of its own, with unbuffered binary pipes.

    The kernel kills the child when the thread that called this ends (PR_SET_PDEATHSIG, which survives numactl and
    taskset, because they become the program by exec): so call it from the main thread. Processes that the child starts
    are in its process group (`signal_group`), and within `guard.guarded` they do not survive a kill -9 of ours either.

    Raises:
        CommandNotFound, CommandNotExecutable: the program cannot be started.
    """
    check_program(command.program[0], command.environ)
    try:
        return subprocess.Popen(
            command.argv,
            bufsize=0,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=for_a_child(command.environ),
            pass_fds=pass_fds,
            preexec_fn=_in_the_child(os.getpid(), command.affinity),
        )
    except subprocess.SubprocessError:  # in preexec_fn, whose own message is lost
        cpus = format_cpulist(command.affinity or command.placement.mask)
        raise IpexAssistError(f"the kernel refuses CPUs {cpus} for a child of this process") from None
    except OSError as error:
        raise CommandNotExecutable(f"{command.argv[0]} cannot be run: {error.strerror}") from None


def _in_the_child(parent: int, affinity: Sequence[int] | None) -> Callable[[], None]:
    """A function that sets up the child between fork and exec, where only system calls are safe."""

    def prepare() -> None:
        os.setpgid(0, 0)
        die_with_parent(parent, signal.SIGKILL)
        if affinity:
            os.sched_setaffinity(0, affinity)

    return prepare


def die_with_parent(parent: int, number: int) -> None:
    """Let the kernel send this process the signal `number` when its parent, of pid `parent`, ends."""
    _libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:  # it ended before the call above
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parents end (a subreaper)."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_child(process: subprocess.Popen[bytes]) -> None:
    """Kill a child, wait for its end, and close our ends of its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def signal_group(pid: int, number: int) -> bool:
    """Send the signal `number` to the process group of the child `pid`. False where no process is left in it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
        return True
    return False


def read_processes() -> dict[int, tuple[int, int]]:
    """pid → (parent's pid, process group) of all running processes, without zombies."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The name in parentheses may itself contain blanks and parentheses.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields and fields[0] not in (b"Z", b"X"):
            found[int(name)] = (int(fields[1]), int(fields[2]))
    return found


def group_members(pid: int) -> list[int]:
    """The running processes in the process group of the child `pid`."""
    return [member for member, (_, group) in read_processes().items() if group == pid]


def descendants(ancestor: int) -> list[int]:
    """The running descendants of `ancestor`, as far as the parents between are still running."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in read_processes().items():
        children.setdefault(parent, []).append(pid)
    found, queue = [], [ancestor]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found
