"""What is said of a process that was killed: by whom, and for which memory."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from machines import PLAIN, write

from ipex_assist.env.tree import Tree
from ipex_assist.launch import Placement, endings
from ipex_assist.launch.endings import describe_kill, oom_kills

pytestmark = pytest.mark.one_stack

BOUND = Placement((0, 1), 2, "bind", (0,))


@pytest.mark.parametrize(
    ("number", "before", "now", "said"),
    [
        (signal.SIGTERM, 3, 4, "was killed by SIGTERM"),
        (signal.SIGKILL, 3, 3, "was killed by SIGKILL (the kernel did not do it for want of memory)"),
        (signal.SIGKILL, None, 3, "was killed by SIGKILL (out of memory?)"),
    ],
)
def test_who_killed_it(number: int, before: int | None, now: int, said: str) -> None:
    """Catches blaming memory for a SIGKILL that somebody sent."""
    assert describe_kill(number, BOUND, before, now) == said


def test_memory_of_the_bound_node_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Killed`, and 137, while the other node was empty: nothing said which memory had been too little."""
    monkeypatch.setattr(endings, "read_topology", lambda: PLAIN)
    assert describe_kill(9, BOUND, 3, 4) == (
        "was killed by SIGKILL: the kernel had no memory left for it on node 0, to which it is bound (64.0 GiB in "
        "all), while 48.0 GiB are free on others. Use a smaller --kv-memory, --precision or model, or --socket all"
    )
    free = describe_kill(9, Placement((0, 1), 2, "local"), 3, 4)
    assert free == (
        "was killed by SIGKILL: the kernel had no memory left for it. Use a smaller --kv-memory, --precision or model"
    )


def test_the_kernels_count(tmp_path: Path) -> None:
    write(tmp_path, "proc/vmstat", "nr_free_pages 1\noom_kill 12\noom_killer 3")
    assert oom_kills(Tree(tmp_path)) == 12
    assert oom_kills(Tree(tmp_path / "proc")) is None
    assert (oom_kills() or 0) >= 0
