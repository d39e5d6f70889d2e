"""From placement to argv and environment, with every combination of tools, and the plan a process inherits."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from dataclasses import replace

import pytest

from ipex_assist.env.libraries import Libraries
from ipex_assist.env.machine import Core, Machine, Node
from ipex_assist.env.variables import choose_variables
from ipex_assist.launch.abilities import Abilities
from ipex_assist.launch.command import LaunchCommand, build_command, format_command
from ipex_assist.launch.instances import InstanceRequest
from ipex_assist.launch.placement import Placement, PlacementRequest
from ipex_assist.launch.plan import PLAN_VARIABLE, inherited_plan, read_plan, without_plan
from ipex_assist.launch.process import Surroundings, prepare, prepare_instances
from ipex_assist.launch.table import format_instances

pytestmark = pytest.mark.one_stack

ALL = Abilities("/usr/bin/numactl", "/usr/bin/taskset", mempolicy=True)
BIND = Placement((0, 1, 2, 5), 4, "bind", (0,))
LIBRARIES = Libraries(libiomp5="/venv/lib/libiomp5.so", tcmalloc="/usr/lib/libtcmalloc.so.4")
MACHINE = Machine(
    cores=tuple(Core((cpu, cpu + 8), socket=cpu // 4) for cpu in range(8)),
    nodes=(Node(0, (0, 1, 2, 3, 8, 9, 10, 11)), Node(1, (4, 5, 6, 7, 12, 13, 14, 15))),
    allowed=tuple(range(16)),
    allowed_nodes=(0, 1),
)


def build(
    placement: Placement = BIND, abilities: Abilities = ALL, environ: dict[str, str] | None = None
) -> LaunchCommand:
    environ = environ if environ is not None else {"HOME": "/root"}
    variables = choose_variables(placement.threads, LIBRARIES, environ)
    return build_command(placement, variables, ["prog", "a b", "--x"], environ, abilities)


def test_numactl_binds() -> None:
    command = build()
    assert command.argv == ("numactl", "-C", "0-2,5", "-m", "0", "prog", "a b", "--x")
    assert command.affinity is None
    assert command.warnings == ()


def test_numactl_interleaves() -> None:
    command = build(replace(BIND, memory="interleave", nodes=(0, 1)))
    assert command.argv[:5] == ("numactl", "-C", "0-2,5", "-i", "0-1")


def test_without_numa_a_missing_numactl_costs_nothing() -> None:
    """Catches advice to install what would bring nothing."""
    (line,) = build(replace(BIND, memory="none", nodes=()), replace(ALL, numactl=None)).warnings
    assert "nothing is lost" in line
    assert "apt-get" not in line


def test_numactl_without_numa() -> None:
    """Catches `-m` with nothing after it."""
    assert build(replace(BIND, memory="none", nodes=())).argv[:4] == ("numactl", "-C", "0-2,5", "prog")


@pytest.mark.parametrize(
    ("abilities", "prefix", "affinity", "says"),
    [
        (replace(ALL, numactl=None), ("taskset", "-c", "0-2,5"), None, "apt-get install numactl"),
        (replace(ALL, mempolicy=False), ("taskset", "-c", "0-2,5"), None, "--cap-add SYS_NICE"),
        (Abilities(None, None, True), (), (0, 1, 2, 5), "sched_setaffinity"),
        (Abilities("/n", None, False), (), (0, 1, 2, 5), "--cap-add SYS_NICE"),
    ],
)
def test_without_numactl_one_line_says_what_is_lost(
    abilities: Abilities, prefix: tuple[str, ...], affinity: tuple[int, ...] | None, says: str
) -> None:
    """Catches a start that fails, or goes on silently, where numactl is missing or seccomp forbids it."""
    command = build(abilities=abilities)
    assert command.argv == (*prefix, "prog", "a b", "--x")
    assert command.affinity == affinity
    assert len(command.warnings) == 1
    assert says in command.warnings[0]
    assert "not bound to node 0" in command.warnings[0]


@pytest.mark.parametrize(
    ("abilities", "prefix", "says"),
    [
        (replace(ALL, affinity=False), ("numactl", "-m", "0"), "not to CPUs 0-2,5"),
        (replace(ALL, affinity=False, mempolicy=False), (), "and memory where it is first touched"),
        (Abilities(None, None, False, affinity=False), (), "and memory where it is first touched"),
    ],
)
def test_cpus_that_may_not_be_set(abilities: Abilities, prefix: tuple[str, ...], says: str) -> None:
    """Seccomp may refuse sched_setaffinity too: a start without it is better than none."""
    command = build(abilities=abilities)
    assert command.argv == (*prefix, "prog", "a b", "--x")
    assert command.affinity is None
    assert len(command.warnings) == 1
    assert command.warnings[0].startswith("the kernel refuses to set CPUs here")
    assert says in command.warnings[0]


@pytest.mark.parametrize("abilities", [replace(ALL, numactl=None), replace(ALL, mempolicy=False)])
def test_memory_that_is_not_bound_is_not_said_to_be(abilities: Abilities) -> None:
    """Catches "memory bound to node 0" beside the warning that it is not."""
    command = build(abilities=abilities)
    assert command.describe() == "4 threads on CPUs 0-2,5, memory by first touch"
    assert format_command(command).startswith(f"# {command.describe()}\n")
    assert " first touch  -  " in format_instances([command, command]).splitlines()[2]
    assert build().describe() == "4 threads on CPUs 0-2,5, memory bound to node 0"


def test_the_environment_is_the_users_plus_ours() -> None:
    command = build(environ={"HOME": "/root", "KMP_BLOCKTIME": "200"})
    assert command.environ["HOME"] == "/root"
    assert command.environ["KMP_BLOCKTIME"] == "200"
    assert command.environ["OMP_NUM_THREADS"] == "4"
    assert command.kept == {"KMP_BLOCKTIME": "200"}
    assert command.notes == ("KMP_BLOCKTIME=200 is yours and kept (otherwise 1)",)
    assert {**{"HOME": "/root", "KMP_BLOCKTIME": "200"}, **command.set} == command.environ


def test_a_dry_run_can_be_pasted_into_a_shell() -> None:
    """Catches quoting that breaks prompts with blanks, quotes or line ends."""
    tricky = 'it\'s a "test" $HOME\n`x`'
    environ = {"PATH": os.environ["PATH"]}
    variables = choose_variables(1, Libraries(), environ)
    none = Placement((0,), 1)
    command = build_command(none, variables, ["printf", "%s|", tricky, "b"], environ, Abilities(None, None, False))
    shell = subprocess.run(["sh", "-c", format_command(command)], capture_output=True, text=True, check=True)
    assert shell.stdout == f"{tricky}|b|"
    assert shlex.split(format_command(build()).splitlines()[-1]) == list(build().argv)


def test_a_dry_run_shows_every_variable_and_what_was_kept() -> None:
    text = format_command(build(environ={"KMP_AFFINITY": "none"}))
    assert "# KMP_AFFINITY=none is yours and kept" in text
    assert all(f"\n{name}=" in text for name in ("OMP_NUM_THREADS", "LD_PRELOAD", "KMP_BLOCKTIME", PLAN_VARIABLE))


def test_json_is_plain_data() -> None:
    assert json.loads(json.dumps(build().as_dict()))["argv"][0] == "numactl"


def test_the_plan_survives_the_environment() -> None:
    plan = inherited_plan(build().environ, mask=(0, 1, 2, 5))
    assert plan is not None
    assert (plan.cpus, plan.threads, plan.memory, plan.nodes) == ((0, 1, 2, 5), 4, "bind", (0,))
    assert plan.preload == ("/usr/lib/libtcmalloc.so.4", "/venv/lib/libiomp5.so")


@pytest.mark.parametrize(
    ("pid", "mask", "ours"),
    [
        (7, {0, 1, 2, 5}, True),
        (8, {0, 1, 2, 5}, False),  # a child: its parent's plan
        (7, {1}, False),  # narrowed by a taskset inside the command
        (7, {6, 7}, False),
        (7, set(range(8)), True),  # the pinning failed, which the check is to report
    ],
)
def test_a_plan_holds_for_the_process_it_was_made_for(pid: int, mask: set[int], ours: bool) -> None:
    """Catches a stale plan that widens the mask somebody else has set since."""
    text = replace(read_plan(build().environ), pid=7).to_json()  # type: ignore[type-var]
    assert (inherited_plan({PLAN_VARIABLE: text}, pid=pid, mask=mask) is not None) == ours
    assert PLAN_VARIABLE not in without_plan({PLAN_VARIABLE: text})


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", '{"cpus": 3}', "null", '{"cpus":"0","threads":"x"}'])
def test_what_is_no_plan_is_ignored(text: str) -> None:
    """Catches a traceback from a variable somebody else set."""
    assert inherited_plan({PLAN_VARIABLE: text}) is None
    assert without_plan({PLAN_VARIABLE: text, "A": "b"}) == {"A": "b"}


def test_a_nested_launch_does_not_take_the_outer_plan_for_the_users_wish() -> None:
    """Catches an inner launch that keeps the outer OMP_NUM_THREADS, or preloads everything twice."""
    outer = build(environ={"HOME": "/root", "LD_PRELOAD": "/opt/trace.so"})
    assert without_plan(outer.environ) == {"HOME": "/root", "LD_PRELOAD": "/opt/trace.so"}
    changed = {**outer.environ, "OMP_NUM_THREADS": "2"}
    assert without_plan(changed)["OMP_NUM_THREADS"] == "2"


def plan_for(request: PlacementRequest, environ: dict[str, str], machine: Machine = MACHINE) -> LaunchCommand:
    return prepare(request, ["true"], environ, machine=machine, libraries=LIBRARIES, abilities=ALL)


def test_prepare_inside_a_narrower_mask_plans_anew() -> None:
    """Catches `ipex-launch -- taskset -c 0-1 ipex-launch …` keeping the outer 4 threads on 2 CPUs."""
    inner = plan_for(PlacementRequest(), build().environ, replace(MACHINE, allowed=(0, 1)))
    assert inner.environ["OMP_NUM_THREADS"] == "2"
    assert inner.environ["LD_PRELOAD"] == "/usr/lib/libtcmalloc.so.4:/venv/lib/libiomp5.so"
    assert (inner.kept, inner.warnings) == ({}, ())


def test_prepare_by_default() -> None:
    assert plan_for(PlacementRequest(), {}).argv == ("numactl", "-C", "0-3", "-m", "0", "true")


def test_the_users_omp_num_threads_decides_the_number_of_cpus() -> None:
    """Catches 2 threads wandering over 4 CPUs."""
    command = plan_for(PlacementRequest(), {"OMP_NUM_THREADS": "2"})
    assert command.argv[:3] == ("numactl", "-C", "0-1")
    assert command.placement.threads == 2
    assert command.kept == {"OMP_NUM_THREADS": "2"}


def test_an_impossible_omp_num_threads_is_kept_with_a_warning() -> None:
    """Catches refusing to start over a variable that a login script sets for another machine."""
    command = plan_for(PlacementRequest(), {"OMP_NUM_THREADS": "64"})
    assert command.argv[:3] == ("numactl", "-C", "0-3")
    assert any("OMP_NUM_THREADS=64" in line for line in command.warnings)


@pytest.mark.parametrize("value", ["abc", "-1", "0", " "])
def test_a_meaningless_omp_num_threads_does_not_stop_the_run(value: str) -> None:
    assert plan_for(PlacementRequest(), {"OMP_NUM_THREADS": value}).placement.threads == 4


def test_the_flag_wins_over_omp_num_threads() -> None:
    command = plan_for(PlacementRequest(threads=3), {"OMP_NUM_THREADS": "2"})
    assert command.environ["OMP_NUM_THREADS"] == "3"
    assert command.placement.cpus == (0, 1, 2)


@pytest.mark.parametrize(
    ("found", "environ", "said"),
    [
        (Libraries(), {}, ["pip install intel-openmp", "apt-get install libtcmalloc-minimal4"]),
        (Libraries(libiomp5="/lib/libiomp5.so"), {}, ["apt-get install libtcmalloc-minimal4"]),
        (Libraries(libiomp5="/lib/libiomp5.so", jemalloc="/lib/libjemalloc.so.2"), {}, []),
        (Libraries(), {"LD_PRELOAD": "/opt/mine.so"}, []),
    ],
)
def test_what_is_not_there_is_said(found: Libraries, environ: dict[str, str], said: list[str]) -> None:
    """A run without tcmalloc was slower without a word; -v and the dry run show notes."""
    notes = prepare(PlacementRequest(), ["true"], environ, machine=MACHINE, libraries=found, abilities=ALL).notes
    hints = ("pip install intel-openmp", "apt-get install libtcmalloc-minimal4")
    assert [hint for hint in hints if any(hint in note for note in notes)] == said


def test_declined_libraries_are_not_missed() -> None:
    surroundings = Surroundings(Libraries(), ALL, openmp="gnu", allocator="system")
    (command,) = prepare_instances(InstanceRequest(), ["true"], {}, machine=MACHINE, surroundings=surroundings)
    assert command.notes == ()


def test_openmp_prints_its_settings_where_that_is_wanted() -> None:
    """`ipex-assist -v` asks for it; otherwise it would be a page before every text."""
    found = Libraries(libiomp5="/lib/libiomp5.so")
    for show in (False, True):
        command = prepare(
            PlacementRequest(), ["true"], {}, machine=MACHINE, libraries=found, abilities=ALL, show_openmp_settings=show
        )
        assert command.set["KMP_SETTINGS"] == str(int(show))
