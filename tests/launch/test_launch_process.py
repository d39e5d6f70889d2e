"""ipex-launch with real processes: pinning, exit codes, signals, missing tools, and the check after the start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from launching import times_of_python

from ipex_assist.env.cpulist import format_cpulist
from ipex_assist.env.libraries import find_libraries
from ipex_assist.env.topology import read_topology
from ipex_assist.launch.abilities import mempolicy_allowed
from ipex_assist.launch.check import ProcessState, compare, keep_to_spare_cpu
from ipex_assist.launch.placement import PlacementRequest
from ipex_assist.launch.plan import PLAN_VARIABLE, LaunchPlan, inherited_plan
from ipex_assist.launch.process import prepare

pytestmark = pytest.mark.one_stack

LAUNCH = [sys.executable, "-m", "ipex_assist.launch"]
CPUS = sorted(os.sched_getaffinity(0))
OURS = ("OMP_", "KMP_", "GOMP_", "LD_PRELOAD", "MALLOC_CONF", PLAN_VARIABLE)
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}

needs_numactl = pytest.mark.skipif(
    not (shutil.which("numactl") and mempolicy_allowed()), reason="numactl is missing or the kernel forbids it here"
)
needs_two_cpus = pytest.mark.skipif(len(CPUS) < 2, reason="only one CPU may be used here")


def launch(
    *arguments: str, environ: Mapping[str, str] = CLEAN, prefix: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*prefix, *LAUNCH, *arguments], capture_output=True, text=True, env=dict(environ), timeout=60)


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


@pytest.fixture
def bare_path(tmp_path: Path) -> dict[str, str]:
    """An environment whose PATH has neither numactl nor taskset."""
    return {**CLEAN, "PATH": str(tmp_path)}


@needs_numactl
def test_the_child_runs_where_planned() -> None:
    """Catches pinning that is printed and not done."""
    cpu = CPUS[-1]
    code = "import os, json; print(json.dumps([sorted(os.sched_getaffinity(0)), dict(os.environ)]))"
    result = launch("--cpus", str(cpu), *python(code))
    assert result.stderr == ""
    affinity, environ = json.loads(result.stdout)
    assert affinity == [cpu]
    assert environ["OMP_NUM_THREADS"] == "1"
    assert json.loads(environ[PLAN_VARIABLE])["cpus"] == str(cpu)


@needs_numactl
def test_the_child_has_the_memory_policy_of_the_plan() -> None:
    """Catches a memory policy lost between numactl and the program."""
    plan = json.loads(launch("--dry-run", "--json", "--", "true").stdout)
    result = launch("--", "numactl", "--show")
    if plan["memory"] == "bind":
        assert "policy: bind" in result.stdout
        assert f"membind: {plan['memory_nodes'][0]}" in result.stdout


@pytest.mark.skipif(not find_libraries(CLEAN).libiomp5, reason="libiomp5 is not installed here")
def test_libraries_are_really_preloaded() -> None:
    """Catches paths that the dynamic linker refuses."""
    result = launch(*python("print(open('/proc/self/maps').read())"))
    plan = json.loads(launch("--dry-run", "--json", "--", "true").stdout)
    for path in plan["set"]["LD_PRELOAD"].split(":"):
        assert os.path.realpath(path) in result.stdout
    assert "ld.so" not in result.stderr


def test_a_dry_run_runs_nothing(tmp_path: Path) -> None:
    result = launch("--dry-run", "--", "touch", str(tmp_path / "made"))
    assert result.returncode == 0
    assert result.stdout.splitlines()[-1].endswith(f"touch {tmp_path}/made")
    assert not (tmp_path / "made").exists()


def test_a_dry_run_of_an_argument_that_is_no_text() -> None:
    """Catches a traceback in UTF-8 locales for a file name in another encoding."""
    environ = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    result = subprocess.run([*LAUNCH, "--dry-run", "--", "cat", b"a\xffb"], capture_output=True, env=environ)
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.endswith(b"cat 'a\xffb'\n")


@needs_numactl
def test_the_dry_run_is_what_is_run() -> None:
    """Catches a dry run that is computed apart from the real one."""
    code = "import os, json; print(json.dumps([open('/proc/self/cmdline').read(), dict(os.environ)]))"
    plan = json.loads(launch("--dry-run", "--json", *python(code)).stdout)
    cmdline, environ = json.loads(launch(*python(code)).stdout)
    assert plan["argv"][-3:] == cmdline.rstrip("\0").split("\0")
    # What only the running process can know is its own number.
    shown, real = json.loads(plan["set"].pop(PLAN_VARIABLE)), json.loads(environ[PLAN_VARIABLE])
    assert shown.pop("pid") is None
    assert isinstance(real.pop("pid"), int)
    assert shown == real
    assert {name: environ.get(name) for name in plan["set"]} == plan["set"]


@needs_two_cpus
def test_taskset_around_it_is_respected() -> None:
    """Catches planning for the machine inside somebody's mask: numactl would refuse to start."""
    prefix = ["taskset", "-c", str(CPUS[1])]
    result = launch(*python("import os; print(sorted(os.sched_getaffinity(0)))"), prefix=prefix)
    assert result.stdout.strip() == f"[{CPUS[1]}]", result.stderr
    refused = launch("--cpus", str(CPUS[0]), "--", "true", prefix=prefix)
    assert refused.returncode == 2
    assert f"may not use CPU {CPUS[0]}" in refused.stderr


@needs_two_cpus
def test_a_launch_inside_a_launch_narrows() -> None:
    """Catches the inner launch keeping the outer's thread count as if the user had set it."""
    code = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"
    inner = [*LAUNCH, "--threads", "1", *python(code)]
    assert launch("--cpus", f"{CPUS[0]},{CPUS[1]}", "--", *inner).stdout.strip() == f"[{CPUS[0]}] 1"
    inner = [*LAUNCH, *python(code)]
    assert launch("--threads", "1", "--", *inner).stdout.strip() == f"[{CPUS[0]}] 1"


@needs_two_cpus
@pytest.mark.parametrize("child", [False, True])
def test_a_mask_set_inside_the_command_is_not_widened(child: bool) -> None:
    """Catches `restore_affinity` acting on the plan of an ancestor, or on one that taskset has overruled since."""
    code = (
        "import os; from ipex_assist.launch import inherited_plan, restore_affinity\n"
        "plan = inherited_plan(os.environ); restore_affinity(plan)\n"
        "print(plan, sorted(os.sched_getaffinity(0)))"
    )
    inner = ["taskset", "-c", str(CPUS[1]), sys.executable, "-c", code]
    command = ["sh", "-c", '"$@"; exit $?', "sh", *inner] if child else inner
    cpus = f"{CPUS[0]},{CPUS[1]}"
    assert launch("--cpus", cpus, "--", *command).stdout.strip() == f"None [{CPUS[1]}]"


def test_a_process_knows_its_own_plan_through_exec() -> None:
    """Catches a process number that changes between the launcher and the program."""
    code = "import os; from ipex_assist.launch import inherited_plan; print(inherited_plan(os.environ).threads)"
    script = ["sh", "-c", 'exec "$@"', "sh", sys.executable, "-c", code]
    assert launch("--threads", "1", "--", *script).stdout.strip() == "1"


@needs_numactl
def test_interleaving_set_outside_is_kept() -> None:
    """Catches a memory policy of the user's that the launcher replaces."""
    result = launch("--dry-run", "--", "true", prefix=["numactl", "-i", "0"])
    assert result.stdout.splitlines()[-1].endswith("-i 0 true")
    assert "memory stays interleaved" in result.stdout


def test_without_tools_the_cpus_are_set_all_the_same(bare_path: dict[str, str]) -> None:
    """Catches a failure to start, or silence, where numactl is not installed."""
    code = "import os; print(sorted(os.sched_getaffinity(0)))"
    result = launch("--cpus", str(CPUS[-1]), *python(code), environ=bare_path)
    assert result.stdout.strip() == f"[{CPUS[-1]}]"
    assert result.stderr.count("\n") == 1
    assert "numactl is not installed" in result.stderr
    assert "apt-get install numactl" in result.stderr


def test_numactls_absence_is_said_once_a_day(bare_path: dict[str, str], tmp_path: Path) -> None:
    """Catches a line at each start that nobody without root can do anything about."""
    environ = {**bare_path, "XDG_CACHE_HOME": str(tmp_path), "IPEX_ASSIST_HINTS": ""}
    starts = [launch("--cpus", str(CPUS[-1]), *python("pass"), environ=environ) for _ in range(2)]
    assert ["numactl is not installed" in start.stderr for start in starts] == [True, False]


def test_without_numactl_taskset_is_used(bare_path: dict[str, str]) -> None:
    taskset = shutil.which("taskset")
    if taskset is None:
        pytest.skip("taskset is not installed here")
    os.symlink(taskset, Path(bare_path["PATH"]) / "taskset")
    result = launch(
        "--cpus", str(CPUS[-1]), *python("import os; print(sorted(os.sched_getaffinity(0)))"), environ=bare_path
    )
    assert result.stdout.strip() == f"[{CPUS[-1]}]"
    assert "set with taskset" in result.stderr


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_is_the_programs(code: int) -> None:
    assert launch("--", "sh", "-c", f"exit {code}").returncode == code


def test_programs_that_cannot_run(tmp_path: Path) -> None:
    """Catches numactl's exit code 1 for a program that does not exist."""
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    for program, code, says in (
        ("no-such-program", 127, "no program no-such-program on PATH"),
        (str(tmp_path / "missing"), 127, "no program"),
        (str(script), 126, "chmod +x"),
        (str(tmp_path), 126, "is a folder"),
    ):
        result = launch("--", program)
        assert result.returncode == code, program
        assert says in result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no command given"),
        (["--"], "no command given"),
        (["--threads", "0", "--", "true"], "--threads 0"),
        (["--threads", "99999", "--", "true"], "more than the"),
        (["--threads", "two", "--", "true"], "invalid int value"),
        (["--cpus", "99999999", "--", "true"], "highest id accepted"),
        (["--cpus", "60000", "--", "true"], "no CPU 60000 is online"),
        (["--numa-node", "99", "--", "true"], "does not exist"),
        (["--socket", "99", "--", "true"], "does not exist"),
        (["--no-such-flag", "--", "true"], "no-such-flag"),
    ],
)
def test_wrong_options_exit_with_2(arguments: list[str], says: str) -> None:
    result = launch(*arguments)
    assert result.returncode == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_arguments_reach_the_program_untouched() -> None:
    """Catches a shell in between, and options of the program taken for ours."""
    words = ["--threads", "x y", "$HOME", "--", "", "*", "it's"]
    result = launch("--", sys.executable, "-c", "import sys, json; print(json.dumps(sys.argv[1:]))", *words)
    assert json.loads(result.stdout) == words
    result = launch(sys.executable, "-c", "import sys, json; print(json.dumps(sys.argv[1:]))", *words)
    assert json.loads(result.stdout) == words


def test_a_closed_pipe_ends_the_program() -> None:
    """Catches the launcher's ignored SIGPIPE being inherited: `yes | head` would then complain about a write error."""
    command = f"{' '.join(LAUNCH)} -- yes | head -n 1"
    script = f"{command}; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=CLEAN)
    assert result.stdout.split() == ["y", str(128 + signal.SIGPIPE)]
    assert result.stderr == ""


def test_a_dry_run_into_a_closed_pipe() -> None:
    command = f"{' '.join(LAUNCH)} --dry-run -- true | true"
    result = subprocess.run(["bash", "-c", f"sleep 0.3 | {command}"], capture_output=True, text=True, env=CLEAN)
    assert result.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_the_programs(number: signal.Signals) -> None:
    """Catches a launcher that stays in between and dies first, or leaves the program running."""
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *a: sys.exit(41))\n"
        "signal.signal(signal.SIGTERM, lambda *a: sys.exit(42))\n"
        "print('ready', flush=True)\n"
        "time.sleep(30)\n"
    )
    process = subprocess.Popen([*LAUNCH, *python(code)], stdout=subprocess.PIPE, env=CLEAN)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    assert process.wait(10) == {signal.SIGINT: 41, signal.SIGTERM: 42}[number]
    process.stdout.close()


def test_it_starts_quickly_and_without_torch() -> None:
    """Catches an import of torch, numpy or transformers on the way (half a second and more)."""
    code = (
        "import sys; from ipex_assist.launch.cli import main; main(['--dry-run', '--', 'true'])\n"
        "import ipex_assist.env.report\n"
        "sys.exit(bool({'torch', 'numpy', 'transformers', 'psutil', 'cpuinfo'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, env=CLEAN).returncode == 0
    assert times_of_python([*LAUNCH, "--dry-run", "--", "true"]) < 6


@pytest.fixture
def cpuset() -> Iterator[Path]:
    """A cgroup v1 cpuset that holds the last CPU only."""
    top = Path("/sys/fs/cgroup/cpuset")
    group = top / f"ipex-assist-test-{os.getpid()}"
    if len(CPUS) < 2:
        pytest.skip("only one CPU may be used here")
    try:
        group.mkdir()
        (group / "cpuset.cpus").write_text(str(CPUS[-1]))
        (group / "cpuset.mems").write_text((top / "cpuset.mems").read_text())
    except OSError as error:
        pytest.skip(f"no cpuset can be made here: {error}")
    yield group
    group.rmdir()


def test_a_real_cpuset_without_cpu_0(cpuset: Path) -> None:
    """Catches range(os.cpu_count()), which still counts all CPUs inside a cpuset."""
    enter = ["sh", "-c", f'echo $$ > {cpuset}/cgroup.procs; exec "$@"', "sh"]
    result = launch(*python("import os; print(sorted(os.sched_getaffinity(0)))"), prefix=enter)
    assert result.stdout.strip() == f"[{CPUS[-1]}]", result.stderr
    assert result.stderr == ""
    refused = launch("--cpus", str(CPUS[0]), "--", "true", prefix=enter)
    assert refused.returncode == 2


PLAN = LaunchPlan((0, 1, 2, 3), 4, "bind", (0,), ("/x/libiomp5.so",), {})
EVERYWHERE = frozenset(PLAN.cpus)
MAPPED = frozenset({"/x/libiomp5.so"})


def state(*masks: frozenset[int], mapped: frozenset[str] = MAPPED) -> ProcessState:
    return ProcessState(masks[0], masks, mapped)


def one(cpu: int) -> frozenset[int]:
    return frozenset({cpu})


def test_what_was_planned_gives_no_warning() -> None:
    """Catches false alarms: workers bound to one core each are what KMP_AFFINITY is for."""
    assert compare(PLAN, state(EVERYWHERE, one(1), one(2), one(3)), 4) == []
    assert compare(PLAN, state(EVERYWHERE), None) == []


@pytest.mark.parametrize(
    ("found", "threads", "says"),
    [
        (state(one(0)), 4, ["no thread may run on 3 of the 4 planned CPUs (1-3)", "unset KMP_AFFINITY"]),
        (state(one(0), one(1), one(2), one(3)), 4, ["only on CPU 0", "restore_affinity"]),
        (state(EVERYWHERE | {9}), 4, ["CPUs 9", "outside the planned 0-3"]),
        (state(EVERYWHERE, *[one(0)] * 5, one(1)), 4, ["5 threads are held on CPU 0", "KMP_AFFINITY=none"]),
        (state(EVERYWHERE, mapped=frozenset()), 4, ["/x/libiomp5.so", "LD_PRELOAD"]),
        (state(EVERYWHERE), 2, ["2 compute threads instead of the 4 planned", "--threads 2"]),
    ],
)
def test_each_deviation_is_named_with_its_remedy(found: ProcessState, threads: int, says: list[str]) -> None:
    (line,) = compare(PLAN, found, threads)
    assert all(part in line for part in says), line


def test_a_spare_cpu_is_part_of_the_plan() -> None:
    """Catches a warning about threads that were put beside those that compute, and a plan of a narrower process."""
    spare = replace(PLAN, spare=9)
    assert compare(spare, state(one(9), *map(one, PLAN.cpus)), 4) == []
    assert compare(spare, state(EVERYWHERE | {9}), 4) == []
    assert "CPUs 8" in compare(spare, state(EVERYWHERE | {8, 9}), 4)[0]
    written = {PLAN_VARIABLE: spare.to_json()}
    assert inherited_plan(written, mask={0, 1, 2, 3, 9}) == spare
    assert inherited_plan(written, mask={0, 1, 2, 3}) is None


@needs_two_cpus
def test_helpers_stay_on_the_spare_cpu() -> None:
    """With the threads that they start; and where there is none they stay as they are."""
    seen = []

    def helper(plan: LaunchPlan) -> None:
        kept = keep_to_spare_cpu(plan)
        other = threading.Thread(target=lambda: seen.append((kept, os.sched_getaffinity(0))))
        other.start()
        other.join()

    for spare in (CPUS[1], None):
        thread = threading.Thread(target=helper, args=(replace(PLAN, cpus=(CPUS[0],), spare=spare),))
        thread.start()
        thread.join()
    assert seen == [(True, {CPUS[1]}), (False, os.sched_getaffinity(0))]


def test_a_binding_of_the_users_own_is_named() -> None:
    """Catches looking for a taskset that nobody wrote, where KMP_AFFINITY was set and kept."""
    own = {"KMP_AFFINITY": "explicit,proclist=[8-11]"}
    (outside, idle) = compare(PLAN, state(one(8), one(9)), None, own)
    assert "your KMP_AFFINITY=explicit,proclist=[8-11] was kept" in outside
    assert "your KMP_AFFINITY=explicit,proclist=[8-11] was kept" in idle
    assert "taskset" not in outside
    planned = replace(PLAN, variables=own)
    assert "taskset" in compare(planned, state(one(8), one(9)), None, own)[0]


@needs_two_cpus
@needs_numactl
@pytest.mark.skipif(not find_libraries(CLEAN).libiomp5, reason="libiomp5 is not installed here")
def test_libiomp5_collapses_the_initial_thread_and_we_undo_it() -> None:
    """Catches the case that matters: after the first parallel region new threads would share one core."""
    code = """
import ctypes, json, os, threading
from ipex_assist.launch import check_start, inherited_plan, restore_affinity

plan = inherited_plan(os.environ)
openmp = ctypes.CDLL("libiomp5.so")
region = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
masks = []
def note():
    masks.append(len(os.sched_getaffinity(0)))
def new_thread():
    thread = threading.Thread(target=note); thread.start(); thread.join()

openmp.GOMP_parallel(region, None, 0, 0)
new_thread()
before = check_start(plan, openmp.omp_get_max_threads())
restore_affinity(plan)
new_thread()
openmp.GOMP_parallel(region, None, 0, 0)
new_thread()
print(json.dumps([masks, before, check_start(plan, openmp.omp_get_max_threads())]))
"""
    cpus = format_cpulist(CPUS[:2])
    result = launch("--threads", "2", "--cpus", cpus, *python(code))
    masks, before, after = json.loads(result.stdout)
    assert masks == [1, 2, 2]
    assert any("restore_affinity" in line for line in before)
    assert after == []


def test_the_live_plan_fits_this_machine() -> None:
    """Catches a default plan that numactl refuses here."""
    machine = read_topology()
    plan = json.loads(launch("--dry-run", "--json", "--", "true").stdout)
    assert plan["threads"] <= len(machine.allowed_cores())
    assert launch("--", "true").returncode == 0


def test_fewer_threads_from_a_shell_are_said() -> None:
    """OMP_NUM_THREADS=1, as shells and Slurm set it, left one core working without a word."""
    here = read_topology()
    suitable = prepare(PlacementRequest(), ["true"], CLEAN, machine=here).placement.threads

    def warned(**environ: str) -> list[str]:
        lines = prepare(PlacementRequest(), ["true"], {**CLEAN, **environ}, machine=here).warnings
        return [line for line in lines if " is kept" in line]

    assert warned() == warned(OMP_NUM_THREADS=str(suitable)) == []
    if suitable > 1:
        [line] = warned(OMP_NUM_THREADS="1")
        assert line.startswith(f"OMP_NUM_THREADS=1 is kept, and so 1 of {suitable} cores work: unset it")
    for name, value in (("KMP_HW_SUBSET", "1c"), ("GOMP_CPU_AFFINITY", "0-1")):
        assert warned(**{name: value}) == [f"{name}={value} is kept, and may leave cores idle"]
