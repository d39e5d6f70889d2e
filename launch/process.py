"""Prepares a command for this machine, and becomes it by exec, so that signals and exit codes are the program's own."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from ipex_assist.env.cpulist import format_cpulist
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.hints import due
from ipex_assist.env.libraries import Allocator, Libraries, OpenMP, find_libraries
from ipex_assist.env.machine import Machine
from ipex_assist.env.topology import read_topology
from ipex_assist.env.variables import choose_variables
from ipex_assist.launch.abilities import Abilities, probe_abilities
from ipex_assist.launch.command import LaunchCommand, build_command
from ipex_assist.launch.instances import InstanceRequest, place_instances
from ipex_assist.launch.placement import Placement, PlacementRequest, place
from ipex_assist.launch.plan import for_this_process, without_plan


class CommandNotFound(IpexAssistError):
    """There is no such program; the exit code is the one that shells use."""

    exit_code = 127


class CommandNotExecutable(IpexAssistError):
    """The file exists and cannot be run; the exit code is the one that shells use."""

    exit_code = 126


@dataclass(frozen=True)
class Surroundings:
    """What a process is started with besides its placement: libraries and tools found here, and the user's choices."""

    libraries: Libraries
    abilities: Abilities
    openmp: OpenMP = "auto"
    allocator: Allocator = "auto"
    show_openmp_settings: bool = False

    @classmethod
    def here(
        cls, environ: Mapping[str, str] = os.environ, openmp: OpenMP = "auto", allocator: Allocator = "auto"
    ) -> Surroundings:
        """The libraries and tools of this machine, in the folders that `environ` names."""
        return cls(find_libraries(environ), probe_abilities(environ), openmp, allocator)


def prepare(
    request: PlacementRequest,
    argv: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    *,
    machine: Machine | None = None,
    libraries: Libraries | None = None,
    abilities: Abilities | None = None,
    show_openmp_settings: bool = False,
) -> LaunchCommand:
    """Plan a run of `argv` by `request`; nothing is started or changed.

    Args:
        request: the user's wishes; `PlacementRequest()` gives the default placement.
        argv: the program and its arguments.
        environ: the environment to start from; the user's variables in it are kept.
        machine, libraries, abilities: what to plan for; by default those of this machine.
        show_openmp_settings: let libiomp5 print its settings.

    Raises:
        UsageError: the request cannot be met here.
    """
    own = without_plan(environ)
    surroundings = Surroundings(
        libraries or find_libraries(own),
        abilities or probe_abilities(own),
        show_openmp_settings=show_openmp_settings,
    )
    placement = _place(request, machine or read_topology(), own)
    return command_for(placement, argv, own, surroundings, override_threads=request.threads is not None)


def prepare_instances(
    request: InstanceRequest,
    argv: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    *,
    machine: Machine | None = None,
    surroundings: Surroundings | None = None,
    extra_environ: Mapping[str, str] | None = None,
    only: Collection[int] | None = None,
    unbuffered_python: bool = False,
) -> tuple[LaunchCommand, ...]:
    """Plan a run of `argv` in every instance that `request` asks for; nothing is started or changed.

    Each instance finds its number in IPEX_INSTANCE, and how many there are in IPEX_INSTANCES. `extra_environ` is
    treated as the user's own variables; `only` are the numbers of the instances to run. The rest is as in `prepare` and
    `command_for`; several instances always have `unbuffered_python`, since they do not write to a terminal.

    Raises:
        UsageError: the request cannot be met here.
    """
    own = {**without_plan(environ), **(extra_environ or {})}
    machine = machine or read_topology()
    single = request.instances in (None, 1) and request.cores_per_instance is None
    placements = (_place(request, machine, own),) if single else place_instances(request, machine)
    override = request.threads is not None or request.cores_per_instance is not None
    if not single and not override:
        placements = _tell_kept_threads(placements, own)
    if only is not None:
        if not set(only) <= set(range(len(placements))):
            count = f"there are {len(placements)} instances" if len(placements) > 1 else "there is 1 instance"
            raise UsageError(f"--instance {format_cpulist(only)}: {count}, from 0 to {len(placements) - 1}.")
        placements = tuple(placement for placement in placements if placement.index in only)
    surroundings = surroundings or Surroundings.here(own)
    return tuple(
        command_for(
            placement,
            argv,
            own,
            surroundings,
            override_threads=override,
            numbered=True,
            unbuffered_python=unbuffered_python or len(placements) > 1,
        )
        for placement in placements
    )


def _tell_kept_threads(placements: Sequence[Placement], environ: Mapping[str, str]) -> tuple[Placement, ...]:
    """Add a warning where the user's OMP_NUM_THREADS is kept in instances that have another number of cores."""
    threads = environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    sizes = sorted({placement.threads for placement in placements})
    if not threads.isdecimal() or sizes == [int(threads)]:
        return tuple(placements)
    cores = f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else f"{sizes[0]}"
    warning = (
        f"OMP_NUM_THREADS={threads} is kept in every instance, though {cores} threads would suit; unset it, or give "
        f"--cores-per-instance {threads}"
    )
    return tuple(replace(placement, warnings=(*placement.warnings, warning)) for placement in placements)


_CHOOSE_CPUS = ("KMP_HW_SUBSET", "GOMP_CPU_AFFINITY")  # for OpenMP, whatever the placement says


def command_for(
    placement: Placement,
    argv: Sequence[str],
    environ: Mapping[str, str],
    surroundings: Surroundings,
    *,
    override_threads: bool = False,
    numbered: bool = False,
    unbuffered_python: bool = False,
) -> LaunchCommand:
    """The command that runs `argv` at `placement`, with suitable variables added to `environ`.

    override_threads: the flags decide the number of threads, not OMP_NUM_THREADS in `environ`. numbered: tell the
    process which instance it is. unbuffered_python: Python writes to pipes and files at once, so that nothing is lost
    with a process that is killed.
    """
    variables = choose_variables(
        placement.threads,
        surroundings.libraries.restricted(surroundings.openmp, surroundings.allocator),
        environ,
        override_threads=override_threads,
        show_openmp_settings=surroundings.show_openmp_settings,
        set_openmp=surroundings.openmp != "none",
    )
    extra = {"IPEX_INSTANCE": str(placement.index), "IPEX_INSTANCES": str(placement.count)} if numbered else {}
    if unbuffered_python and "PYTHONUNBUFFERED" not in environ:
        extra["PYTHONUNBUFFERED"] = "1"
    command = build_command(placement, variables, argv, environ, surroundings.abilities, extra)
    chosen = [f"{name}={environ[name]} is kept, and may leave cores idle" for name in _CHOOSE_CPUS if environ.get(name)]
    return replace(
        command, notes=(*command.notes, *_slower(surroundings, environ)), warnings=(*command.warnings, *chosen)
    )


def _slower(surroundings: Surroundings, environ: Mapping[str, str]) -> list[str]:
    """Notes on missing libraries that would make the run faster; none where the user sets LD_PRELOAD."""
    if environ.get("LD_PRELOAD"):
        return []
    return surroundings.libraries.missing(surroundings.openmp, surroundings.allocator)


def _place(request: PlacementRequest, machine: Machine, environ: Mapping[str, str]) -> Placement:
    """Place by the request; where it gives no number of threads, with the user's OMP_NUM_THREADS."""
    threads = environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if request.threads is not None or not threads.isdecimal() or int(threads) < 1:
        return place(request, machine)
    try:
        placement = place(replace(request, threads=int(threads)), machine)
        suitable = place(request, machine).threads
        if placement.threads < suitable:
            warning = (
                f"OMP_NUM_THREADS={threads} is kept, and so {placement.threads} of {suitable} cores work: unset it, "
                "or give --threads"
            )
            placement = replace(placement, warnings=(*placement.warnings, warning))
        return placement
    except UsageError:
        placement = place(request, machine)
        warning = f"OMP_NUM_THREADS={threads} is kept, though {placement.threads} threads would suit this machine"
        return replace(placement, warnings=(*placement.warnings, warning))


def run(command: LaunchCommand, name: str = "ipex-launch", *, verbose: bool = False) -> NoReturn:
    """Print the command's warnings to stderr, under the `name` that the user typed, and become the command by exec.

    verbose: hints, too, that were printed today.

    Raises:
        CommandNotFound, CommandNotExecutable: the program cannot be started (exit codes 127 and 126).
    """
    announce(command, name, verbose=verbose)
    become(command, for_this_process(command.environ))


def announce(command: LaunchCommand, name: str, *, verbose: bool = False) -> None:
    """Print the command's warnings to stderr as `run` does.

    Raises:
        CommandNotFound, CommandNotExecutable: as `run`.
    """
    check_program(command.program[0], command.environ)
    for warning in due(command.warnings, command.hints, verbose=verbose):
        print(f"{name}: {warning}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # the user closed it
            stream.flush()


def become(command: LaunchCommand, environ: Mapping[str, str]) -> NoReturn:
    """Become the command by exec, with these variables.

    Raises:
        CommandNotExecutable, IpexAssistError: the kernel refuses the program, or its CPUs.
    """
    if command.affinity:
        try:
            os.sched_setaffinity(0, command.affinity)
        except OSError as error:
            cpus = format_cpulist(command.affinity)
            raise IpexAssistError(f"the kernel refuses CPUs {cpus} for this process: {error.strerror}") from None
    # Python ignores these two signals, and ignored signals stay ignored across exec: `… | head` would not end.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvpe(command.argv[0], command.argv, environ)
    except OSError as error:
        raise CommandNotExecutable(f"{command.argv[0]} cannot be run: {error.strerror}") from None


def check_program(name: str, environ: Mapping[str, str]) -> None:
    """Check that the program exists: numactl's own error would say less, and exit with 1.

    Raises:
        CommandNotFound, CommandNotExecutable: as in a shell.
    """
    path = environ.get("PATH", os.defpath)
    if shutil.which(name, path=path):
        return
    places = [name] if os.sep in name else [os.path.join(folder, name) for folder in path.split(os.pathsep)]
    for candidate in places:
        if os.path.isdir(candidate) and os.sep in name:
            raise CommandNotExecutable(f"{name} is a folder, not a program")
        if os.path.isfile(candidate):
            raise CommandNotExecutable(f"{candidate} is not executable; type chmod +x {candidate}")
    where = "" if os.sep in name else " on PATH"
    raise CommandNotFound(f"there is no program {name}{where}")
