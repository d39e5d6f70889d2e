"""Which executor runs: the order of preference, what is missing, and the lock that passes take."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import pytest

from ipex_assist.env.errors import UsageError
from ipex_assist.executors.pass_lock import ForkSafeLock
from ipex_assist.executors.registry import EXECUTORS
from ipex_assist.executors.select_executor import library_executor, resolve_executor


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """A machine on which these executors work and no other."""
    for name, executor in EXECUTORS.items():
        reason = None if name in names else f"{name} is broken here"
        monkeypatch.setitem(EXECUTORS, name, replace(executor, unavailable=lambda reason=reason: reason))


@pytest.mark.parametrize(
    ("working", "chosen"),
    [
        (("native", "ipex", "torch"), "native"),
        (("ipex", "torch"), "ipex"),
        (("native", "torch"), "native"),
        (("torch",), "torch"),
    ],
)
def test_auto_is_the_first_that_works(
    working: tuple[str, ...], chosen: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the order native, ipex, torch; that the native core is missing costs speed, and is said."""
    only(monkeypatch, *working)
    assert resolve_executor("auto") == chosen
    assert library_executor() == ("ipex" if "ipex" in working else "torch")
    expected = [] if "native" in working else [f"using --executor {chosen}: native is broken here"]
    assert [record.getMessage() for record in caplog.records] == expected


@pytest.mark.parametrize("name", ["native", "ipex"])
def test_one_that_is_named_and_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason, and what works instead."""
    only(monkeypatch, "torch")
    with pytest.raises(UsageError, match=f"--executor {name}: {name} is broken here; or use --executor torch"):
        resolve_executor(name)


def test_a_precision_that_the_executor_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the target or of the assistant, named or found by auto."""
    only(monkeypatch, "torch")
    assert resolve_executor("torch", "bf16", None, "fp32") == "torch"
    for executor in ("torch", "auto"):
        with pytest.raises(UsageError, match=r"the torch executor has no int4 \(only bf16, fp32\)"):
            resolve_executor(executor, "bf16", "int4")


def test_a_child_of_fork_finds_the_lock_free() -> None:
    """The thread that held it is not in the child, which would wait for ever."""
    lock, release, held = ForkSafeLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            release.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if _can_enter(lock) else 1)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not _can_enter(lock), "the parent's thread still has it"
    finally:
        release.set()
        thread.join()
    assert _can_enter(lock)


def _can_enter(lock: ForkSafeLock) -> bool:
    if entered := lock._lock.acquire(timeout=0.5):
        lock._lock.release()
    return entered
