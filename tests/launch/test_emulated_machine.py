"""Placement, threads, memory and texts on emulated machines of several sockets and nodes, by a real kernel."""

from __future__ import annotations

import itertools
import json
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import emulated_machine
import pytest
import tiny_models
from conftest import HAS_NATIVE
from emulated_machine import EmulatedMachine

from ipex_assist.env.cpulist import parse_cpulist

pytestmark = [
    pytest.mark.full,
    pytest.mark.alone,  # two minutes a machine by itself, a quarter of an hour beside others; and a boot for all tests
    pytest.mark.one_stack,
    pytest.mark.skipif(emulated_machine.why_none() is not None, reason=str(emulated_machine.why_none())),
    pytest.mark.skipif(not HAS_NATIVE, reason="the native core's memory is looked at"),
]

SECONDS = 900  # the longest run of a machine: two minutes without other work beside it
CHECKS = Path(__file__).parent / "emulated_checks.py"
SIZES = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4, "vocab_size": 4000}
SIZES |= {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 2048}
ALL = {"first_touch": True, "all_sockets": True}


def checks(*words: str) -> str:
    return shlex.join([sys.executable, str(CHECKS), *words])


def placed(model: Path, before: str = "", check: str = "text", **request: Any) -> str:
    """A shell command that prints what a placed process found."""
    return f"{before} {checks('start', json.dumps(request), sys.executable, str(CHECKS), check, str(model))}"


def named(**commands: str) -> str:
    """A script that writes what each command prints, and its exit code, to a file of its own."""
    return "\n".join(f"({line}) > {name}.out 2> {name}.err; echo $? > {name}.code" for name, line in commands.items())


class Found:
    """What the commands of a script did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def code(self, name: str) -> int:
        return int((self.folder / f"{name}.code").read_text())

    def says(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text() + (self.folder / f"{name}.err").read_text()

    def json(self, name: str) -> Any:
        assert self.code(name) == 0, self.says(name)
        return json.loads((self.folder / f"{name}.out").read_text().splitlines()[-1])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_models.save(folder, "llama", **SIZES)
    return folder


def in_group(cpus: str, nodes: str, command: str) -> str:
    """`command` in a cpuset."""
    group = "/sys/fs/cgroup/job"
    return (
        f"echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control; mkdir -p {group}; echo {cpus} > {group}/cpuset.cpus; "
        f"echo {nodes} > {group}/cpuset.mems; echo $BASHPID > {group}/cgroup.procs; {command}"
    )


@pytest.fixture(scope="module")
def two_sockets(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Two sockets of two cores, each with a node of memory: one process on both, and one on each."""
    folder = tmp_path_factory.mktemp("two")
    launcher = shlex.join([sys.executable, "-m", "ipex_assist.launch"])
    script = named(
        report=checks("report"),
        all=placed(model, **ALL),
        slices=placed(model, socket="all", first_touch=True),
        touch=placed(model, check="touch", **ALL),
        replicas=f"{launcher} --instances per-node --log-dir replicas -- {checks('text', str(model))}",
    )
    EmulatedMachine(memory=(1100, 1100)).run(folder, script, SECONDS)
    for number in (0, 1):
        (folder / f"replica{number}.out").write_text((folder / "replicas" / f"instance-{number}.out").read_text())
        (folder / f"replica{number}.code").write_text("0")
    return Found(folder)


@pytest.fixture(scope="module")
def parts(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The same machine, of which somebody has left us a part."""
    folder = tmp_path_factory.mktemp("parts")
    launcher = shlex.join([sys.executable, "-m", "ipex_assist.launch"])
    script = named(
        second=placed(model, socket=1, first_touch=True),
        uneven=placed(model, cpus="0,2,3", first_touch=True),
        bound=placed(model, "taskset -c 3 numactl -m 1", **ALL),
        interleaved=placed(model, "numactl -i 0-1", **ALL),
        cpuset=in_group("2-3", "1", placed(model, **ALL)),
        partly=in_group("0-3", "1", f"{launcher} --socket all --dry-run -- true"),
    )
    EmulatedMachine(memory=(1100, 1100)).run(folder, script, SECONDS)
    return Found(folder)


@pytest.fixture(scope="module")
def four_nodes(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Two sockets of two clusters (SNC), a core in each."""
    folder = tmp_path_factory.mktemp("four")
    EmulatedMachine(memory=(700, 700, 700, 700)).run(folder, named(all=placed(model, **ALL)), SECONDS)
    return Found(folder)


def test_the_machine_is_recognised(two_sockets: Found) -> None:
    report = two_sockets.json("report")
    assert (report["sockets"], report["physical_cores"]) == (2, 4)
    assert [node["cpus"] for node in report["numa_nodes"].values()] == ["0-1", "2-3"]


def found_of(name: str, request: pytest.FixtureRequest) -> Any:
    """What a process found on whichever machine it ran."""
    machine = "parts" if name in ("second", "uneven", "bound", "interleaved", "cpuset") else "two_sockets"
    return request.getfixturevalue(machine).json(name)


@pytest.mark.parametrize(
    ("name", "cores"),
    [
        ("all", (0, 1, 2, 3)),
        ("slices", (0, 1, 2, 3)),
        ("replica0", (0, 1)),
        ("replica1", (2, 3)),
        ("second", (2, 3)),
        ("uneven", (0, 2, 3)),
        ("bound", (3,)),
        ("cpuset", (2, 3)),
    ],
)
def test_each_thread_has_its_core(name: str, cores: tuple[int, ...], request: pytest.FixtureRequest) -> None:
    """Of all sockets by default. The core binds its first thread, which is the caller's, during passes only."""
    masks = [parse_cpulist(each) for each in found_of(name, request)["cpus"]]
    assert {cpu for mask in masks for cpu in mask} == set(cores)
    assert {mask for mask in masks if len(mask) == 1} >= {(core,) for core in cores[1:]}


def test_a_text_is_the_same_on_any_nodes(two_sockets: Found, parts: Found, four_nodes: Found, odd: Found) -> None:
    """One node, two and four, a core, a cpuset, replicas, SMT, and memory that somebody else has placed."""
    texts = [two_sockets.json(name)["tokens"] for name in ("all", "slices", "replica0", "replica1")]
    texts += [parts.json(name)["tokens"] for name in ("second", "uneven", "bound", "interleaved", "cpuset")]
    texts += [four_nodes.json("all")["tokens"], odd.json("socket")["tokens"]]
    assert all(text == texts[0] for text in texts)


def share_of(nodes: list[int], node: int) -> float:
    return Counter(nodes)[node] / len(nodes)


def changes(nodes: list[int]) -> int:
    """How often a page is on another node than the one before it."""
    return sum(one != other for one, other in itertools.pairwise(nodes))


@pytest.mark.parametrize(("name", "share"), [("all", 1 / 2), ("slices", 1 / 2), ("uneven", 1 / 3)])
def test_weights_are_on_the_nodes_of_those_who_read_them(
    name: str, share: float, request: pytest.FixtureRequest
) -> None:
    """Each node's threads have written what they read: in a few pieces, and not page by page, as interleaved ones. A
    huge page, which is whose who writes it first, is a tenth of it."""
    image = found_of(name, request)["image"]
    assert share_of(image, 0) == pytest.approx(share, abs=0.2)
    assert changes(image) <= 5


def test_weights_of_four_nodes_are_quarters(four_nodes: Found) -> None:
    """A huge page, which is whose who writes it first, is an eighth of it."""
    image = four_nodes.json("all")["image"]
    assert [share_of(image, node) for node in range(4)] == pytest.approx([1 / 4] * 4, abs=1 / 7)
    assert changes(image) <= 24


@pytest.mark.parametrize("name", ["all", "slices"])
def test_keys_and_values_are_on_their_heads_nodes(name: str, two_sockets: Found) -> None:
    """The first half of the heads' memory is one node's, the second the other's, to the page, and with huge pages."""
    found = two_sockets.json(name)
    assert found["huge_pages"] == "always"
    assert share_of(found["blocks"], 0) == 1 / 2
    assert found["blocks"] == sorted(found["blocks"])


def test_memory_prefers_the_node_that_reads_it(two_sockets: Found) -> None:
    """Catches keys and values on the node of a thread that happened to write them first, for as long as they live."""
    nodes = two_sockets.json("touch")["nodes"]
    assert share_of(nodes, 0) == pytest.approx(1 / 2, abs=0.1)
    assert changes(nodes) <= 3


@pytest.mark.parametrize(
    ("name", "node"),
    [("replica0", "0"), ("replica1", "1"), ("second", "1"), ("cpuset", "1"), ("bound", "1")],
)
def test_memory_is_where_it_was_bound(name: str, node: str, request: pytest.FixtureRequest) -> None:
    """Weights, keys and values and activations of one socket's process are all on its node; a cpuset and a numactl
    outside are kept."""
    pages = found_of(name, request)["anonymous"]
    assert pages[node] > 0.99 * sum(pages.values())


def test_interleaving_from_outside_is_kept(parts: Found) -> None:
    pages = parts.json("interleaved")["anonymous"]
    assert 0.4 < pages["0"] / sum(pages.values()) < 0.6


def test_threads_without_memory_of_their_own_are_told(parts: Found) -> None:
    """A cpuset with the memory of one node only."""
    said = parts.says("partly")
    assert "2 of the 4 threads (CPUs 0-1) are on node 0, of which no memory may be used" in said


@pytest.fixture(scope="module")
def odd(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """A socket of three clusters with SMT, the first with little memory, the last with none, beside memory alone."""
    folder = tmp_path_factory.mktemp("odd")
    eat = [sys.executable, "-c", "import ctypes; ctypes.memset(ctypes.create_string_buffer(900 << 20), 1, 900 << 20)"]
    launcher = [sys.executable, "-m", "ipex_assist.launch"]
    script = named(
        fill=placed(model, check="fill", numa_node=0, first_touch=True),
        socket=placed(model, **ALL),
        spare=placed(model, spares_cpu=True, **ALL),
        env=shlex.join([sys.executable, "-m", "ipex_assist", "env"]),
        killed=shlex.join([*launcher, "--nodes", "0-1", "--instances", "2", "--", *eat]),
        alone=checks("below", json.dumps({"numa_node": 0}), *eat),
    )
    machine = EmulatedMachine(memory=(800, 1200, 0), memory_only=(128,), sockets=1, cores=3, threads=2)
    machine.run(folder, f"echo never > /sys/kernel/mm/transparent_hugepage/enabled\n{script}", SECONDS)
    return Found(folder)


def test_all_that_is_planned_can_be_written(odd: Found) -> None:
    """On a node that has less than the machine: the kernel killed the process in the midst of its pool."""
    found = odd.json("fill")
    assert found["available"] < 800 << 20
    assert found["planned"] > found["available"] // 2, "SMT siblings are no neighbours"
    assert set(found["nodes"]) == {"0"}


def test_clusters_with_memory_are_used_and_memory_alone_is_not(odd: Found) -> None:
    """Nor is the core whose node has none: all others would wait for it."""
    found = odd.json("socket")
    assert {cpu for mask in found["cpus"] for cpu in parse_cpulist(mask)} == {0, 2}
    assert set(found["anonymous"]) == {"0", "1"}
    assert share_of(found["image"], 0) == pytest.approx(1 / 2, abs=0.1)


def test_threads_that_do_not_compute_have_a_sibling(odd: Found) -> None:
    """And those that compute have their cores, as without it; the check after the start is content."""
    found = odd.json("spare")
    assert (found["own_cpus"], found["warnings"]) == ([1], [])
    assert {(2,)} <= {parse_cpulist(mask) for mask in found["cpus"]}
    assert found["tokens"] == odd.json("socket")["tokens"]


def test_the_report_names_what_costs_speed(odd: Found) -> None:
    said = odd.says("env")
    assert "transparent huge pages are off" in said
    assert "no CPUs (HBM or CXL memory)" in said
    assert "node 2: CPUs without memory of their own" in said


@pytest.mark.parametrize("name", ["killed", "alone"])
def test_who_is_killed_for_memory_is_told_which(name: str, odd: Found) -> None:
    """The process on the small node, while the other had room: one of two instances, and a command by itself."""
    assert odd.code(name) == 137
    said = odd.says(name)
    assert "was killed by SIGKILL: the kernel had no memory left for it on node 0, to which it is bound" in said
