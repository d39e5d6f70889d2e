"""The topology reader on invented machines: each test names the wrong rule it would catch."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import CPU, GIB, NODE, Cgroup, MachineSpec, to_mask, write, write_machine

from ipex_assist.env.cgroup import read_cgroup_limits
from ipex_assist.env.cpulist import format_cpulist, parse_cpulist, parse_cpumask
from ipex_assist.env.errors import UsageError
from ipex_assist.env.machine import Machine
from ipex_assist.env.memory import MemoryInfo, read_memory
from ipex_assist.env.topology import read_topology
from ipex_assist.env.tree import Tree

pytestmark = pytest.mark.one_stack


def read(spec: MachineSpec, root: Path) -> Machine:
    return read_topology(write_machine(spec, root))


@st.composite
def machine_specs(draw: st.DrawFn) -> MachineSpec:
    sockets = draw(st.integers(1, 4))
    nodes_per_socket = draw(st.sampled_from([1, 1, 2, 4]))
    cores_per_socket = draw(st.integers(nodes_per_socket, 6))
    threads = draw(st.integers(1, 3))
    hbm = draw(st.sampled_from([0, 0, 2]))
    total = sockets * cores_per_socket * threads
    offline = draw(st.sets(st.integers(1, total - 1), max_size=total // 3)) if total > 1 else set()
    count = sockets * nodes_per_socket + hbm
    ids = draw(st.none() | st.lists(st.integers(0, 90), min_size=count, max_size=count, unique=True).map(sorted))
    return MachineSpec(
        sockets=sockets,
        cores_per_socket=cores_per_socket,
        threads_per_core=threads,
        numbering=draw(st.sampled_from(["split", "adjacent", "alternate"])),
        nodes_per_socket=nodes_per_socket,
        hbm_nodes=hbm,
        node_ids=tuple(ids) if ids else None,
        offline=frozenset(offline),
        style=draw(st.sampled_from(["lists", "masks"])),
    )


@settings(max_examples=50, deadline=None)
@given(machine_specs())
def test_any_machine_is_read_as_described(spec: MachineSpec) -> None:
    """Catches shortcuts that hold on one numbering only: core ids as CPUs, products of maxima, ranges, strides."""
    with tempfile.TemporaryDirectory() as folder:
        machine = read(spec, Path(folder))
    expected = spec.cores()
    assert [core.cpus for core in machine.cores] == [core.cpus for core in expected]
    sockets: dict[int, set[int]] = {}
    for core in expected:
        sockets.setdefault(core.socket, set()).update(core.cpus)
    found = [{cpu for c in machine.cores if c.socket == index for cpu in c.cpus} for index in machine.sockets]
    assert found == sorted(sockets.values(), key=min)
    assert {node.id: list(node.cpus) for node in machine.nodes} == spec.nodes()
    assert [node.id for node in machine.nodes] == sorted(spec.nodes())
    assert machine.smt == any(len(core.cpus) > 1 for core in expected)
    assert machine.allowed == machine.cpus == tuple(spec.online())
    assert machine.warnings == ()


@given(st.sets(st.integers(0, 300)))
def test_lists_and_masks_round_trip(cpus: set[int]) -> None:
    """Catches off-by-one ends of ranges and mask groups read in the wrong order."""
    assert set(parse_cpulist(format_cpulist(cpus))) == cpus
    assert set(parse_cpumask(to_mask(sorted(cpus)))) == cpus


@pytest.mark.parametrize("text", ["3-1", "a", "1-", "-1", "0-4294967295", "1;2", "0x3"])
def test_bad_lists_are_refused(text: str) -> None:
    """Catches int() being generous, and a huge range filling memory."""
    with pytest.raises(ValueError, match=r".+"):
        parse_cpulist(text)


def test_more_than_ten_nodes_sort_numerically(tmp_path: Path) -> None:
    """The test catches node10 before node2."""
    machine = read(MachineSpec(sockets=4, cores_per_socket=4, nodes_per_socket=3), tmp_path)
    assert [node.id for node in machine.nodes] == list(range(12))


def test_no_numa_directory(tmp_path: Path) -> None:
    """Catches a reader that needs a node."""
    machine = read(MachineSpec(numa=False), tmp_path)
    assert machine.nodes == ()
    assert machine.allowed_nodes == ()
    assert len(machine.default_cores()) == 2


@pytest.mark.parametrize("package_ids", [(36, 3180), (-1, -1), (0, 0), (7, 3)])
def test_package_ids_are_not_counted(package_ids: tuple[int, int], tmp_path: Path) -> None:
    """Catches counting distinct ids where they are missing, repeat on every board, or have gaps."""
    spec = MachineSpec(sockets=2, cores_per_socket=4, package_ids=package_ids, style="masks")
    assert len(read(spec, tmp_path).sockets) == 2


def test_a_kernel_that_knows_no_packages_shows_one_socket(tmp_path: Path) -> None:
    """Catches as many sockets as cores, and so a placement on one core, from the kernel's stand-in values."""
    spec = MachineSpec(sockets=4, cores_per_socket=1, sockets_per_node=4, package_ids=(-1,) * 4, style="masks")
    machine = read(spec, tmp_path)
    assert machine.sockets == (0,)
    assert len(machine.cores) == len(machine.default_cores()) == 4


def test_virtual_cpus_shown_as_sockets(tmp_path: Path) -> None:
    """Catches one thread on an eight-CPU virtual machine, because its hypervisor gives each CPU a socket."""
    flags = "processor\t: 0\nflags\t\t: fpu hypervisor avx2\n"
    spec = MachineSpec(sockets=8, cores_per_socket=1, sockets_per_node=4, cpuinfo=flags)
    machine = read(spec, tmp_path / "virtual")
    assert len(machine.sockets) == 8
    assert [core.cpus for core in machine.default_cores()] == [(0,), (1,), (2,), (3,)]
    real = read(MachineSpec(sockets=8, cores_per_socket=1, sockets_per_node=4), tmp_path / "real")
    assert len(real.default_cores()) == 1


@pytest.mark.parametrize(
    ("line", "nodes", "interleaved"),
    [
        ("560eab789000 default file=/usr/bin/x mapped=2", (0, 1), ()),
        ("560eab789000 bind:1 file=/usr/bin/x mapped=2", (1,), ()),
        ("560eab789000 bind=static:1 file=/usr/bin/x", (1,), ()),
        ("560eab789000 interleave:0-1 file=/usr/bin/x", (0, 1), (0, 1)),
        ("560eab789000 local", (0, 1), ()),
        ("", (0, 1), ()),
    ],
)
def test_memory_policy_around_the_process(
    line: str, nodes: tuple[int, ...], interleaved: tuple[int, ...], tmp_path: Path
) -> None:
    """Catches replacing the `numactl -m` or `-i` that the user put in front of the command."""
    write_machine(MachineSpec(sockets=2, cores_per_socket=4), tmp_path)
    write(tmp_path, "proc/self/numa_maps", line)
    machine = read_topology(tmp_path)
    assert (machine.allowed_nodes, machine.interleaved) == (nodes, interleaved)
    assert {core.socket for core in machine.default_cores()} == {nodes[0]}


def test_core_siblings_cut_at_node_borders(tmp_path: Path) -> None:
    """Catches counting distinct core_siblings: old kernels list the halves of a cluster-on-die package apart."""
    spec = MachineSpec(sockets=2, cores_per_socket=4, nodes_per_socket=2, siblings_cut_at_nodes=True)
    machine = read(spec, tmp_path)
    assert [core.socket for core in machine.cores] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_inconsistent_core_siblings_give_a_partition(tmp_path: Path) -> None:
    """Catches a socket counted twice when its first CPU does not name all the CPUs that name it."""
    write_machine(MachineSpec(cores_per_socket=4, style="masks", package_ids=(-1,)), tmp_path)
    write(tmp_path, f"{CPU}/cpu0/topology/core_siblings", "00000003")
    machine = read_topology(tmp_path)
    assert machine.sockets == (0,)
    assert len(machine.cores) == 4


@pytest.mark.parametrize("hint", ["cpu_atom", "capacity", "shape"])
def test_hybrid_cores_are_told_apart(hint: str, tmp_path: Path) -> None:
    """Catches cores = CPUs / threads, and E-cores among the default cores."""
    spec = MachineSpec(cores_per_socket=10, threads_per_core=2, e_cores=4, hybrid_hint=hint)  # type: ignore[arg-type]
    machine = read(spec, tmp_path)
    assert len(machine.cores) == 10
    assert [core.cpus[0] for core in machine.cores if core.efficiency] == [12, 13, 14, 15]
    assert [core.cpus[0] for core in machine.default_cores()] == [0, 2, 4, 6, 8, 10]


def test_hybrid_with_smt_switched_off(tmp_path: Path) -> None:
    """Catches E-cores known only by their lack of SMT."""
    machine = read(MachineSpec(cores_per_socket=8, e_cores=4, hybrid_hint="clock"), tmp_path)
    assert sum(core.efficiency for core in machine.cores) == 4


def test_offline_siblings_do_not_make_e_cores(tmp_path: Path) -> None:
    """Catches taking a core that lost a sibling to an administrator for an E-core."""
    machine = read(MachineSpec(cores_per_socket=4, threads_per_core=2, offline=frozenset({6, 7})), tmp_path)
    assert not any(core.efficiency for core in machine.cores)
    assert len(machine.default_cores()) == 4


def test_all_atom_server_has_no_e_cores(tmp_path: Path) -> None:
    """Catches calling the cores of a server E-cores where it has no others."""
    write_machine(MachineSpec(cores_per_socket=4), tmp_path)
    write(tmp_path, "sys/devices/cpu_atom/cpus", "0-3")
    machine = read_topology(tmp_path)
    assert not any(core.efficiency for core in machine.cores)
    assert len(machine.default_cores()) == 4


def test_cpus_in_no_node_or_in_two_are_reported(tmp_path: Path) -> None:
    """Catches losing a CPU because no node lists it."""
    write_machine(MachineSpec(sockets=2, cores_per_socket=4), tmp_path)
    write(tmp_path, f"{NODE}/node0/cpulist", "0-2,4")
    machine = read_topology(tmp_path)
    assert machine.allowed == tuple(range(8))
    assert [line.split(" lie")[0] for line in machine.warnings if "no NUMA node" in line] == ["CPUs 3"]
    assert any("CPUs 4 " in line and "more than one" in line for line in machine.warnings)


def test_container_without_cpu_0(tmp_path: Path) -> None:
    """Catches range(cpu_count()) as the set of CPUs."""
    machine = read(MachineSpec(cores_per_socket=8, status_cpus="3,5-6"), tmp_path)
    assert machine.allowed == (3, 5, 6)
    assert [core.cpus for core in machine.allowed_cores()] == [(3,), (5,), (6,)]


@pytest.mark.parametrize("version", [1, 2])
def test_cgroup_cpuset_and_memory_nodes(version: int, tmp_path: Path) -> None:
    """Catches ignoring cpusets, and reading only the root group."""
    group = Cgroup(version=version, cpus="4-5", mems="1")  # type: ignore[arg-type]
    machine = read(MachineSpec(sockets=2, cores_per_socket=4, cgroup=group), tmp_path)
    assert machine.allowed == (4, 5)
    assert machine.allowed_nodes == (1,)


@pytest.mark.parametrize("version", [1, 2])
def test_cpuset_of_an_outer_group_counts(version: int, tmp_path: Path) -> None:
    """Catches looking only into the innermost group, which has no cpuset files when its controller is off."""
    group = Cgroup(version=version, path="/job", cpus="1")  # type: ignore[arg-type]
    write_machine(MachineSpec(cores_per_socket=4, cgroup=group), tmp_path)
    lines = (tmp_path / "proc/self/cgroup").read_text().replace("/job", "/job/step/task")
    (tmp_path / "proc/self/cgroup").write_text(lines)
    assert read_topology(tmp_path).allowed == (1,)


@pytest.mark.parametrize("version", [1, 2])
def test_the_tightest_quota_on_the_way_up_counts(version: int, tmp_path: Path) -> None:
    """Catches reading the quota of the process's own group only."""
    group = Cgroup(version=version, path="/pod/container", quota=6.0, outer={"/pod": 2.5})  # type: ignore[arg-type]
    machine = read(MachineSpec(cores_per_socket=8, cgroup=group), tmp_path)
    assert machine.cpu_quota == 2.5
    assert machine.threads_within_quota(8) == 2
    assert machine.threads_within_quota(1) == 1


def test_unlimited_quota(tmp_path: Path) -> None:
    """Catches reading `max` and -1 as numbers."""
    write_machine(MachineSpec(cgroup=Cgroup()), tmp_path)
    write(tmp_path, "sys/fs/cgroup/job/step/cpu.max", "max 100000")
    assert read_topology(tmp_path).cpu_quota is None
    write(tmp_path, "proc/self/cgroup", "3:cpu:/x")
    write(tmp_path, "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", -1)
    write(tmp_path, "sys/fs/cgroup/cpu/x/cpu.cfs_period_us", 100000)
    assert read_topology(tmp_path).cpu_quota is None


def test_container_that_sees_its_group_as_the_mount(tmp_path: Path) -> None:
    """Catches joining the host's path to a mount point that already is the container's group (docker on cgroup v1)."""
    write_machine(MachineSpec(cores_per_socket=4), tmp_path)
    write(tmp_path, "proc/self/cgroup", "5:cpuset:/docker/abc\n4:cpu,cpuacct:/docker/abc")
    write(
        tmp_path,
        "proc/self/mountinfo",
        "30 25 0:26 /docker/abc /sys/fs/cgroup/cpuset ro,nosuid - cgroup cgroup rw,cpuset\n"
        "31 25 0:27 /docker/abc /mnt/with\\040blank ro - cgroup cgroup rw,cpu,cpuacct",
    )
    write(tmp_path, "sys/fs/cgroup/cpuset/cpuset.cpus", "2-3")
    write(tmp_path, "mnt/with blank/cpu.cfs_quota_us", 150000)
    write(tmp_path, "mnt/with blank/cpu.cfs_period_us", 100000)
    machine = read_topology(tmp_path)
    assert machine.allowed == (2, 3)
    assert machine.cpu_quota == 1.5


def test_group_seen_from_another_namespace(tmp_path: Path) -> None:
    """Catches following `/../..` out of the mount."""
    write_machine(MachineSpec(cores_per_socket=4), tmp_path)
    write(tmp_path, "proc/self/cgroup", "0::/../../other")
    write(tmp_path, "sys/fs/cgroup/cgroup.controllers", "cpuset")
    write(tmp_path, "sys/fs/cgroup/cpuset.cpus.effective", "1-2")
    write(tmp_path, "sys/other/cpuset.cpus.effective", "3")
    assert read_topology(tmp_path).allowed == (1, 2)


def test_a_foreign_cpuset_is_ignored_with_a_warning(tmp_path: Path) -> None:
    """Catches an empty allowed set from cgroup files that are not this process's."""
    machine = read(MachineSpec(cores_per_socket=4, status_cpus="0-1", cgroup=Cgroup(cpus="2-3")), tmp_path)
    assert machine.allowed == (0, 1)
    assert any("cpuset" in line for line in machine.warnings)


@pytest.mark.parametrize("version", [1, 2])
def test_memory_limit_and_what_is_left_of_it(version: int, tmp_path: Path) -> None:
    """Catches planning with the host's memory in a limited container, and counting page cache as used."""
    group = Cgroup(version=version, memory_limit=8 * GIB, memory_used=2 * GIB)  # type: ignore[arg-type]
    write_machine(MachineSpec(cgroup=group), tmp_path)
    write(tmp_path, "proc/meminfo", f"MemTotal: {64 * GIB // 1024} kB\nMemAvailable: {32 * GIB // 1024} kB")
    memory = read_memory(tmp_path)
    assert memory.total == 8 * GIB
    assert memory.available == 7 * GIB


NODES = MachineSpec(sockets=2, node_bytes=64 * GIB, node_free=48 * GIB)


@pytest.mark.parametrize(
    ("policy", "mems", "nodes", "available"),
    [
        ("default", None, None, 100),
        ("bind:1", None, None, 48),
        ("bind=static:0-1", None, None, 100),
        ("interleave:0", None, None, 100),  # which takes from others where that node is full
        ("default", "0", None, 48),
        ("bind:0-1", "1", None, 48),
        ("default", None, (0,), 48),
        ("default", "1", (0,), 48),  # such a process cannot be: it would be bound to what is allowed
    ],
)
def test_memory_is_that_of_the_nodes_that_may_be_used(
    policy: str, mems: str | None, nodes: tuple[int, ...] | None, available: int, tmp_path: Path
) -> None:
    """Catches planning with memory of other nodes: the pool was filled, and the kernel killed the process."""
    write_machine(dataclasses.replace(NODES, status_mems=mems), tmp_path)
    write(tmp_path, "proc/meminfo", f"MemTotal: {128 * GIB // 1024} kB\nMemAvailable: {100 * GIB // 1024} kB")
    write(tmp_path, "proc/self/numa_maps", f"560eab789000 {policy} file=/usr/bin/x")
    memory = read_memory(tmp_path, nodes=nodes)
    assert memory.available == available * GIB
    assert memory.total == (64 if available == 48 else 128) * GIB


def test_a_control_group_may_have_less_than_the_node(tmp_path: Path) -> None:
    """The least of all counts."""
    write_machine(dataclasses.replace(NODES, cgroup=Cgroup(memory_limit=8 * GIB, mems="1")), tmp_path)
    write(tmp_path, "proc/meminfo", f"MemTotal: {128 * GIB // 1024} kB\nMemAvailable: {100 * GIB // 1024} kB")
    assert read_memory(tmp_path) == MemoryInfo(8 * GIB, 8 * GIB)


def test_no_memory_limit(tmp_path: Path) -> None:
    """Catches cgroup v1's huge number being taken for a limit."""
    group = Cgroup(version=1, memory_limit=0x7FFFFFFFFFFFF000)
    assert read_cgroup_limits(Tree(write_machine(MachineSpec(cgroup=group), tmp_path))).memory_limit is None


def test_free_memory_includes_page_cache(tmp_path: Path) -> None:
    """Catches refusing a node whose memory is full of file cache, the normal state of a server."""
    (node,) = read(MachineSpec(node_bytes=64 * GIB, node_free=48 * GIB), tmp_path).nodes
    assert node.memory_bytes == 64 * GIB
    assert node.free_bytes == 48 * GIB


def test_kernel_without_topology_files(tmp_path: Path) -> None:
    """Catches a crash in sandboxes that show no sysfs topology."""
    write(tmp_path, "proc/cpuinfo", "processor\t: 0\nmodel name\t: x\n\nprocessor\t: 1\nmodel name\t: x\n")
    machine = read_topology(tmp_path)
    assert machine.cpus == (0, 1)
    assert len(machine.default_cores()) == 2
    assert len(machine.warnings) == 1


def cpuinfo(*processors: dict[str, int]) -> str:
    """Return /proc/cpuinfo as the kernel writes it."""
    return "\n\n".join(
        "\n".join(f"{name}\t: {value}" for name, value in {"processor": number, **fields}.items())
        for number, fields in enumerate(processors)
    )


def test_sockets_of_cpuinfo_where_there_are_no_topology_files(tmp_path: Path) -> None:
    """Catches two packages counted as one: a dual E5345 on an old kernel, whose CPUs take turns between the sockets."""
    cores = [{"physical id": cpu % 2, "siblings": 4, "core id": cpu // 2, "cpu cores": 4} for cpu in range(8)]
    write(tmp_path, "proc/cpuinfo", cpuinfo(*cores))
    machine = read_topology(tmp_path)
    assert [core.socket for core in machine.cores] == [0, 1] * 4
    assert [core.cpus for core in machine.cores] == [(cpu,) for cpu in range(8)]
    assert machine.warnings == ()


@pytest.mark.parametrize(("siblings", "cores"), [(4, [(0, 4), (1, 5), (2, 6), (3, 7)]), (2, None)])
def test_threads_of_cpuinfo(siblings: int, cores: list[tuple[int, ...]] | None, tmp_path: Path) -> None:
    """Catches second threads taken for cores, and cores whose ids repeat taken for threads."""
    fields = [
        {"physical id": 3 * (cpu % 2), "siblings": siblings, "core id": cpu // 2 % 2, "cpu cores": 2}
        for cpu in range(8)
    ]
    write(tmp_path, "proc/cpuinfo", cpuinfo(*fields))
    machine = read_topology(tmp_path)
    assert [core.cpus for core in machine.cores] == (cores or [(cpu,) for cpu in range(8)])
    assert {core.socket for core in machine.cores} == {0, 1}


def test_package_ids_without_sibling_lists(tmp_path: Path) -> None:
    """Catches one socket per CPU in sandboxes that show the ids only."""
    write_machine(MachineSpec(sockets=2, cores_per_socket=2), tmp_path)
    for file in tmp_path.glob(f"{CPU}/cpu*/topology/package_cpus*"):
        file.unlink()
    machine = read_topology(tmp_path)
    assert [core.socket for core in machine.cores] == [0, 0, 1, 1]


def test_an_empty_root_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="describes no machine"):
        read_topology(tmp_path)


def test_live_machine_respects_the_affinity_mask() -> None:
    """Catches reading the machine instead of the process's share (taskset, numactl, Slurm)."""
    cpu = max(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, [{cpu}])\n"
        "from ipex_assist.env import read_topology\n"
        "m = read_topology(); print(m.allowed, len(m.default_cores()))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == f"({cpu},) 1"
