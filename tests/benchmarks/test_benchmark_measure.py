"""What the benchmarks share: the machine they report, and how they end."""

from __future__ import annotations

import os
from pathlib import Path

import measure
import pytest

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.launch.plan import MASK_AT_START

pytestmark = pytest.mark.one_stack


def test_the_machine_has_the_cpus_the_process_started_with() -> None:
    """OpenMP binds the main thread to one CPU, after which every benchmark reported a machine of one."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(MASK_AT_START)})
    try:
        found = measure.machine()
    finally:
        os.sched_setaffinity(0, before)
    assert found["cpus"] == len(MASK_AT_START)
    assert found["cpu"]
    assert found["threads"] > 0


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (IpexAssistError("no room"), 1, ["no room"]),
        (UsageError("no such flag"), 2, ["no such flag"]),
        (KeyboardInterrupt(), 130, []),
    ],
)
def test_errors_are_messages_and_exit_codes(error: BaseException, code: int, said: list[str]) -> None:
    """A traceback would bury the one line that says what to do."""

    def fail() -> int:
        raise error

    lines: list[str] = []
    assert measure.exit_code(fail, lines.append) == code
    assert lines == said
    assert measure.exit_code(lambda: 7, lines.append) == 7
    with pytest.raises(ZeroDivisionError):  # a bug of ours keeps its traceback
        measure.exit_code(lambda: 1 // 0, lines.append)


def test_a_program_is_named_by_its_path_in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the command that RESULTS.md shows is one that runs: programs of tests/ are measured by, too."""
    root = Path(measure.__file__).parents[1]
    monkeypatch.setattr("sys.argv", [str(root / "tests" / "outside" / "engine_soak.py"), "--minutes", "3"])
    assert measure.program() == "tests/outside/engine_soak.py"
    monkeypatch.setattr("sys.argv", ["/elsewhere/program.py"])
    assert measure.program() == "program.py"
