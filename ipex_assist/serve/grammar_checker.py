"""Checks grammars of strangers before an engine is given them, in processes that can be killed."""

from __future__ import annotations

import asyncio
import hashlib
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ipex_assist.serve.backend import Busy, InvalidField, NotReady
from ipex_assist.serve.checker_process import SECONDS, CheckerProcess, trial_program
from ipex_assist.speculative.choosing.grammar import GrammarSpec

PROCESSES = 2  # so that one grammar that takes its whole second does not stop the others
REMEMBERED = 256  # cached verdicts
MOST_WAITING = 256  # grammars in the queue, unless the server says otherwise


class GrammarChecker:
    """Decides whether a grammar may be given to an engine. `check` is thread-safe; `checked` is for one event loop.

    Its processes are started with the first grammars. A verdict is kept, and grammars that are alike are tried once.
    """

    def __init__(
        self, program: Callable[[], list[str]] = trial_program, *, processes: int = PROCESSES, most: int = MOST_WAITING
    ) -> None:
        """program: returns the argv of a process. most: how many different grammars may wait for one."""
        self._processes = [CheckerProcess(program) for _ in range(processes)]
        self._most = most
        self._idle: queue.LifoQueue[CheckerProcess] = queue.LifoQueue()  # the last one is the likeliest to run already
        for process in reversed(self._processes):
            self._idle.put(process)
        self._known: OrderedDict[bytes, str | None] = OrderedDict()  # by digest: grammars may be megabytes long
        self._lock = threading.Lock()
        self._underway: dict[bytes, asyncio.Future[None]] = {}
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="grammars")

    async def checked(self, spec: GrammarSpec | None, timeout: float | None = None) -> GrammarSpec | None:
        """Run `check` outside the event loop; returns the grammar.

        Raises Busy if too many others wait, and TimeoutError after `timeout` seconds, its waiting included.
        """
        if spec is None or spec.kind == "text" or self._is_known(spec):
            return spec
        trial = self._trial(spec)
        done, _ = await asyncio.wait({trial}, timeout=timeout)  # not cancelled: others may wait for the same one
        if not done:
            raise TimeoutError("the grammar was not checked in the time that this server allows")
        if trial.cancelled():
            raise NotReady("the server is about to end")
        trial.result()
        return spec

    def _trial(self, spec: GrammarSpec) -> asyncio.Future[None]:
        """The check of a grammar that is under way, or begins. Raises Busy."""
        name = _name(spec)
        if name in self._underway:
            return self._underway[name]
        waiting = len(self._underway) - len(self._processes)
        if waiting >= self._most:
            seconds = max(1.0, waiting * SECONDS / len(self._processes))
            raise Busy(f"{max(0, waiting)} grammars wait to be checked already", seconds)
        trial = asyncio.get_running_loop().run_in_executor(self._threads, self.check, spec)
        self._underway[name] = trial
        trial.add_done_callback(lambda _: self._forget(name))
        return trial

    def _forget(self, name: bytes) -> None:
        trial = self._underway.pop(name)
        if not trial.cancelled():
            trial.exception()  # mark it as retrieved: nobody may wait any more

    def check(self, spec: GrammarSpec) -> None:
        """Raise InvalidField (status 400) if the grammar cannot be used. Takes about a second at most."""
        if self._is_known(spec):
            return
        reason = self._try(spec)
        with self._lock:
            self._known[_name(spec)] = reason
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        _refuse(reason, spec)

    def _is_known(self, spec: GrammarSpec) -> bool:
        """Whether there is a verdict. Raises InvalidField if it is a bad one."""
        name = _name(spec)
        with self._lock:
            known, reason = name in self._known, self._known.get(name)
        _refuse(reason, spec)
        return known

    def _try(self, spec: GrammarSpec) -> str | None:
        process = self._idle.get()
        try:
            return process.reason_against(spec)
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """End the processes; what waits fails."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.close()


def _refuse(reason: str | None, spec: GrammarSpec) -> None:
    if reason is not None:
        raise InvalidField(f"this grammar cannot be used: {reason}", spec.field)


def _name(spec: GrammarSpec) -> bytes:
    return hashlib.sha256(f"{spec.kind} {spec.value}".encode("utf-8", "surrogatepass")).digest()
