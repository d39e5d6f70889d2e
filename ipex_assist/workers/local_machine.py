"""The instances of this machine, as the flags ask for them: checked against its memory, placed, not started yet."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.hints import due
from ipex_assist.env.machine import Machine
from ipex_assist.env.topology import read_topology
from ipex_assist.launch import InstanceRequest, LaunchCommand, place_instances
from ipex_assist.launch.cores import fast_cores, usable_cores
from ipex_assist.workers.arguments import instance_request, leaves_division
from ipex_assist.workers.capacity import (
    DEFAULT_CONCURRENCY,
    InstanceNeed,
    ModelPasses,
    check_memory_of_placements,
    neighbours_of,
)
from ipex_assist.workers.division import Division, DivisionChoice, choose_division, ways
from ipex_assist.workers.local_pool import LocalPool
from ipex_assist.workers.measured_passes import kept_passes
from ipex_assist.workers.placement import placed_commands, unplaced_commands
from ipex_assist.workers.settings import WorkerSettings
from ipex_assist.workers.wire import Ended, Ready

WAIT_SECONDS = 1.0  # between two looks whether an engine has ended without a word


def instance_need(settings: WorkerSettings) -> InstanceNeed:
    """Bytes of an instance, with the requests that it takes at a time."""
    return InstanceNeed.of(settings.load, settings.max_new_tokens, settings.concurrent_lengths)


def local_commands(
    args: argparse.Namespace, need: InstanceNeed, requests: int | None, at_a_time: int | None = None
) -> tuple[LaunchCommand, ...]:
    """How each instance is started. requests: how many are expected; None: not known. at_a_time: the most of each.

    Raises:
        UsageError: they cannot be placed here.
    """
    if args.no_launch:
        return unplaced_commands(args.instances or 1)
    request = instance_request(args, need.total)
    if not _is_divided(args, request, need):
        return placed_commands(request)
    assert need.passes is not None
    expected = requests or DEFAULT_CONCURRENCY
    choice = _chosen(request, need.passes, expected, read_topology(), at_a_time)
    first, *others = placed_commands(of_division(request, choice.division))
    why = [choice.describe(expected)] if len(_ways(request, read_topology())) > 1 else []
    return replace(first, notes=(*first.notes, *why)), *others


def _is_divided(args: argparse.Namespace, request: InstanceRequest, need: InstanceNeed) -> bool:
    """Whether how the machine is divided is left to us, and known to matter."""
    return request.first_touch and need.passes is not None and leaves_division(args)


def _ways(request: InstanceRequest, machine: Machine) -> list[Division]:
    return list(ways(machine, fast_cores(request, usable_cores(request, machine))))


def of_division(request: InstanceRequest, division: Division) -> InstanceRequest:
    """The request for the engines of a division."""
    if division == 1:
        return replace(request, instances=None, all_sockets=True)
    return replace(request, instances=division)


def _chosen(
    request: InstanceRequest, passes: ModelPasses, requests: int, machine: Machine, at_a_time: int | None = None
) -> DivisionChoice:
    """The division that makes most tokens of that many requests, by what was measured where something was."""
    cores = fast_cores(request, usable_cores(request, machine))
    measured = {}
    for division in _ways(request, machine):
        placed = place_instances(of_division(request, division), machine)[0]
        if (found := kept_passes(passes.load, placed.cpus)) is not None:
            measured[division] = found
    work, speed = passes.work, passes.speed
    return choose_division(work, requests, machine, cores, speed, measured=measured, at_a_time=at_a_time)


def measure_ways(args: argparse.Namespace, settings: WorkerSettings, say: Callable[[str], None]) -> None:
    """Load the model once in each way in which the machine can be divided, so that each one's passes are measured.

    Raises:
        IpexAssistError: it cannot be loaded.
    """
    need, machine = instance_need(settings), read_topology()
    request = instance_request(args, need.total)
    if args.no_launch or not _is_divided(args, request, need):
        return
    several = _ways(request, machine)
    for division in several if len(several) > 1 else ():
        commands = placed_commands(of_division(request, division))[:1]
        check_memory_of_placements(need, [command.placement for command in commands])
        say(f"measuring passes: {commands[0].describe()}")
        pool = LocalPool(commands, settings)
        try:
            pool.start(0)
            _wait_until_ready(pool)
        finally:
            pool.close()


def _wait_until_ready(pool: LocalPool) -> None:
    while True:
        for event in pool.wait(WAIT_SECONDS):
            if isinstance(event, Ended):
                raise IpexAssistError(f"the engine {event.reason}") if event.refusal is None else event.refusal.error()
            if isinstance(event, Ready):
                return


def local_pool(
    args: argparse.Namespace,
    settings: WorkerSettings,
    say: Callable[[str], None],
    say_once: Callable[[str], None],
    most: int | None = None,
) -> LocalPool:
    """The instances, after messages about their placement. most: no more than this are needed.

    Raises:
        IpexAssistError: they do not fit into the memory, or cannot be placed.
    """
    need = instance_need(settings)
    commands = local_commands(args, need, most or settings.concurrency, settings.concurrency)[:most]
    placements = [command.placement for command in commands]
    check_memory_of_placements(need, placements)
    for command in commands:
        warnings = due(command.warnings, command.hints, verbose=args.verbose)
        for line in (*warnings, *(command.notes if args.verbose else ())):
            say_once(line)
    if args.verbose:
        for command in commands:
            say(f"instance {command.placement.index}: {command.describe()}")
    return LocalPool(commands, replace(settings, neighbours=neighbours_of(placements)))
