"""Instances behind pipes: nothing that one does or leaves undone may make the coordinator wait or lose a line."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

import pytest
from batch_runs import gone, wait_for

from ipex_assist.launch import LaunchCommand, Placement
from ipex_assist.workers.local_pool import LocalPool
from ipex_assist.workers.wire import Answered, Ended, Event, LogLine, Ready, TextRequest

pytestmark = pytest.mark.one_stack

MODEL = "{'target': 'none', 'precision': 'fp32', 'executor': str(os.getpid())}"
READY = (
    f"import json, os, sys, time; print(json.dumps({{'type': 'ready', 'model': {MODEL}, 'load_s': 0}}), flush=True); "
)


def pool_of(code: str) -> LocalPool:
    """Return a pool of one instance that runs this Python."""
    argv = (sys.executable, "-c", code)
    return LocalPool([LaunchCommand(argv, dict(os.environ), {}, {}, Placement((0,), 1), argv)], {"args": {}})


def until(pool: LocalPool, wanted: Callable[[Sequence[Event]], object]) -> list[Event]:
    """The events up to the one that is wanted."""
    events: list[Event] = []

    def more() -> object:
        events.extend(pool.wait(0.05))
        return wanted(events)

    wait_for(more, 20)
    return events


def has(kind: type) -> Callable[[Sequence[Event]], bool]:
    return lambda events: any(isinstance(event, kind) for event in events)


def test_an_instance_that_reads_nothing() -> None:
    """A prompt longer than the pipe's buffer: sending it returns at once, and so does the end."""
    pool = pool_of(READY + "time.sleep(1000)")
    pool.start(0)
    (ready,) = until(pool, has(Ready))
    assert isinstance(ready, Ready)
    started = time.monotonic()
    pool.submit(0, TextRequest(0, "x" * 3_000_000))
    assert pool.wait(0.0) == []
    pool.end(0, "had enough")
    assert pool.wait(5.0) == [Ended("had enough")]
    assert time.monotonic() - started < 20
    assert gone([int(ready.model.executor)])
    pool.close()


def test_answers_bear_the_ids_of_their_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come in any order, and what is cancelled is told so while others are under way."""
    pool = pool_of(
        READY + "sys.stdin.readline(); lines = [json.loads(sys.stdin.readline()) for _ in range(4)]; "
        "assert lines[3] == {'type': 'cancel', 'id': 7}, lines; "
        "print(json.dumps({'type': 'answer', 'id': 9, 'result': {}}), flush=True); "
        "print(json.dumps({'type': 'answer', 'id': 7, 'error': 'cancelled'}), flush=True); "
        "time.sleep(1000)"
    )
    pool.start(0)
    until(pool, has(Ready))
    for number in (7, 8, 9):
        pool.submit(0, TextRequest(number, "a"))
    pool.cancel(0, 7)
    events = until(pool, lambda events: len(events) == 2)
    assert events == [Answered(9, {}), Answered(7, error="cancelled")]
    monkeypatch.setattr(sys.modules[type(pool).__module__], "CLOSE_SECONDS", 60.0)
    started = time.monotonic()
    pool.close()  # the third is still under way: nobody waits for it
    assert time.monotonic() - started < 20


def test_a_long_prompt_arrives_whole() -> None:
    """It goes in many pieces to an instance that reads slowly."""
    pool = pool_of(
        READY + "time.sleep(0.3); sys.stdin.readline(); line = sys.stdin.readline(); "
        "result = {'length': len(json.loads(line)['prompt'])}; "
        "print(json.dumps({'type': 'answer', 'id': 0, 'result': result}), flush=True)"
    )
    pool.start(0)
    until(pool, has(Ready))
    pool.submit(0, TextRequest(0, "x" * 3_000_000))
    events = until(pool, has(Answered))
    assert events[0] == Answered(0, {"length": 3_000_000})
    pool.close()


@pytest.mark.parametrize("ended_by_us", [True, False])
def test_what_it_said_before_its_end_is_kept(ended_by_us: bool) -> None:
    """An answer that is in the pipe when its sender dies is an answer: without it the prompt would run twice."""
    last = "time.sleep(1000)" if ended_by_us else "os.kill(os.getpid(), 9)"
    pool = pool_of(
        READY + "sys.stdin.readline(); sys.stdin.readline(); print('last words', file=sys.stderr, flush=True); "
        'os.write(1, b\'{"type": "answer", "id": 0, "result": {"text": "\' + b\'x\' * 50000 + b\'"}}\\n{"torn\'); '
        + last
    )
    pool.start(0)
    until(pool, has(Ready))
    pool.submit(0, TextRequest(0, "a"))
    time.sleep(0.5)
    if ended_by_us:
        pool.end(0, "too late")
    events = until(pool, has(Ended))
    assert [type(event) for event in events if not isinstance(event, LogLine)] == [Answered, Ended]
    assert LogLine("last words") in events
    assert events[-1] == Ended("too late") or "SIGKILL" in events[-1].reason
    pool.close()


def test_close_leaves_nobody() -> None:
    """Busy ones and those that ignore the end of their requests, with what they started."""
    child = "import subprocess; subprocess.Popen(['sleep', '1000']); "
    pool = pool_of(child + READY + "time.sleep(1000)")
    pool.start(0)
    (ready,) = until(pool, has(Ready))
    assert isinstance(ready, Ready)
    started = time.monotonic()
    pool.close()
    assert time.monotonic() - started < 20
    assert gone([int(ready.model.executor)])


def test_a_child_that_keeps_the_pipes_open() -> None:
    """A library's forked helper survives a kill -9 of its parent: the end must be seen all the same, and it must go."""
    pool = pool_of(
        "import os, time\nchild = os.fork()\nif not child: time.sleep(1000)\n"
        + READY.replace("os.getpid()", "child")
        + "os.kill(os.getpid(), 9)"
    )
    pool.start(0)
    events = until(pool, has(Ended))
    assert isinstance(events[0], Ready)
    wait_for(lambda: gone([int(events[0].model.executor)]), 2)
    pool.close()


def test_a_line_without_end_on_standard_error() -> None:
    """A library that prints dots for hours must not fill the coordinator's memory."""
    pool = pool_of("import sys; sys.stderr.write('.' * 1_000_000); sys.stderr.flush()")
    pool.start(0)
    events = until(pool, has(Ended))
    said = [event.line for event in events if isinstance(event, LogLine)]
    assert sum(map(len, said)) == 1_000_000
    assert len(said) > 2
    assert events[-1] == Ended("ended with exit code 0")
    pool.close()
