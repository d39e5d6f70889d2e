"""The instances of this machine, as the flags ask for them: checked against its memory, placed, not started yet."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

from ipex_assist.env.hints import due
from ipex_assist.env.machine import Machine
from ipex_assist.env.topology import read_topology
from ipex_assist.launch import InstanceRequest, LaunchCommand
from ipex_assist.launch.cores import fast_cores, usable_cores
from ipex_assist.workers.arguments import instance_request, leaves_division
from ipex_assist.workers.capacity import (
    DEFAULT_CONCURRENCY,
    InstanceNeed,
    check_memory_of_placements,
    neighbours_of,
)
from ipex_assist.workers.division import PassWork, choose_division
from ipex_assist.workers.local_pool import LocalPool
from ipex_assist.workers.placement import placed_commands, unplaced_commands
from ipex_assist.workers.settings import WorkerSettings


def instance_need(settings: WorkerSettings) -> InstanceNeed:
    """Bytes of an instance, with the requests that it takes at a time."""
    return InstanceNeed.of(settings.load, settings.max_new_tokens, settings.concurrent_lengths)


def local_commands(args: argparse.Namespace, need: InstanceNeed, requests: int | None) -> tuple[LaunchCommand, ...]:
    """How each instance is started. requests: how many are expected at a time; None: not known.

    Raises:
        UsageError: they cannot be placed here.
    """
    if args.no_launch:
        return unplaced_commands(args.instances or 1)
    request = instance_request(args, need.total)
    if request.first_touch and need.work is not None and leaves_division(args):
        request = _divided(request, need.work, requests or DEFAULT_CONCURRENCY, read_topology())
    return placed_commands(request)


def _divided(request: InstanceRequest, work: PassWork, requests: int, machine: Machine) -> InstanceRequest:
    """The request for as many instances as make most tokens of that many requests."""
    cores = fast_cores(request, usable_cores(request, machine))
    division = choose_division(work, requests, machine, cores)
    if division == 1:
        return replace(request, instances=None, all_sockets=True)
    return replace(request, instances=division)


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
    commands = local_commands(args, need, most or settings.concurrency)[:most]
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
