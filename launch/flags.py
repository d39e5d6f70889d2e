"""The flags of `ipex-launch`, and the placement flags that `ipex-assist` shares with it."""

from __future__ import annotations

import argparse
import math
from typing import Literal, cast, get_args

from ipex_assist.env.cpulist import parse_cpulist
from ipex_assist.env.errors import UsageError
from ipex_assist.env.parser import ArgumentParser
from ipex_assist.launch.cores import PlacementRequest
from ipex_assist.launch.instances import InstanceRequest, Unit, latency_request, throughput_request
from ipex_assist.launch.memory import parse_memory
from ipex_assist.version import __version__

EXAMPLES = """\
examples:
  ipex-launch -- python script.py                              one process on one socket
  ipex-launch --throughput --log-dir logs -- python serve.py   one per NUMA node
  ipex-launch --instances 4 --label -- python script.py        four, each line with its instance
  ipex-launch --instances per-node --dry-run -- true           what would be started, and where

The exit code is the command's, of several instances that of the first to fail; 124: --timeout, 127: not found,
126: cannot be run, 2: wrong option. Each instance finds its number in IPEX_INSTANCE (of IPEX_INSTANCES).
"""


def add_placement_arguments(parser: argparse.ArgumentParser, *, no_launch: bool = True) -> argparse._ArgumentGroup:
    """Add the placement flags as a group, and return it.

    no_launch: `--no-launch` as well, and `--placed`, which no help lists: a command that starts itself again gives it.
    """
    group = parser.add_argument_group("placement")
    group.add_argument("--threads", type=int, metavar="N", help="compute threads (default: one per physical core)")
    group.add_argument("--cpus", metavar="LIST", help="CPUs to use, e.g. 0-27,56-83 (default: one socket's cores)")
    group.add_argument(
        "--socket", type=_socket, metavar="N|all", help="use socket N, counted from 0; all: threads on every socket"
    )
    group.add_argument("--numa-node", type=int, metavar="N", help="use NUMA node N")
    if no_launch:
        group.add_argument("--no-launch", action="store_true", help="run in this process, without any placement")
        group.add_argument("--placed", action="store_true", help=argparse.SUPPRESS)
    group.add_argument("--dry-run", action="store_true", help="print the exact argv and environment, run nothing")
    return group


def request_from(args: argparse.Namespace, model_bytes: int | None = None) -> PlacementRequest:
    """The request by the flags of `add_placement_arguments`; `model_bytes` is the memory that the program will fill."""
    return PlacementRequest(args.threads, args.cpus, args.socket, args.numa_node, model_bytes)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all flags of `ipex-launch`."""
    parser = ArgumentParser(
        prog="ipex-launch",
        usage="%(prog)s [options] -- COMMAND [ARGUMENT …]",
        description="Run a command pinned to the physical cores of one socket, or several times side by side, with its "
        "memory beside it, Intel's OpenMP and a fast malloc preloaded. Variables you have set are kept.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    group = add_placement_arguments(parser, no_launch=False)
    group.add_argument("--nodes", metavar="LIST", help="use these NUMA nodes, e.g. 0-1")
    group.add_argument(
        "--smt",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="a thread on every SMT sibling (default: no)",
    )
    group.add_argument("--e-cores", action="store_true", help="use efficiency cores, too")
    group.add_argument(
        "--memory",
        metavar="POLICY",
        help="bind, preferred, interleave or local; all but local may name nodes: bind:0-1, preferred:4, or hbm for "
        "the nearest memory-only nodes (default: bind to the node, or interleave over the nodes, of the CPUs)",
    )
    _add_instances(parser.add_argument_group("instances"))
    runtime = parser.add_argument_group("runtime")
    runtime.add_argument("--openmp", choices=("auto", "intel", "gnu", "none"), default="auto", help="(default: auto)")
    runtime.add_argument(
        "--allocator", choices=("auto", "tcmalloc", "jemalloc", "system"), default="auto", help="(default: auto)"
    )
    runtime.add_argument("--env", action="append", default=[], metavar="K=V", help="set a variable; repeatable")
    runtime.add_argument("--json", action="store_true", help="print the plan as JSON (with --dry-run on stdout)")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the program and its arguments")
    return parser


def add_instance_flags(group: argparse._ArgumentGroup, usual: str = "") -> None:
    """Add the flags for the number and size of instances. usual: what the help says about the default."""
    group.add_argument(
        "--instances", type=_instances, metavar="N", help=f"how many: a number, per-node, per-socket or per-l3{usual}"
    )
    group.add_argument("--cores-per-instance", type=int, metavar="N", help="physical cores each; alone: all that fit")


def _add_instances(group: argparse._ArgumentGroup) -> None:
    add_instance_flags(group)
    group.add_argument("--latency", action="store_true", help="as many as fit with 4 cores each")
    group.add_argument("--throughput", action="store_true", help="one per NUMA node with all of its cores")
    group.add_argument("--instance", type=_numbers, metavar="I", help="run only the I-th, from 0; or several: 0,2-3")
    group.add_argument("--log-dir", metavar="DIR", help="each writes DIR/instance-I.out and .err (appended)")
    group.add_argument("--label", action="store_true", help="print every line with its instance; also with --log-dir")
    group.add_argument(
        "--on-failure", choices=("stop", "continue"), default="stop", help="what the other instances do (default: stop)"
    )
    group.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="end what runs longer, with exit code 124")
    group.add_argument(
        "--grace", type=_seconds, default=10.0, metavar="SECONDS", help="from SIGTERM to SIGKILL (default: 10)"
    )


def asks_for_several(args: argparse.Namespace) -> bool:
    """Whether flags for instances were given, even if they come to a single one."""
    return args.instances is not None or args.cores_per_instance is not None or args.latency or args.throughput


def instance_request(args: argparse.Namespace) -> InstanceRequest:
    """The request by the flags of `build_parser`.

    Raises:
        UsageError: flags exclude each other.
    """
    named = [
        flag
        for flag, given in (
            ("--latency", args.latency),
            ("--throughput", args.throughput),
            ("--instances", args.instances is not None),
            ("--cores-per-instance", args.cores_per_instance is not None),
        )
        if given
    ]
    if (args.latency or args.throughput) and len(named) > 1:
        raise UsageError(f"{' and '.join(named)} exclude each other; give one of them.")
    policy, nodes = parse_memory(args.memory) if args.memory is not None else (None, None)
    request = InstanceRequest(
        threads=args.threads,
        cpus=args.cpus,
        socket=args.socket,
        numa_node=args.numa_node,
        nodes=args.nodes,
        smt=args.smt,
        e_cores=args.e_cores,
        memory=policy,
        memory_nodes=nodes,
        instances=args.instances,
        cores_per_instance=args.cores_per_instance,
    )
    if args.latency:
        return latency_request(request)
    return throughput_request(request) if args.throughput else request


def extra_environ(args: argparse.Namespace) -> dict[str, str]:
    """The variables that `--env` sets.

    Raises:
        UsageError: one is not K=V.
    """
    extra = {}
    for text in args.env:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"--env {text}: write it as NAME=VALUE; NAME= sets it to nothing.")
        extra[name] = value
    return extra


def _socket(text: str) -> int | Literal["all"]:
    return "all" if text == "all" else int(text)


_socket.__name__ = "socket"  # argparse names the function in: invalid socket value: 'x'


def _instances(text: str) -> int | Unit:
    return cast(Unit, text) if text in get_args(Unit) else int(text)


_instances.__name__ = f"number (or {', '.join(get_args(Unit))})"


def _numbers(text: str) -> tuple[int, ...]:
    numbers = parse_cpulist(text)
    if not numbers:
        raise ValueError
    return numbers


_numbers.__name__ = "instance"


def _seconds(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value <= 0:
        raise ValueError
    return value


_seconds.__name__ = "number of seconds"
