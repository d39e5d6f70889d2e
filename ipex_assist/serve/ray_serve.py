"""Engines on a Ray cluster: a Ray Serve replica per node, which runs that node's engines, behind Ray's own proxy."""

from __future__ import annotations

import argparse
import functools
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.commands.shared.stop_signal import StopSignal
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.versions import install_command
from ipex_assist.launch import InstanceRequest
from ipex_assist.launch.plan import without_plan
from ipex_assist.launch.process import Surroundings, command_for
from ipex_assist.serve.connections import KEEP_ALIVE_SECONDS
from ipex_assist.serve.engines import Engines
from ipex_assist.serve.options import ServeOptions
from ipex_assist.serve.server import in_thread
from ipex_assist.serve.server_log import ServerLog
from ipex_assist.speculative.options import DraftOptions
from ipex_assist.tokenization.tokenizer import load_tokenizer
from ipex_assist.workers.arguments import instance_request
from ipex_assist.workers.capacity import DEFAULT_CONCURRENCY, InstanceNeed, neighbours_of
from ipex_assist.workers.local_machine import instance_need
from ipex_assist.workers.local_pool import LocalPool
from ipex_assist.workers.program import worker_program
from ipex_assist.workers.ray_pool import PASSED_ON, join, survey, survey_node, with_absolute_paths
from ipex_assist.workers.settings import WorkerSettings

log = logging.getLogger("ipex_assist")

APP = "ipex-assist"  # the application's name on the cluster
TICK_SECONDS = 0.2
ASK_SECONDS = 5.0  # between two looks at how the application is
HEALTH_SECONDS = 5.0  # between Ray's looks at a replica
PROXY_SECONDS = 30.0  # beyond --timeout, after which Ray's proxy gives up a request

Asgi = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass(frozen=True)
class ReplicaConfig:
    """Configuration of a replica, the same on every node."""

    name: str
    options: ServeOptions
    drafts: DraftOptions
    request: InstanceRequest
    need: InstanceNeed
    settings: WorkerSettings
    environ: Mapping[str, str]


class ReplicaApp:
    """The ASGI application given to Ray: forwards to this process's replica, whose own app cannot be pickled."""

    app: Asgi | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        assert ReplicaApp.app is not None
        await ReplicaApp.app(scope, receive, send)


class Replica:
    """A node's engines and their HTTP API, in a Ray process."""

    async def __init__(self, plan: ReplicaConfig) -> None:  # type: ignore[misc]  # Ray waits for it
        """Returns when requests are accepted. Raises IpexAssistError if this node cannot load the model."""
        from ipex_assist.serve.app import create_app

        os.environ.update(plan.environ)
        self._engines = Engines(plan.name, plan.options, plan.drafts, log.warning, self._heard)
        try:
            self._engines.start(LocalPool(*_local(plan)))
            load = plan.settings.load
            assert load.target is not None
            checkpoint = functools.partial(open_checkpoint, load.target, revision=load.revision, offline=load.offline)
            self._engines.tokenizer = await in_thread(lambda: load_tokenizer(checkpoint()))
            await self._engines.wait_ready()
        except BaseException:
            self._engines.close(now=True)
            raise
        ReplicaApp.app = create_app(self._engines, plan.options)

    @staticmethod
    def _heard(engine: int, line: str) -> None:
        log.warning("engine %d: %s", engine, line)

    async def check_health(self) -> None:
        """Raises if all engines are given up; Ray then restarts the replica."""
        if self._engines.failure.done():
            self._engines.failure.result()

    async def __del__(self) -> None:
        """Called by Ray when all requests have ended, or after the grace period."""
        if hasattr(self, "_engines"):
            self._engines.close(now=True)


def _local(plan: ReplicaConfig) -> tuple[list[Any], WorkerSettings]:
    """Commands and settings of this node's engines."""
    import ray

    own = next(node for node in ray.nodes() if node["NodeID"] == ray.get_runtime_context().get_node_id())
    placements, problem = survey_node(plan.request, plan.need, own["Resources"]["CPU"])
    if problem is not None:
        raise IpexAssistError(problem)
    environ = without_plan(dict(os.environ))
    surroundings = Surroundings.here(environ)
    commands = [
        # Ray sets OMP_NUM_THREADS to the number of CPUs; the placement has its own.
        command_for(
            replace(placement, index=index, count=len(placements)),
            worker_program(),
            environ,
            surroundings,
            override_threads=True,
            numbered=True,
        )
        for index, placement in enumerate(placements)
    ]
    return commands, replace(plan.settings, neighbours=neighbours_of(placements))


def run_on_ray(args: argparse.Namespace, options: ServeOptions, settings: WorkerSettings, name: str) -> int:
    """Deploy replicas on the cluster `args.ray`, and delete them at a signal; returns the exit code.

    Raises:
        UsageError: Ray Serve is not installed, or the engines cannot be placed on a node.
        IpexAssistError: there is no such cluster, a node cannot be used, or the replicas cannot load the model.
    """
    messages = ServerLog(args.verbose)
    with StopSignal().caught() as stop:
        ray = join(args.ray)
        try:
            serve = _ray_serve()
            logging.getLogger("ray.serve").setLevel(logging.INFO if args.verbose else logging.ERROR)
            stop.catch()  # Ray has replaced our handler
            return _run(args, options, settings, name, messages, stop, serve)
        finally:
            ray.shutdown()


def _ray_serve() -> Any:
    try:
        from ray import serve
    except ImportError:
        raise UsageError(f"serve --ray needs Ray Serve: type {install_command('ray')}") from None
    return serve


def _run(
    args: argparse.Namespace,
    options: ServeOptions,
    settings: WorkerSettings,
    name: str,
    messages: ServerLog,
    stop: StopSignal,
    serve: Any,
) -> int:
    need = instance_need(settings)
    request = instance_request(args, need.total)
    nodes = {place.node_id for place in survey(request, need, messages.once)}
    environ = {variable: value for variable, value in os.environ.items() if variable.startswith(PASSED_ON)}
    told = with_absolute_paths(settings)
    drafts = DraftOptions.from_flags(args)
    # The key file is on this machine, so replicas get the keys.
    own = replace(options, api_key=options.keys(), api_key_file=None)
    plan = ReplicaConfig(name, own, drafts, request, need, told, environ)
    application = deployment(serve, plan, nodes, args.replicas or (len(nodes), len(nodes)))
    serve.start(proxy_location="HeadOnly", http_options=proxy_options(options))
    deploying = _InThread(lambda: serve.run(application, name=APP, route_prefix="/"))
    try:
        said = False
        while stop.number is None:
            time.sleep(TICK_SECONDS)
            if deploying.done() and not said:
                said = True
                where = f"http://{options.host}:{options.port} of the cluster's head"
                messages.say(f"{name} is ready at {where}, on {len(nodes)} nodes. Ray's own view: serve status")
    finally:
        _delete(serve, stop)
    return 128 + (stop.number or 0) if stop.twice else 0


def proxy_options(options: ServeOptions) -> dict[str, Any]:
    """Ray's HTTPOptions: all limits that its proxy has.

    A replica ends a request after --timeout itself; the proxy's own limit is for a replica that no longer does.
    """
    return {
        "host": options.host,
        "port": options.port,
        "keep_alive_timeout_s": int(KEEP_ALIVE_SECONDS),
        "request_timeout_s": options.timeout + PROXY_SECONDS,
    }


def deployment(serve: Any, plan: ReplicaConfig, nodes: set[str], replicas: tuple[int, int]) -> Any:
    """The deployment: one replica per node, with the CPUs of the smallest. replicas: minimum and maximum."""
    import ray

    cpus = min(node["Resources"]["CPU"] for node in ray.nodes() if node["NodeID"] in nodes)
    least, most = replicas
    at_once = plan.options.max_concurrency or DEFAULT_CONCURRENCY
    scale: dict[str, Any] = {"num_replicas": least}
    if most > least:
        scale = {
            "autoscaling_config": {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": at_once}
        }
    return serve.deployment(
        serve.ingress(ReplicaApp())(Replica),
        name=APP,
        ray_actor_options={"num_cpus": cpus},
        max_replicas_per_node=1,
        max_ongoing_requests=plan.options.max_queue + 64 * at_once,  # our own queue limits requests
        graceful_shutdown_timeout_s=plan.options.grace,
        health_check_period_s=HEALTH_SECONDS,
        **scale,
    ).bind(plan)


class _InThread:
    """Runs a Ray call, which may block for minutes, in a thread, so that signals are handled."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:
            self._error = error

    def done(self) -> bool:
        """Whether the call has returned. Raises IpexAssistError if it failed."""
        if self._thread.is_alive():
            return False
        if self._error is not None:
            lines = str(self._error).strip().splitlines() or [type(self._error).__name__]
            raise IpexAssistError(f"Ray cannot deploy the replicas: {lines[-1]}")
        return True


def _delete(serve: Any, stop: StopSignal) -> None:
    """Delete the application within its grace period; a second signal does not wait."""
    try:
        deleting = _InThread(lambda: serve.delete(APP))
        while not deleting.done() and not stop.twice:
            time.sleep(TICK_SECONDS)
        if not stop.twice and not serve.status().applications:  # no other applications
            serve.shutdown()
    except Exception as error:
        log.info("%s", error, exc_info=error)
