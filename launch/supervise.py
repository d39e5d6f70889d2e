"""Runs the instances of a command and supervises them: output, exit codes, signals, time limits."""

from __future__ import annotations

import errno
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal

from ipex_assist.env.cpulist import format_cpulist
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.pipes import READER_HAS_GONE
from ipex_assist.env.runner import REPEAT_SECONDS
from ipex_assist.launch.command import LaunchCommand
from ipex_assist.launch.endings import describe_kill, oom_kills
from ipex_assist.launch.guard import FORWARDED, guarded
from ipex_assist.launch.output import LineAssembler, OutputSource, Sink
from ipex_assist.launch.placement import Placement
from ipex_assist.launch.process import check_program
from ipex_assist.launch.spawn import group_members, signal_group, spawn_command

OnFailure = Literal["stop", "continue"]
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
TIMEOUT_EXIT = 124  # as timeout(1)
# Processes that an instance leaves running may finish their output (`cmd > >(tee log)`) before they get SIGTERM.
LINGER_SECONDS = 1.0
TICK_SECONDS = 0.05


@dataclass(frozen=True)
class Supervision:
    """How instances are run.

    log_dir: a folder for files of their output. label: begin each line with its instance. timeout: the longest run, in
    seconds. grace: seconds between SIGTERM and SIGKILL.
    """

    log_dir: str | None = None
    label: bool = False
    on_failure: OnFailure = "stop"
    timeout: float | None = None
    grace: float = 10.0
    name: str = "ipex-launch"


def supervise(commands: Sequence[LaunchCommand], settings: Supervision) -> int:
    """Run all `commands`; returns 0, or the exit code of the first to fail (128 + the signal that ended it).

    The first failure ends the others (SIGTERM, after `grace` seconds SIGKILL) unless `on_failure` is `continue`.
    Signals go to the whole process group of every instance. An instance ends with its first process; processes that
    that leaves running are ended. No process survives, even if this one gets a kill -9.

    Raises:
        CommandNotFound, CommandNotExecutable: the program cannot be started.
        IpexAssistError: the log files cannot be written.
    """
    check_program(commands[0].program[0], commands[0].environ)
    if settings.log_dir is not None:
        _make_folder(settings.log_dir)
    _fill_standard_streams()
    return guarded(lambda: _Supervisor(settings).run(commands))


def _fill_standard_streams() -> None:
    """Open standard streams that the user closed (`>&-`): else the next file opened would get their output."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
            os.set_inheritable(fd, True)


def _make_folder(folder: str) -> None:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise IpexAssistError(f"--log-dir {folder}: the folder cannot be made: {error.strerror}") from None


@dataclass
class _Instance:
    """A started instance. Deadlines are time.monotonic() values; None: no deadline.

    oom_kills: processes that the kernel had killed for want of memory when it started.
    """

    command: LaunchCommand
    process: subprocess.Popen[bytes]
    sources: list[OutputSource] = field(default_factory=list)
    oom_kills: int | None = field(default_factory=oom_kills)
    code: int | None = None
    timeout_at: float | None = None
    terminate_at: float | None = None
    kill_at: float | None = None
    timed_out: bool = False
    gone: bool = False

    def describe(self) -> str:
        placement = self.command.placement
        return f"instance {placement.index} (CPUs {format_cpulist(placement.cpus)})"

    def describe_kill(self) -> str:
        """A clause for one that somebody else, or the kernel, ended by SIGKILL; empty for others."""
        if self.process.returncode != -signal.SIGKILL or self.kill_at is not None:
            return ""
        return f": it {describe_kill(signal.SIGKILL, self.command.placement, self.oom_kills)}"


class _Supervisor:
    """The loop in the guarded worker: waits for output, signals, exits and deadlines, and handles them."""

    def __init__(self, settings: Supervision) -> None:
        self.settings = settings
        self.instances: list[_Instance] = []
        self.code: int | None = None
        self.ending = False
        self.interrupted_at: float | None = None
        self.signals: list[int] = []
        self.sinks = {1: Sink(1), 2: Sink(2)}
        self.selector = selectors.DefaultSelector()
        self.drain_until: float | None = None

    def run(self, commands: Sequence[LaunchCommand]) -> int:
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in (*FORWARDED, signal.SIGCHLD):
            if number is signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)
        self.selector.register(wake, selectors.EVENT_READ)
        try:
            for command in commands:
                self.instances.append(self._start(command, alone=len(commands) == 1))
        except IpexAssistError as error:
            self._say(str(error))
            return error.exit_code
        while not all(instance.gone for instance in self.instances) or self._output_pends():
            if self._output_pends():
                self._wait_for_readers(wake)
            else:
                for key, _ in self.selector.select(self._patience()):
                    self._read(key)
            self._act_on_signals()
            self._follow_logs()
            for instance in self.instances:
                self._look_after(instance)
            self._close_what_nobody_reads()
        return self._exit_code()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self.signals.append(number)

    def _say(self, message: str) -> None:
        self.sinks[2].write(f"{self.settings.name}: {message}\n".encode(errors="surrogateescape"))

    # Starting.

    def _start(self, command: LaunchCommand, *, alone: bool) -> _Instance:
        # Only a single instance can read standard input, and not from a terminal, where we are the foreground process.
        stdin = None if alone and sys.stdin is not None and not sys.stdin.isatty() else subprocess.DEVNULL
        if self.settings.log_dir is None:
            process = spawn_command(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            assert process.stdout is not None
            assert process.stderr is not None
            sources = [self._source(os.dup(process.stdout.fileno()), 1, command.placement)]
            sources.append(self._source(os.dup(process.stderr.fileno()), 2, command.placement))
            process.stdout.close()
            process.stderr.close()
            for source in sources:
                self.selector.register(source.fd, selectors.EVENT_READ, source)
        else:
            process, sources = self._start_with_logs(command, self.settings.log_dir, stdin)
        instance = _Instance(command, process, sources)
        if self.settings.timeout is not None:
            instance.timeout_at = time.monotonic() + self.settings.timeout
        return instance

    def _start_with_logs(
        self, command: LaunchCommand, log_dir: str, stdin: int | None
    ) -> tuple[subprocess.Popen[bytes], list[OutputSource]]:
        """Start an instance that writes its log files itself, so that they do not depend on this process."""
        out, err = log_files(log_dir, command.placement)
        sources = []
        try:
            with open(out, "ab") as stdout, open(err, "ab") as stderr:
                if self.settings.label:
                    for sink, file in ((1, stdout), (2, stderr)):
                        fd = os.open(file.name, os.O_RDONLY | os.O_CLOEXEC)
                        os.lseek(fd, 0, os.SEEK_END)
                        sources.append(self._source(fd, sink, command.placement))
                return spawn_command(command, stdin=stdin, stdout=stdout, stderr=stderr), sources
        except OSError as error:
            raise IpexAssistError(f"--log-dir: {error.filename} cannot be written: {error.strerror}") from None

    def _source(self, fd: int, sink: int, placement: Placement) -> OutputSource:
        width = len(str(placement.count - 1))
        prefix = f"{placement.index:>{width}}: " if self.settings.label else ""
        return OutputSource(fd, LineAssembler(self.sinks[sink].write, prefix))

    # Output.

    def _read(self, key: selectors.SelectorKey) -> None:
        if key.data is None:
            self._drain(key.fd)
        elif key.data.open and not key.data.read():
            self._close(key.data)

    def _output_pends(self) -> bool:
        """Whether a reader has not taken all output yet. When we are ending, readers get `grace` seconds as well."""
        if self.drain_until is not None and time.monotonic() > self.drain_until:
            return False
        return any(sink.pending for sink in self.sinks.values())

    def _wait_for_readers(self, wake: int) -> None:
        """Read nothing from instances while our own reader blocks, as a pipe between them would behave."""
        patience = self._patience()
        blocked = [sink.fd for sink in self.sinks.values() if sink.pending]
        if select.select([wake], blocked, [], TICK_SECONDS if patience is None else min(patience, 1.0))[0]:
            self._drain(wake)
        for sink in self.sinks.values():
            sink.flush()

    @staticmethod
    def _drain(wake: int) -> None:
        with suppress(BlockingIOError):
            os.read(wake, 4096)

    def _follow_logs(self) -> None:
        if self.settings.log_dir is not None and not self._output_pends():
            for source in self._open_sources():
                while source.read():
                    pass

    def _open_sources(self) -> list[OutputSource]:
        return [source for instance in self.instances for source in instance.sources if source.open]

    def _close(self, source: OutputSource) -> None:
        with suppress(KeyError):  # log files are not in it
            self.selector.unregister(source.fd)
        source.close()

    def _close_what_nobody_reads(self) -> None:
        """Close the pipes of instances when our own reader has gone (`… | head`), so that they get SIGPIPE as well."""
        for position, sink in ((0, self.sinks[1]), (1, self.sinks[2])):
            if sink.lost is not None:
                for instance in self.instances:
                    for source in instance.sources[position : position + 1]:
                        if source.open:
                            self._close(source)

    # Signals, exits and deadlines.

    def _act_on_signals(self) -> None:
        while self.signals:
            number = self.signals.pop(0)
            now = time.monotonic()
            again = False
            if number == signal.SIGINT:
                again = self.interrupted_at is not None
                if self.interrupted_at is not None and now - self.interrupted_at < REPEAT_SECONDS:
                    continue
                self.interrupted_at = now
            sent = signal.SIGKILL if again else signal.SIGSTOP if number == signal.SIGTSTP else number
            for instance in self.instances:
                if not instance.gone:
                    signal_group(instance.process.pid, sent)
            if number in ENDING:
                self.ending = True
                self.drain_until = self.drain_until or now + self.settings.grace
                for instance in self.instances:
                    instance.kill_at = instance.kill_at or now + self.settings.grace

    def _look_after(self, instance: _Instance) -> None:
        now = time.monotonic()
        if instance.code is None and (code := instance.process.poll()) is not None:
            self._ended(instance, TIMEOUT_EXIT if instance.timed_out else code if code >= 0 else 128 - code)
        if instance.code is None and instance.timeout_at is not None and now >= instance.timeout_at:
            self._say(f"{instance.describe()} has not ended after {self.settings.timeout:g} s (--timeout): ending it")
            instance.timeout_at, instance.timed_out = None, True
            self._terminate(instance)
        if instance.terminate_at is not None and now >= instance.terminate_at:
            self._terminate(instance)
        if instance.kill_at is not None and now >= instance.kill_at:
            signal_group(instance.process.pid, signal.SIGKILL)
            instance.kill_at = now + LINGER_SECONDS  # again, until the group is empty
        if instance.code is not None and not instance.gone and not group_members(instance.process.pid):
            self._gone(instance)

    def _terminate(self, instance: _Instance) -> None:
        instance.terminate_at = None
        if not instance.gone:
            signal_group(instance.process.pid, signal.SIGTERM)
            signal_group(instance.process.pid, signal.SIGCONT)  # a stopped process would not act on it
            instance.kill_at = instance.kill_at or time.monotonic() + self.settings.grace

    def _ended(self, instance: _Instance, code: int) -> None:
        """Handle the end of an instance's first process."""
        instance.code = code
        instance.terminate_at = time.monotonic() + LINGER_SECONDS
        if code == 0:
            return
        told = self.ending
        if self.sinks[1].lost is not None and (self.ending or code == READER_HAS_GONE):
            self.ending = True  # we closed its pipe because our own output is lost; `_exit_code` reports the reason
        elif self.ending:
            self.code = self.code or code
        else:
            stop = self.settings.on_failure == "stop"
            rest = ("; ending the others" if stop else "; the others go on") if self._others_run() else ""
            if not instance.timed_out:  # a timeout was reported when it happened
                logs = self.settings.log_dir
                where = "" if logs is None else f", see {log_files(logs, instance.command.placement)[1]}"
                why = instance.describe_kill()
                self._say(f"{instance.describe()} ended with exit code {code}{why}{where}{rest}")
            self.code = self.code or code
            self.ending = stop
        if self.ending and not told:  # once: a second SIGTERM may end what still saves its work
            for other in self.instances:
                self._terminate(other)

    def _others_run(self) -> bool:
        return any(instance.code is None for instance in self.instances)

    def _gone(self, instance: _Instance) -> None:
        """Read the rest of the pipes of an instance whose processes have all ended, and close them."""
        instance.gone = True
        for source in instance.sources:
            while source.open and source.read():
                pass
            self._close(source)

    def _patience(self) -> float | None:
        """Seconds until the next thing to do that no file descriptor wakes us for; None: wait for ever."""
        waiting = [instance for instance in self.instances if not instance.gone]
        if self.settings.log_dir is not None and self.settings.label:
            return TICK_SECONDS
        if any(instance.code is not None for instance in waiting):
            return TICK_SECONDS
        moments = [
            moment for each in waiting for moment in (each.timeout_at, each.terminate_at, each.kill_at) if moment
        ]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _exit_code(self) -> int:
        if self.code:
            return self.code
        if self.sinks[1].lost is None:
            return 0
        reason = os.strerror(self.sinks[1].lost)
        if self.sinks[1].lost in (errno.EPIPE, errno.EBADF):
            return READER_HAS_GONE
        self._say(f"the output could not be written: {reason}")
        return 1


def log_files(log_dir: str, placement: Placement) -> tuple[str, str]:
    """The files of an instance's standard output and standard error, with zero-padded numbers so that names sort."""
    width = len(str(placement.count - 1))
    stem = os.path.join(log_dir, f"instance-{placement.index:0{width}}")
    return f"{stem}.out", f"{stem}.err"
