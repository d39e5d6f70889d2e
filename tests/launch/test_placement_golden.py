"""Placements on recorded machines against what a person chose, with the reason beside each, in tests/placements/.

Runs when TOPOLOGIES names the machines, which are not kept here (see recorded_machines.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from recorded_machines import recorded_machines, wanted

from ipex_assist.env.errors import UsageError
from ipex_assist.env.topology import read_topology
from ipex_assist.launch.flags import build_parser, instance_request
from ipex_assist.launch.instances import place_instances

GOLDEN = {file.stem: json.loads(file.read_text()) for file in (Path(__file__).parent / "placements").glob("*.json")}
CASES = [(name, case) for name in sorted(GOLDEN) for case in GOLDEN[name]["cases"]]

pytestmark = [
    pytest.mark.one_stack,
    wanted,
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of recorded machines by name."""
    return recorded_machines(tmp_path_factory.mktemp("golden"))


def placed(root: Path, flags: str) -> dict[str, Any]:
    """Return what a golden file states about a case, without its reason."""
    try:
        request = instance_request(build_parser().parse_args(flags.split()))
        placements = place_instances(request, read_topology(root))
    except UsageError as error:
        return {"flags": flags, "refused": str(error)}
    said = dict.fromkeys(line for placement in placements for line in (*placement.warnings, *placement.notes))
    instances = [placement.describe() for placement in placements]
    return {"flags": flags, "instances": instances, **({"says": list(said)} if said else {})}


@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{name}: {case}" for name, case in CASES])
def test_a_recorded_machine_is_placed_as_a_person_would(name: str, case: str, recorded: dict[str, Path]) -> None:
    """Catches any change of a placement that nobody has looked at."""
    expected = dict(GOLDEN[name]["cases"][case])
    assert expected.pop("why").endswith(".")
    assert placed(recorded[name], expected["flags"]) == expected


def test_every_recorded_machine_has_been_looked_at(recorded: dict[str, Path]) -> None:
    """Catches a recorded machine, or one of its cases, without a reviewed placement."""
    assert set(GOLDEN) == set(recorded)
    usual = {"", "--instances per-node", "--instances per-socket", "--instances per-l3", "--instances 2"}
    usual |= {"--latency", "--throughput", "--socket all"}
    for name, machine in GOLDEN.items():
        assert usual <= {case["flags"] for case in machine["cases"].values()}, name
