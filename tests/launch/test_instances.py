"""ipex-launch with several real processes: exit codes, signals, kill -9, time limits, and what is shown."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import CLEAN, CPUS, LAUNCH, TWO, alive, launch, pids_in, python, shell, times_of_python, wait_for

from ipex_assist.launch.command import format_command
from ipex_assist.launch.instances import InstanceRequest
from ipex_assist.launch.plan import PLAN_VARIABLE
from ipex_assist.launch.process import Surroundings, prepare_instances
from ipex_assist.launch.table import format_instances

pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.daemons,
    pytest.mark.skipif(len(CPUS) < 2, reason="two instances need two CPUs"),
]


def test_each_instance_has_its_cores_its_number_and_a_plan_of_its_own() -> None:
    """Catches instances that share cores, and a plan that the instance takes for somebody else's."""
    code = (
        "import json, os\n"
        "from ipex_assist.launch import inherited_plan\n"
        "plan = inherited_plan(os.environ)\n"
        "names = ('IPEX_INSTANCE', 'IPEX_INSTANCES', 'OMP_NUM_THREADS')\n"
        "print(json.dumps([*map(os.environ.get, names), sorted(os.sched_getaffinity(0)), plan and list(plan.cpus)]))"
    )
    result = launch("--cpus", f"{CPUS[0]},{CPUS[1]}", *TWO, *python(code))
    assert result.returncode == 0, result.stderr
    assert sorted(map(json.loads, result.stdout.splitlines())) == [
        ["0", "2", "1", [CPUS[0]], [CPUS[0]]],
        ["1", "2", "1", [CPUS[1]], [CPUS[1]]],
    ]


def test_a_child_of_an_instance_does_not_take_its_plan() -> None:
    code = "from ipex_assist.launch import inherited_plan; import os; print(inherited_plan(os.environ))"
    result = launch(*TWO, *shell(f'"{sys.executable}" -c "{code}"; true'))
    assert result.stdout.split() == ["None", "None"], result.stderr


def test_one_of_several_runs_as_if_alone() -> None:
    """Catches --instance placing its process on the first cores, and a launcher that stays beside it."""
    code = "import os; print(os.environ['IPEX_INSTANCE'], os.environ['IPEX_INSTANCES'], os.sched_getaffinity(0))"
    process = subprocess.Popen(
        [*LAUNCH, *TWO, "--instance", "1", *python(f"{code}; print(os.getpid())")],
        stdout=subprocess.PIPE,
        env=CLEAN,
        text=True,
    )
    out, _ = process.communicate()
    assert out.splitlines() == [f"1 2 {{{CPUS[1]}}}", str(process.pid)]
    refused = launch(*TWO, "--instance", "2", "--", "true")
    assert refused.returncode == 2
    assert "there are 2 instances, from 0 to 1" in refused.stderr
    assert sorted(launch(*TWO, "--instance", "0-1", "--label", "--", "echo", "x").stdout.split("\n")) == [
        "",
        "0: x",
        "1: x",
    ]


@pytest.mark.parametrize(("how", "code"), [("exit 3", 3), ("kill -9 $$", 137), ("kill -15 $$", 143)])
def test_the_first_failure_ends_all_at_once(how: str, code: int) -> None:
    """Catches waiting for the healthy instance, and exit codes hidden or made up."""
    start = time.monotonic()
    result = launch(*TWO, *shell(f"[ $IPEX_INSTANCE = 1 ] && {how}; sleep 30"))
    assert time.monotonic() - start < 25  # of 30 and more
    assert result.returncode == code
    said = f"instance 1 (CPUs {CPUS[1]}) ended with exit code {code}"
    assert said in result.stderr
    assert result.stderr.rstrip().endswith("; ending the others")
    assert ("it was killed by SIGKILL" in result.stderr) == (code == 137)


def test_a_failure_names_its_log(tmp_path: Path) -> None:
    """Catches "ended with exit code 2" with the reason in a file that nobody names."""
    result = launch(*TWO, "--log-dir", str(tmp_path / "logs"), *shell("[ $IPEX_INSTANCE = 1 ] && exit 3; sleep 30"))
    assert f"ended with exit code 3, see {tmp_path}/logs/instance-1.err; ending the others" in result.stderr


def test_the_first_failure_in_time_gives_the_exit_code() -> None:
    """Catches the lowest number's code instead: instance 0 answers the SIGTERM with 5."""
    code = "trap 'exit 5' TERM; [ $IPEX_INSTANCE = 1 ] && { sleep 0.5; exit 3; }; sleep 30 & wait"
    assert launch(*TWO, *shell(code)).returncode == 3


def test_on_failure_continue_lets_the_others_finish() -> None:
    result = launch(*TWO, "--on-failure", "continue", *shell("[ $IPEX_INSTANCE = 0 ] && exit 4; sleep 0.7; echo done"))
    assert (result.returncode, result.stdout) == (4, "done\n")
    assert "exit code 4; the others go on" in result.stderr


def test_a_failure_that_ignores_sigterm_is_killed_after_the_grace() -> None:
    start = time.monotonic()
    code = "import signal, sys, time, os\nif os.environ['IPEX_INSTANCE'] == '1': time.sleep(0.5); sys.exit(3)\n"
    code += "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(30)"
    assert launch(*TWO, "--grace", "0.5", *python(code)).returncode == 3
    assert time.monotonic() - start < 25  # of 30 and more


def test_a_hung_instance_is_ended() -> None:
    """Catches --timeout that ends the shell and leaves the program that hangs."""
    start = time.monotonic()
    result = launch(*TWO, "--timeout", "0.7", "--grace", "1", *shell("trap '' TERM; sleep 30; sleep 30"))
    assert result.returncode == 124
    assert time.monotonic() - start < 25  # of 30 and more
    assert "has not ended after 0.7 s (--timeout)" in result.stderr
    assert launch("--timeout", "0.5", "--", "sleep", "30").returncode == 124
    assert launch("--timeout", "30", *shell("exit 6")).returncode == 6


TREE = 'echo $$ >"$D/$IPEX_INSTANCE.a"; sh -c \'echo $$ >"$D/$IPEX_INSTANCE.b"; sleep 60; :\'; :'
# The grandchild leaves the process group and the session, as daemons do.
DAEMON = 'echo $$ >"$D/$IPEX_INSTANCE.a"; setsid sh -c \'echo $$ >"$D/$IPEX_INSTANCE.b"; sleep 60; :\' & sleep 60; :'


def start_tree(code: str, folder: Path, *flags: str) -> tuple[subprocess.Popen[bytes], list[int]]:
    """A launcher of two instances with a grandchild each, and the pids of those four."""
    process = subprocess.Popen([*LAUNCH, *TWO, *flags, *shell(code)], env={**CLEAN, "D": str(folder)})
    assert wait_for(lambda: len(list(folder.iterdir())) == 4 and len(pids_in(folder)) == 4)
    pids = pids_in(folder)
    assert all(map(alive, pids))
    return process, pids


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_reach_children_and_theirs(number: signal.Signals, code: int, tmp_path: Path) -> None:
    """Catches a signal that stops at the launcher or at the shell in between."""
    process, pids = start_tree(TREE, tmp_path)
    process.send_signal(number)
    assert process.wait(15) == code
    assert not [pid for pid in pids if alive(pid)]


@pytest.mark.parametrize("code", [TREE, DAEMON], ids=["in the group", "a daemon"])
@pytest.mark.parametrize("victim", ["launcher", "worker"])
def test_kill_9_leaves_nobody_behind(victim: str, code: str, tmp_path: Path) -> None:
    """Catches orphans, which keep cores and memory busy until somebody finds them."""
    process, pids = start_tree(code, tmp_path)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 1
    os.kill(process.pid if victim == "launcher" else int(children[0]), signal.SIGKILL)
    assert process.wait(15) in (-signal.SIGKILL, 137)
    assert wait_for(lambda: not any(map(alive, [*pids, int(children[0])])))


def test_kill_9_of_both_at_once_still_ends_the_instances(tmp_path: Path) -> None:
    """`pkill -9 -f ipex-launch`: the kernel itself must end the instances."""
    process, _ = start_tree(TREE, tmp_path)
    (worker,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(worker), signal.SIGSTOP)  # so that it cannot act in between
    os.kill(process.pid, signal.SIGKILL)
    os.kill(int(worker), signal.SIGKILL)
    process.wait(15)
    instances = [int((tmp_path / f"{index}.a").read_text()) for index in (0, 1)]
    assert wait_for(lambda: not any(map(alive, instances)))
    for file in tmp_path.glob("*.b"):  # their own children are out of anybody's reach then, if they are there yet
        with contextlib.suppress(ProcessLookupError):
            os.killpg(os.getpgid(int(file.read_text())), signal.SIGKILL)


def test_what_an_instance_leaves_running_is_ended(tmp_path: Path) -> None:
    """Catches a background process that holds the launcher, or survives it."""
    start = time.monotonic()
    result = launch(*TWO, *shell(f"sleep 60 & echo $! >{tmp_path}/$IPEX_INSTANCE; exit 0"))
    assert result.returncode == 0
    assert time.monotonic() - start < 25  # of 30 and more
    assert not [pid for pid in pids_in(tmp_path) if alive(pid)]


def test_programs_that_cannot_run() -> None:
    """Catches two failures for one missing program, and a traceback."""
    result = launch(*TWO, "--", "no-such-program")
    assert (result.returncode, result.stderr) == (127, "ipex-launch: there is no program no-such-program on PATH\n")


def test_more_instances_than_cores_are_refused_with_numbers() -> None:
    result = launch("--instances", "9999", "--", "true")
    assert result.returncode == 2
    assert "--instances 9999 is more than the" in result.stderr


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--latency", "--throughput"], "--latency and --throughput exclude each other"),
        (["--latency", "--instances", "2"], "--latency and --instances exclude"),
        (["--instances", "per-rack"], "per-node, per-socket, per-l3"),
        (["--instances", "2", "--threads", "1"], "--cores-per-instance 1"),
        (["--memory", "near"], "bind, preferred, interleave, local"),
        (["--env", "NAME"], "NAME=VALUE"),
        (["--env", "=x"], "NAME=VALUE"),
        (["--timeout", "0"], "invalid number of seconds"),
        (["--timeout", "nan"], "invalid number of seconds"),
        (["--socket", "both"], "invalid socket value"),
    ],
)
def test_wrong_flags_exit_with_2(flags: list[str], says: str) -> None:
    result = launch(*flags, "--", "true")
    assert result.returncode == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr


def test_env_sets_variables_and_they_are_kept() -> None:
    """Catches --env losing to what the launcher sets."""
    result = launch(*TWO, "--env", "OMP_NUM_THREADS=7", "--env", "A=b=c", *shell("echo $A $OMP_NUM_THREADS"))
    assert result.stdout == "b=c 7\n" * 2
    assert "OMP_NUM_THREADS=7 is kept in every instance, though 1 threads would suit" in result.stderr


def test_openmp_and_allocator_as_asked() -> None:
    """Catches variables of a runtime that is not loaded, and a library that was declined."""

    def variables(*flags: str) -> dict[str, str]:
        return json.loads(launch(*flags, "--dry-run", "--json", "--", "true").stdout)["set"]  # type: ignore[no-any-return]

    gnu = variables("--openmp", "gnu", "--allocator", "system")
    assert "LD_PRELOAD" not in gnu
    assert gnu["OMP_PROC_BIND"] == "CLOSE"
    assert set(variables("--openmp", "none", "--allocator", "system")) == {
        "IPEX_INSTANCE",
        "IPEX_INSTANCES",
        PLAN_VARIABLE,
    }
    for flags, library in ((["--allocator", "jemalloc"], "libjemalloc"), (["--openmp", "intel"], "libiomp5")):
        result = launch(*flags, "--dry-run", "--", "true")
        assert (result.returncode == 0 and library in result.stdout) or (
            result.returncode == 2 and "was not found" in result.stderr
        )


def test_the_table_shows_every_instance_and_variable() -> None:
    """Catches a dry run that hides what differs between instances."""
    commands = prepare_instances(InstanceRequest(instances=2), ["python", "a b.py"], CLEAN)
    text = format_instances(commands)
    for command in commands:
        assert any(line.startswith(f"{command.placement.index} ") and "'a b.py'" in line for line in text.splitlines())
        for name, value in command.set.items():
            assert name == PLAN_VARIABLE or f"{name}=" in text, (name, value)
    shown = launch(*TWO, "--dry-run", "--", "python", "a b.py").stdout
    assert shown == text + "\n"
    listed = json.loads(launch(*TWO, "--dry-run", "--json", "--", "true").stdout)["instances"]
    assert [(each["instance"], each["of"], each["cpus"]) for each in listed] == [
        (0, 2, str(CPUS[0])),
        (1, 2, str(CPUS[1])),
    ]


def test_one_instance_has_no_variables_of_its_own() -> None:
    """Catches a heading over an empty row: what all have and what one alone has are the same."""
    text = format_instances(prepare_instances(InstanceRequest(instances=1), ["true"], CLEAN))
    assert "variables of all" in text
    assert "variables of each" not in text


def test_socket_all_is_visible_in_the_dry_run() -> None:
    """Catches a plan for both sockets that nobody can see before it runs."""
    (command,) = prepare_instances(InstanceRequest(socket="all"), ["true"], CLEAN)
    result = launch("--socket", "all", "--dry-run", "--", "true")
    assert result.stdout.splitlines()[0] == format_command(command).splitlines()[0]
    if command.placement.memory == "local":
        assert "memory local to the thread that first writes it" in result.stdout
        assert " -l true" in result.stdout or "set with" in result.stdout


def test_a_start_takes_four_times_that_of_python() -> None:
    """Catches an import on the way to one process that costs more than the launch (ctypes, hypothesis, torch …)."""
    assert times_of_python([*LAUNCH, "--", "true"]) < 4


def test_surroundings_are_looked_at_with_the_variables_given() -> None:
    """Catches --env PATH=… being ignored when numactl is looked for."""
    assert Surroundings.here({"PATH": "/nonexistent"}).abilities.numactl is None


def test_instances_that_end_well_after_a_signal_end_well() -> None:
    """Catches exit code 143 for programs that a scheduler's SIGTERM let finish their work."""
    code = "trap 'echo saved; exit 0' TERM; echo ready; sleep 30 & wait"
    process = subprocess.Popen([*LAUNCH, *TWO, *shell(code)], stdout=subprocess.PIPE, text=True, env=CLEAN)
    assert process.stdout is not None
    assert [process.stdout.readline(), process.stdout.readline()] == ["ready\n", "ready\n"]
    process.terminate()
    assert process.communicate(timeout=15)[0] == "saved\nsaved\n"
    assert process.returncode == 0
