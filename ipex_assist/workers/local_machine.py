"""The instances of this machine, as the flags ask for them: checked against its memory, placed, not started yet."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

from ipex_assist.env.hints import due
from ipex_assist.env.memory import read_memory
from ipex_assist.launch import LaunchCommand
from ipex_assist.workers.arguments import instance_request
from ipex_assist.workers.capacity import InstanceNeed, check_memory_of_all
from ipex_assist.workers.local_pool import LocalPool
from ipex_assist.workers.placement import placed_commands, unplaced_commands
from ipex_assist.workers.settings import WorkerSettings


def instance_need(settings: WorkerSettings) -> InstanceNeed:
    """Bytes of an instance, with the requests that it takes at a time."""
    return InstanceNeed.of(settings.load, settings.max_new_tokens, settings.concurrent_lengths)


def local_commands(args: argparse.Namespace, model_bytes: int | None) -> tuple[LaunchCommand, ...]:
    """How each instance is started. model_bytes: what one fills; None: not known.

    Raises:
        UsageError: they cannot be placed here.
    """
    if args.no_launch:
        return unplaced_commands(args.instances or 1)
    return placed_commands(instance_request(args, model_bytes))


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
    commands = local_commands(args, need.total)[:most]
    check_memory_of_all(need, len(commands), read_memory().available)
    for command in commands:
        warnings = due(command.warnings, command.hints, verbose=args.verbose)
        for line in (*warnings, *(command.notes if args.verbose else ())):
            say_once(line)
    if args.verbose:
        for command in commands:
            say(f"instance {command.placement.index}: {command.describe()}")
    return LocalPool(commands, replace(settings, neighbours=len(commands)))
