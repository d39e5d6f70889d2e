"""Instances on a Ray cluster: an actor each, which runs a pinned process of ours beside it and speaks for it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.topology import read_topology
from ipex_assist.env.versions import install_command
from ipex_assist.launch import InstanceRequest, Placement
from ipex_assist.launch.plan import without_plan
from ipex_assist.launch.process import Surroundings, command_for
from ipex_assist.workers.capacity import InstanceNeed, check_memory_of_placements
from ipex_assist.workers.local_pool import LocalPool
from ipex_assist.workers.placement import place_within
from ipex_assist.workers.program import worker_program
from ipex_assist.workers.settings import WorkerSettings
from ipex_assist.workers.wire import Ended, Event, Request

OBJECT_STORE_BYTES = 100 << 20  # prompts and texts; Ray would take 30 % of the memory, which the models need
REACH_SECONDS = 10.0
SURVEY_SECONDS = 120.0
LOOK_SECONDS = 1.0  # how long the end of a process may go unnoticed whose children keep its pipes open
# Set by the user for this command, and meant for the processes on the nodes, too.
PASSED_ON = ("HF_", "TRANSFORMERS_", "TOKENIZERS_")


@dataclass(frozen=True)
class NodePlacement:
    """Where an instance runs: a node of the cluster, and cores of it."""

    node_id: str
    host: str
    placement: Placement


def connect(
    address: str,
    request: InstanceRequest,
    need: InstanceNeed,
    settings: WorkerSettings,
    say: Callable[[str], None],
) -> RayPool:
    """Join the cluster at `address` (or start one on this machine, `local`) and place instances on all of its nodes.

    need: the memory of each.
    Raises:
        UsageError: Ray is not installed, or the instances cannot be placed on a node.
        IpexAssistError: there is no such cluster, or a node cannot be used.
    """
    ray = join(address)
    try:
        places = survey(request, need, say)
    except BaseException:
        ray.shutdown()
        raise
    return RayPool(places, with_absolute_paths(settings))


def join(address: str) -> Any:
    """The module ray, connected to the cluster at `address`, or to one that is started on this machine (`local`).

    Raises:
        UsageError: Ray is not installed, or the address is none.
        IpexAssistError: there is no such cluster.
    """
    check_address(address)
    try:
        import ray
    except ImportError:
        raise UsageError(f"--ray needs Ray: type {install_command('ray')}, or leave it out") from None
    local: dict[str, Any] = {}
    if address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        local = {
            "num_cpus": len(os.sched_getaffinity(0)),
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
        }
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
    except Exception as error:  # of many kinds, from ConnectionError to gRPC's own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise IpexAssistError(f"--ray {address}: no cluster to work with ({reason})") from None
    return ray


def check_address(address: str) -> None:
    """Ray itself tries an address at which nobody listens for minutes."""
    if "://" in address:
        raise UsageError(f"--ray {address}: run the command on a node of the cluster, with --ray auto or HOST:PORT")
    host, colon, port = address.rpartition(":")
    if not colon:
        if address in ("auto", "local"):
            return
        raise UsageError(f"--ray {address}: write auto, local, or HOST:PORT")
    if not port.isdecimal():
        raise UsageError(f"--ray {address}: {port or 'nothing'} is no port; write HOST:PORT, for example node1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise IpexAssistError(
            f"--ray {address}: nobody answers there ({error}); is `ray start --head` running on {host}?"
        ) from None


def survey(request: InstanceRequest, need: InstanceNeed, say: Callable[[str], None]) -> list[NodePlacement]:
    """Ask every node what it is, and place instances there within the CPUs that Ray has of it."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    nodes.sort(key=lambda node: (node["NodeManagerHostname"], node["NodeID"]))
    look = ray.remote(num_cpus=0)(survey_node)
    asked = [
        look.options(scheduling_strategy=_only_on(node["NodeID"])).remote(request, need, node["Resources"]["CPU"])
        for node in nodes
    ]
    places = []
    for node, answer in zip(nodes, asked, strict=True):
        host = node["NodeManagerHostname"]
        try:
            placements, problem = ray.get(answer, timeout=SURVEY_SECONDS)
        except Exception as error:  # whatever that node lacks
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise IpexAssistError(
                f"node {host} cannot be used: {lines[-1]} (it needs the same ipex-assist and Python as this machine)"
            ) from None
        if problem is not None:
            raise UsageError(f"node {host}: {problem}")
        for line in dict.fromkeys(line for placement in placements for line in placement.warnings):
            say(f"node {host}: {line}")
        places += [NodePlacement(node["NodeID"], host, placement) for placement in placements]
    if not places:
        raise IpexAssistError("the Ray cluster has no node with a CPU to offer; see `ray status`")
    numbered = enumerate(places)
    return [replace(p, placement=replace(p.placement, index=i, count=len(places))) for i, p in numbered]


def survey_node(request: InstanceRequest, need: InstanceNeed, cpus: float) -> tuple[tuple[Placement, ...], str | None]:
    """Runs on a node: its placements within `cpus` of its CPUs, or why there are none."""
    try:
        placements = place_within(request, read_topology(), cpus)
        check_memory_of_placements(need, placements)
    except IpexAssistError as error:
        return (), str(error)
    return placements, None


def _only_on(node_id: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id, soft=False)


def with_absolute_paths(settings: WorkerSettings) -> WorkerSettings:
    """Processes of Ray run in folders of their own."""

    def absolute(source: str | None) -> str | None:
        return str(Path(source).resolve()) if source and Path(source).exists() else source

    load = settings.load
    assistant = absolute(load.assistant) or load.assistant
    return replace(settings, load=replace(load, target=absolute(load.target), assistant=assistant))


class Actor:
    """Lives in a process of Ray's. The process that it starts is placed by us and dies with it (PR_SET_PDEATHSIG).

    Its calls are coroutines of one thread: `events` waits, and meanwhile prompts come in.
    """

    def __init__(self, placement: Placement, settings: WorkerSettings, environ: Mapping[str, str]) -> None:
        own = without_plan({**os.environ, **environ})
        # Ray sets OMP_NUM_THREADS to the number of CPUs; the placement has its own.
        command = command_for(
            placement, worker_program(), own, Surroundings.here(own), override_threads=True, numbered=True
        )
        self._pool = LocalPool([command], settings)
        self._alive = False

    async def start(self) -> list[Event]:
        """Start or restart the process; its first events."""
        self._pool.start(0)
        self._alive = True
        return await self.events()

    async def submit(self, request: Request) -> None:
        """Send it a prompt. One that has ended does not hear it, and `events` tells."""
        if self._alive:
            self._pool.submit(0, request)

    async def cancel(self, request: int) -> None:
        """Ask it to give up a prompt."""
        if self._alive:
            self._pool.cancel(0, request)

    async def events(self) -> list[Event]:
        """Return what has happened since the last call, as soon as anything has."""
        while not (events := list(self._pool.wait(0.0))):
            await self._something()
        if any(isinstance(event, Ended) for event in events):
            self._alive = False
        return events

    async def _something(self) -> None:
        """Wait until the process says something, or it is time to look whether it is still there."""
        loop, said = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._pool.fileno(), said.set)
        try:
            await asyncio.wait_for(said.wait(), LOOK_SECONDS)
        except asyncio.TimeoutError:  # in Python 3.10 another one than the builtin
            pass
        finally:
            loop.remove_reader(self._pool.fileno())


class RayPool:
    """Runs one actor per place, on the place's node, with as many of Ray's CPUs as it has threads."""

    def __init__(self, places: Sequence[NodePlacement], settings: WorkerSettings) -> None:
        import ray

        self._ray = ray
        self._places = places
        self._settings = settings
        self._environ = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        self._neighbours = Counter(place.node_id for place in places)
        self._actors: dict[int, Any] = {}
        self._polls: dict[Any, int] = {}  # a call that waits for events, for each that runs
        self._events: list[Event] = []

    @property
    def size(self) -> int:
        return len(self._places)

    def describe(self, instance: int) -> str:
        place = self._places[instance]
        return f"on {place.host}, {place.placement.describe()}"

    def host(self, instance: int) -> str:
        return self._places[instance].host

    def start(self, instance: int) -> None:
        if instance not in self._actors:
            place = self._places[instance]
            actor = self._ray.remote(
                num_cpus=place.placement.threads, max_restarts=0, scheduling_strategy=_only_on(place.node_id)
            )(Actor)
            settings = replace(self._settings, neighbours=self._neighbours[place.node_id])
            self._actors[instance] = actor.remote(place.placement, settings, self._environ)
        self._polls[self._actors[instance].start.remote()] = instance

    def submit(self, instance: int, request: Request) -> None:
        self._actors[instance].submit.remote(request)

    def cancel(self, instance: int, request: int) -> None:
        self._actors[instance].cancel.remote(request)

    def end(self, instance: int, reason: str) -> None:
        for poll in [poll for poll, owner in self._polls.items() if owner == instance]:
            if self._ray.wait([poll], timeout=0)[0]:  # it has answered in this very moment
                self._collect(poll)
        for poll in [poll for poll, owner in self._polls.items() if owner == instance]:
            del self._polls[poll]
        if any(isinstance(event, Ended) and event.instance == instance for event in self._events):
            return
        actor = self._actors.pop(instance, None)
        if actor is not None:
            self._ray.kill(actor)
        self._events.append(Ended(reason, instance=instance))

    def wait(self, seconds: float) -> Sequence[Event]:
        if not self._polls:
            time.sleep(0.0 if self._events else seconds)
        elif self._ray.wait(list(self._polls), timeout=0.0 if self._events else seconds)[0]:
            for poll in self._ray.wait(list(self._polls), num_returns=len(self._polls), timeout=0)[0]:
                self._collect(poll)
        events, self._events = self._events, []
        return events

    def _collect(self, poll: Any) -> None:
        """Take the events that a call brought, and ask for more unless that was the end."""
        instance = self._polls.pop(poll)
        try:
            events: list[Event] = self._ray.get(poll)
        except self._ray.exceptions.RayActorError:
            self._actors.pop(instance, None)
            self._events.append(Ended(f"on {self.host(instance)} died with its Ray actor", instance=instance))
        except Exception as error:  # raised in the actor, or by Ray on the way
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            actor = self._actors.pop(instance, None)
            if actor is not None:
                self._ray.kill(actor)
            self._events.append(Ended(f"on {self.host(instance)} failed: {reason}", instance=instance))
        else:
            for event in events:
                event.instance = instance
            self._events += events
            if not any(isinstance(event, Ended) for event in events):
                self._polls[self._actors[instance].events.remote()] = instance

    def close(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()
        self._ray.shutdown()
