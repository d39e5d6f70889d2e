"""`ipex-assist env`: the keys scripts rely on, the text people read, and wrong input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from launching import times_of_python
from machines import GIB, Cgroup, MachineSpec, write, write_machine

from ipex_assist.env.report import describe_environment, main

pytestmark = pytest.mark.one_stack

KEYS = {
    "sockets",
    "physical_cores",
    "logical_cpus",
    "allowed_cpus",
    "smt",
    "numa_nodes",
    "isa",
    "libraries",
    "tools",
    "variables",
    "versions",
    "warnings",
}
COMMAND = "import sys; from ipex_assist.env.report import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def xeon(tmp_path: Path) -> Path:
    spec = MachineSpec(sockets=2, cores_per_socket=4, threads_per_core=2, hbm_nodes=1, status_cpus="0-3,8-11")
    return write_machine(spec, tmp_path)


def test_json(xeon: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--root", str(xeon)]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    report = json.loads(out)
    assert set(report) == KEYS
    assert (report["sockets"], report["physical_cores"], report["logical_cpus"], report["smt"]) == (2, 8, 16, True)
    assert report["allowed_cpus"] == "0-3,8-11"
    assert report["numa_nodes"] == {
        "0": {"cpus": "0-3,8-11", "memory_bytes": 64 * GIB},
        "1": {"cpus": "4-7,12-15", "memory_bytes": 64 * GIB},
        "2": {"cpus": "", "memory_bytes": 64 * GIB},
    }
    assert report["isa"]["model"] == "Test Xeon"
    assert report["isa"]["avx2"] is True


def test_variables_follow_the_machine_and_the_user(xeon: Path) -> None:
    """Catches variables for this machine in a report about another, and a user's value shown as ours."""
    assert describe_environment(xeon, {})["variables"]["OMP_NUM_THREADS"] == "4"
    report = describe_environment(xeon, {"OMP_NUM_THREADS": "3"})
    assert report["variables"]["OMP_NUM_THREADS"] == "3"
    assert any("OMP_NUM_THREADS=3 is yours and kept" in line for line in report["warnings"])


def test_a_quota_is_reported(tmp_path: Path) -> None:
    spec = MachineSpec(cores_per_socket=8, cgroup=Cgroup(quota=3.5))
    report = describe_environment(write_machine(spec, tmp_path), {})
    assert report["variables"]["OMP_NUM_THREADS"] == "3"
    assert any("3.5 CPUs" in line for line in report["warnings"])


def test_a_node_without_memory_is_not_forbidden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Catches "memory not allowed here" for a socket without a memory module, which no setting of a user mends."""
    write_machine(MachineSpec(sockets=2, cores_per_socket=4), tmp_path)
    write(tmp_path, "sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:  0 kB\nNode 1 MemFree:  0 kB")
    write(tmp_path, "proc/self/status", "Mems_allowed_list:\t0")
    assert main(["--root", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    (line,) = [line for line in out.splitlines() if line.startswith("node 1 ")]
    assert "no memory, CPUs 4-7" in line
    assert "not allowed" not in line
    assert "note: node 1: CPUs without memory of their own" in out


@pytest.mark.parametrize(("setting", "said"), [("always madvise [never]", True), ("always [madvise] never", False)])
def test_huge_pages_that_are_off_are_said(setting: str, said: bool, xeon: Path) -> None:
    """Each pass reads gigabytes: with 4 KiB pages much of the time goes into finding them."""
    write(xeon, "sys/kernel/mm/transparent_hugepage/enabled", setting)
    assert any("huge pages are off" in line for line in describe_environment(xeon, {})["warnings"]) == said


def test_numactl_is_listed(
    xeon: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Catches a report without the tool that binds memory, which each start warns about where it is missing."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--root", str(xeon)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("numactl")]
    assert "not found, memory is not bound to nodes: apt-get install numactl" in line
    (tmp_path / "numactl").touch(0o755)
    assert main(["--root", str(xeon)]) == 0
    assert str(tmp_path / "numactl") in capsys.readouterr().out


def test_text_is_aligned_and_complete(xeon: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(xeon, "proc/meminfo", f"MemTotal: {128 * GIB // 1024} kB\nMemAvailable: {100 * GIB // 1024} kB")
    assert main(["--root", str(xeon)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("note:")]
    starts = {len(line) - len(line.partition("  ")[2].lstrip()) for line in lines}
    assert len(starts) == 1
    text = "\n".join(lines)
    assert "8 physical, 16 CPUs online, SMT on" in text
    assert "CPUs 0-3,8-11 (4 physical cores)" in text
    assert "128.0 GiB, 100.0 GiB available" in text
    assert "64.0 GiB, 48.0 GiB free, no CPUs (HBM or CXL memory)" in text


@pytest.mark.parametrize("root", ["/nonexistent/folder", "/proc/self/status"])
def test_a_wrong_root(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--root", root]) == 2
    assert f"--root {root} is not a folder" in capsys.readouterr().err


def test_a_root_without_a_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", "--root", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "describes no machine" in captured.err


def test_this_machine() -> None:
    """The processor as py-cpuinfo tells it is this machine's alone, not one of another root."""
    result = subprocess.run([sys.executable, "-c", COMMAND, "--json"], capture_output=True, text=True)
    assert set(json.loads(result.stdout)) == {*KEYS, "processor"}
    assert result.stderr == ""


def test_in_time() -> None:
    """Catches a slow way to the processor's flags (py-cpuinfo's usual one takes over a second)."""
    command = [sys.executable, "-c", COMMAND]
    assert subprocess.run(command, capture_output=True, text=True).stdout.startswith("versions")
    assert times_of_python(command) < 8


def test_a_closed_pipe() -> None:
    """Catches a traceback from `ipex-assist env | head -0`."""
    process = subprocess.Popen([sys.executable, "-c", COMMAND], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait(10)
