"""The topology reader on recorded machines (see recorded_machines.py)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded_machines import recorded_machines, wanted

from ipex_assist.env.cpulist import format_cpulist, parse_cpulist
from ipex_assist.env.report import main
from ipex_assist.env.topology import read_topology
from ipex_assist.launch.placement import PlacementRequest, place

pytestmark = [
    pytest.mark.one_stack,
    wanted,
]


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, dict[str, Any]]]:
    folders = recorded_machines(tmp_path_factory.mktemp("recorded")).values()
    found = [(folder, json.loads((folder / "expected.json").read_text())) for folder in folders]
    assert found, "no expected.json in what TOPOLOGIES names"
    return found


def test_topology_matches(machines: list[tuple[Path, dict[str, Any]]]) -> None:
    """Every fact that expected.json states: CPUs, cores and their siblings, sockets, nodes, SMT, allowed set."""
    for root, expected in machines:
        machine = read_topology(root)
        found = {
            "cpus_online": len(machine.cpus),
            "cpus_online_list": format_cpulist(machine.cpus),
            "physical_cores": len(machine.cores),
            "sockets": len(machine.sockets),
            "numa_nodes": {str(node.id): format_cpulist(node.cpus) for node in machine.nodes},
            "smt": machine.smt,
            "core_groups": sorted(format_cpulist(core.cpus) for core in machine.cores),
            "socket_cpus": [
                format_cpulist(cpu for core in machine.cores if core.socket == socket for cpu in core.cpus)
                for socket in machine.sockets
            ],
        }
        stated = {key: expected[key] for key in found if key in expected}
        if "numa_nodes" in stated:
            stated["numa_nodes"] = {node: facts["cpus"] for node, facts in stated["numa_nodes"].items()}
        if "core_groups" in stated:
            stated["core_groups"] = sorted(stated["core_groups"])
        assert {key: found[key] for key in stated} == stated, root.name
        allowed = expected.get("allowed") or {"cpus": expected["cpus_online_list"], "n_cpus": expected["cpus_online"]}
        cores = machine.allowed_cores()
        found_allowed = {
            "cpus": format_cpulist(machine.allowed),
            "n_cpus": len(machine.allowed),
            "physical_cores": len(cores),
            "sockets_with_cpus": len({core.socket for core in cores}),
            "mems": format_cpulist(machine.allowed_nodes),
        }
        stated = {key: allowed[key] for key in found_allowed if key in allowed}
        assert {key: found_allowed[key] for key in stated} == stated, root.name


def test_report_matches(machines: list[tuple[Path, dict[str, Any]]], capsys: pytest.CaptureFixture[str]) -> None:
    """`ipex-assist env --json --root` says the same, under its documented keys."""
    for root, expected in machines:
        assert main(["--json", "--root", str(root)]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["sockets"] == expected["sockets"], root.name
        assert report["physical_cores"] == expected["physical_cores"], root.name
        assert report["logical_cpus"] == expected["cpus_online"], root.name
        assert report["smt"] == expected["smt"], root.name
        nodes = {node: facts["cpus"] for node, facts in expected["numa_nodes"].items()}
        assert {node: facts["cpus"] for node, facts in report["numa_nodes"].items()} == nodes, root.name
        allowed = expected.get("allowed", {}).get("cpus", expected["cpus_online_list"])
        assert report["allowed_cpus"] == allowed, root.name


def test_default_placement_is_sound(machines: list[tuple[Path, dict[str, Any]]]) -> None:
    """On every machine: allowed CPUs of one socket, one per physical core, memory on nodes of that socket."""
    for root, expected in machines:
        placement = place(PlacementRequest(), read_topology(root))
        chosen = set(placement.cpus)
        allowed = expected.get("allowed", {}).get("cpus", expected["cpus_online_list"])
        assert chosen <= set(parse_cpulist(allowed)), root.name
        groups = [set(parse_cpulist(group)) for group in expected["core_groups"]]
        assert all(len(chosen & group) <= 1 for group in groups), root.name
        homes = [socket for socket in expected["socket_cpus"] if chosen & set(parse_cpulist(socket))]
        assert len(homes) == 1, root.name
        for node in placement.nodes:
            cpus = parse_cpulist(expected["numa_nodes"][str(node)]["cpus"])
            assert set(cpus) & set(parse_cpulist(homes[0])), (root.name, node)


# The CPU of an engine's threads that do not compute, over all cores, by what expected.json says of cores and siblings.
SPARE = {
    "xeon-4108-2s8c2t": 16,
    "xeon-e5-2680-2s8c1t": None,
    "core-i7-1370p-hybrid": 1,
    "xeon-mp-4s2c2t-offline": 8,
    "opteron-6134-cgroup2": None,
    "opteron-48c-sparse-nodes": 0,
    "knl-snc4-hbm-nodes": 16,
    "xeon-5130-no-numa-dir": None,
    "qemu-4p-multidie-16nodes": 1,
}


def test_engines_spare_a_sibling_or_one_core_of_many(
    machines: list[tuple[Path, dict[str, Any]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """And compute on all other cores; the report says it, and where there is none, why."""
    request = PlacementRequest(first_touch=True, all_sockets=True)
    found = {}
    for root, _ in machines:
        machine, plain = read_topology(root), place(request, read_topology(root))
        engine = place(replace(request, spares_cpu=True), machine)
        found[root.name] = engine.spare
        assert set(plain.cpus) - set(engine.cpus) <= {engine.spare}
        assert set(engine.mask) <= set(machine.allowed)
        assert main(["--root", str(root)]) == 0
        (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("CPU for others"))
        said = line.removeprefix("CPU for others").strip()
        assert said.startswith("none: " if engine.spare is None else f"CPU {engine.spare}, ")
    assert found == SPARE
