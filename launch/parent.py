"""Runs a command as a child of this process, which stands for it in everything, and says so where it was killed."""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.launch.command import LaunchCommand
from ipex_assist.launch.endings import describe_kill, oom_kills
from ipex_assist.launch.guard import FORWARDED
from ipex_assist.launch.plan import for_a_child
from ipex_assist.launch.process import announce, become
from ipex_assist.launch.spawn import die_with_parent


def run_below(command: LaunchCommand, name: str, *, verbose: bool = False) -> int:
    """Run the command as `process.run` does, but below this process, and return its exit code.

    A process that the kernel kills for want of memory cannot say anything itself: the shell's word would be `Killed`.
    Call it from the main thread, before threads are started. The child has this process's group, terminal and standard
    streams, is stopped and continued with it, and ends with it, whatever ends it. Where a signal ended the child, this
    process ends by the same one.

    Raises:
        CommandNotFound, CommandNotExecutable: the program cannot be started.
    """
    announce(command, name, verbose=verbose)
    environ, parent, kills = for_a_child(command.environ), os.getpid(), oom_kills()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        code = 126
        try:
            die_with_parent(parent, signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            become(command, environ)
        except IpexAssistError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            code = error.exit_code
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(_end_of(child))
    if code >= 0:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it was the child's, which has ended
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return code
    if code == -signal.SIGKILL and sys.stderr is not None:
        message = describe_kill(signal.SIGKILL, command.placement, kills)
        with suppress(OSError):
            print(f"{name}: the process {message}", file=sys.stderr, flush=True)
    _end_by(-code)
    return 128 - code


def _end_of(child: int) -> int:
    """Pass signals on until the child has ended; returns its wait status.

    Those that a terminal sends come from the kernel (`si_code` > 0), and to the child as well, which is in our group.
    """
    while True:
        came = signal.sigwaitinfo({*FORWARDED, signal.SIGCHLD})
        if came.si_signo != signal.SIGCHLD:
            if came.si_code <= 0:
                with suppress(ProcessLookupError):
                    os.kill(child, came.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        if ended and os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)  # so that the shell sees it, which continues both
        elif ended:
            return status


def _end_by(number: int) -> None:
    """End this process by a signal, without a core dump beside the child's."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
