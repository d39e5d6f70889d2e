"""`ipex-assist env`: reports this machine, what this process may use of it, and environment variables for it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ipex_assist.env.cpulist import format_cpulist
from ipex_assist.env.errors import UsageError
from ipex_assist.env.isa import processor_facts, read_isa
from ipex_assist.env.libraries import Libraries, find_libraries
from ipex_assist.env.machine import MANY_CORES, Machine
from ipex_assist.env.memory import HUGE_PAGES, gib, huge_pages, read_memory
from ipex_assist.env.parser import ArgumentParser
from ipex_assist.env.runner import run_command
from ipex_assist.env.topology import read_topology
from ipex_assist.env.tree import Tree
from ipex_assist.env.variables import choose_variables
from ipex_assist.env.versions import versions


def describe_environment(root: str | Path = "/", environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The report as plain data: the object that `--json` prints.

    `sockets`, `physical_cores`, `logical_cpus`, `smt` and `numa_nodes` describe the whole machine, `allowed_cpus` what
    this process may use. `libraries` are always this interpreter's, `variables` those of a run with default placement
    on the machine below `root`; a variable that the user has set has the user's value. `--json` adds `processor`: what
    py-cpuinfo tells of this machine's brand, caches and flags.
    """
    return _describe(read_topology(root), root, environ)


def _describe(machine: Machine, root: str | Path, environ: Mapping[str, str]) -> dict[str, Any]:
    libraries = find_libraries(environ)
    threads = machine.threads_within_quota(len(machine.default_cores()))
    variables = choose_variables(threads, libraries, environ)
    return {
        "versions": versions(),
        "sockets": len(machine.sockets),
        "physical_cores": len(machine.cores),
        "logical_cpus": len(machine.cpus),
        "allowed_cpus": format_cpulist(machine.allowed),
        "smt": machine.smt,
        "numa_nodes": {
            str(node.id): {"cpus": format_cpulist(node.cpus), "memory_bytes": node.memory_bytes}
            for node in machine.nodes
        },
        "isa": read_isa(root).as_dict(),
        "libraries": libraries.as_dict(),
        "tools": {"numactl": shutil.which("numactl", path=environ.get("PATH", os.defpath))},
        "variables": variables.set | variables.kept,
        "warnings": [*machine.warnings, *_advice(machine, libraries, root), *variables.describe_kept()],
    }


def _advice(machine: Machine, libraries: Libraries, root: str | Path) -> list[str]:
    """A sentence for each thing that costs speed on this machine and can be changed."""
    lines = []
    cores = len(machine.default_cores())
    if machine.threads_within_quota(cores) < cores:
        lines.append(
            f"the control group grants {machine.cpu_quota:g} CPUs of time for {cores} cores: "
            f"{machine.threads_within_quota(cores)} threads; raise the container's CPU limit to use them all"
        )
    without = [node.id for node in machine.nodes if node.cpus and not node.has_memory]
    if without:
        lines.append(
            f"node{'s' * (len(without) > 1)} {format_cpulist(without)}: CPUs without memory of their own, which read "
            "that of other nodes; look for an empty memory channel, or a setting of the BIOS"
        )
    if huge_pages(Tree(root)) == "never":
        lines.append(
            f"transparent huge pages are off (/{HUGE_PAGES} is never): more of each pass goes into finding pages; "
            f"as root, echo madvise > /{HUGE_PAGES}"
        )
    return lines + libraries.missing()


def format_report(
    report: Mapping[str, Any], machine: Machine, memory_line: str, more: Mapping[str, str | None] | None = None
) -> str:
    """The report for people, an aligned line for each fact. more: further facts; those that are None are left out."""
    from tabulate import tabulate  # imported here: it takes a while, and only this table needs it

    threads_per_core = "SMT on" if report["smt"] else "SMT off"
    rows = [
        ("versions", ", ".join(f"{name} {version}" for name, version in report["versions"].items() if version)),
        ("processor", report["isa"]["model"] or "unknown"),
        ("sockets", str(report["sockets"])),
        ("cores", f"{report['physical_cores']} physical, {report['logical_cpus']} CPUs online, {threads_per_core}"),
        ("allowed", f"CPUs {report['allowed_cpus']} ({len(machine.allowed_cores())} physical cores)"),
        ("memory", memory_line),
        ("isa", " ".join(name for name, present in report["isa"].items() if present is True) or "none of note"),
    ]
    if efficiency := [core for core in machine.cores if core.efficiency]:
        rows.insert(4, ("E-cores", f"CPUs {format_cpulist(cpu for core in efficiency for cpu in core.cpus)}"))
    rows.append(("CPU for others", _spare(machine)))
    if machine.cpu_quota is not None:
        rows.append(("CPU quota", f"{machine.cpu_quota:g} CPUs"))
    for node in machine.nodes:
        cpus = f"CPUs {format_cpulist(node.cpus)}" if node.cpus else "no CPUs (HBM or CXL memory)"
        if not node.has_memory:
            rows.append((f"node {node.id}", f"no memory, {cpus}"))
            continue
        usable = "" if node.id in machine.allowed_nodes else ", memory not allowed here"
        rows.append((f"node {node.id}", f"{_size(node.memory_bytes)}, {_size(node.free_bytes)} free, {cpus}{usable}"))
    rows += [(name.replace("_", " "), value) for name, value in (more or {}).items() if value is not None]
    rows += [(name, path or "not found") for name, path in report["libraries"].items()]
    without = "not found, memory is not bound to nodes: apt-get install numactl"
    rows.append(("numactl", report["tools"]["numactl"] or without))
    rows += [(name, value) for name, value in report["variables"].items()]
    table = tabulate(rows, tablefmt="plain", disable_numparse=True)
    return "\n".join([table, *(f"note: {warning}" for warning in report["warnings"])])


def _spare(machine: Machine) -> str:
    """What an engine of `serve` or `batch` on all cores leaves to its threads that do not compute."""
    cores = machine.cores_with_memory([core for core in machine.allowed_cores() if not core.efficiency])
    cpus = sorted(core.cpus[0] for core in cores or machine.allowed_cores())
    spare = machine.spare_cpu(cpus) if cpus else None
    if spare is None:
        return f"none: {len(cpus)} core{'s' * (len(cpus) != 1)} without SMT, fewer than {MANY_CORES}, all compute"
    kind = f"a core of {len(cpus)}" if spare in cpus else f"SMT sibling of CPU {cpus[0]}"
    return f"CPU {spare}, {kind}: Python and other helpers of serve and batch"


def _size(size: int | None) -> str:
    return "unknown" if size is None else gib(size)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags of `ipex-assist env`."""
    parser = ArgumentParser(
        prog="ipex-assist env",
        description="Report this machine, how much of it this process may use, and the variables that suit it.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    parser.add_argument(
        "--root", metavar="DIR", default="/", help="read DIR/sys and DIR/proc instead of this machine's"
    )
    return parser


def main(argv: list[str], more: Mapping[str, str | None] | None = None) -> int:
    """Run `ipex-assist env` with the arguments after `env`; returns the exit code.

    more: facts that the caller adds, such as the native core's instruction set; None is null in the JSON.
    """
    args = build_parser().parse_args(argv)
    return run_command(lambda: _print_report(args.root, args.json, more or {}), "ipex-assist env", verbose=None)


def _print_report(root: str, as_json: bool, more: Mapping[str, str | None]) -> int:
    if not Path(root).is_dir():
        raise UsageError(f"--root {root} is not a folder")
    machine = read_topology(root)
    report = {**_describe(machine, root, os.environ), **more}
    if as_json:
        if Path(root) == Path("/"):
            report["processor"] = processor_facts()
        print(json.dumps(report), flush=True)
        return 0
    memory = read_memory(root)
    line = f"{_size(memory.total)}, {_size(memory.available)} available" if memory.total else "unknown"
    print(format_report(report, machine, line, more), flush=True)
    return 0
