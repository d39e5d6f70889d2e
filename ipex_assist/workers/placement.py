"""Where the instances of this machine run."""

from __future__ import annotations

import os
from dataclasses import replace

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.machine import Machine
from ipex_assist.launch import InstanceRequest, LaunchCommand, Placement, place_instances
from ipex_assist.launch.plan import without_plan
from ipex_assist.launch.process import prepare_instances
from ipex_assist.workers.program import worker_program


def placed_commands(request: InstanceRequest) -> tuple[LaunchCommand, ...]:
    """The instances of `request`, pinned to their cores and ready to be started.

    Raises:
        UsageError: they cannot be placed here.
    """
    return prepare_instances(request, worker_program(), os.environ)


def unplaced_commands(count: int) -> tuple[LaunchCommand, ...]:
    """`count` instances, each on every CPU that this process may use (`--no-launch`)."""
    program = worker_program()
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    places = [Placement(cpus, len(cpus), index=index, count=count) for index in range(count)]
    return tuple(
        LaunchCommand(tuple(program), without_plan(os.environ), {}, {}, place, tuple(program)) for place in places
    )


def place_within(request: InstanceRequest, machine: Machine, cpus: float) -> tuple[Placement, ...]:
    """`place_instances` where no more than `cpus` CPUs were granted, though more may be used.

    Raises:
        UsageError: the request cannot be met.
        IpexAssistError: it needs more CPUs than were granted.
    """
    if machine.cpu_quota is not None and machine.cpu_quota <= cpus:
        return place_instances(request, machine)
    placements = place_instances(request, replace(machine, cpu_quota=cpus))
    threads = sum(placement.threads for placement in placements)
    if threads > cpus:
        raise IpexAssistError(
            f"{len(placements)} instances need {threads} CPUs, and the node offers {cpus:g}: ask for fewer "
            "--instances or --cores-per-instance, or let it offer more"
        )
    # The grant is no quota: keep only the warnings about quotas that hold without the grant.
    usual = {line for placement in place_instances(request, machine) for line in placement.warnings}
    return tuple(replace(place, warnings=tuple(set(place.warnings) & usual)) for place in placements)
