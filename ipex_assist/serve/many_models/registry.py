"""The models of a server: which are loaded within the memory for them, and which go for one that is asked for.

A request holds its model until it has been answered. One for a model that is not loaded waits until it is. Loads get
memory in the order in which they were asked for: models that nobody holds go first, those used longest ago before
others. Where that is not enough, a model that is busy takes no further requests once it has served for as long as its
loading took (and LEAST_SECONDS): those that it has end, it goes, and what was asked of it meanwhile waits for its turn.
So nobody waits for ever, and at most half of the time goes into loading.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.memory import gib
from ipex_assist.serve.backend import Busy, Failed, NotReady
from ipex_assist.serve.held_models import release_at_end
from ipex_assist.serve.many_models.managed_model import ManagedModel
from ipex_assist.serve.metrics import ServerMetrics
from ipex_assist.serve.served_models import ModelEntry
from ipex_assist.serve.server import in_thread
from ipex_assist.serve.service import Service, unknown_model

LEAST_SECONDS = 1.0  # that a busy model serves before it goes for another
TICK_SECONDS = 0.25  # between two looks at who is idle
FAILURE_SECONDS = 5.0  # for which the reason of a failed load is told without another try


class ModelRegistry:
    """Loads and unloads models. All methods are called in one event loop.

    limit: bytes for all models together. keep: seconds that an idle model stays. most_waiting: requests that may wait
    for loads. timeout: seconds that each of them may.
    """

    def __init__(
        self,
        models: Sequence[ManagedModel],
        *,
        limit: int,
        keep: float,
        most_waiting: int,
        timeout: float,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._models = {model.name: model for model in models}
        self._limit, self._keep, self._most_waiting, self._timeout = limit, keep, most_waiting, timeout
        self._say = say
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._unloads: dict[str, asyncio.Task[None]] = {}
        self._booked: dict[str, int] = {}  # bytes of models that are loaded, or about to be
        self._turns: deque[str] = deque()  # models that wait for memory
        self._waiters: dict[str, int] = {}  # requests that wait for a load
        self._failures: dict[str, tuple[float, Exception]] = {}
        self._changed = asyncio.Event()
        self.draining = False

    # What the routes use; see ServedModels.

    @property
    def ready(self) -> bool:
        """Whether requests are accepted: models are loaded for them."""
        return not self.draining

    @property
    def adapted(self) -> None:
        """Models of a server of many have no adapters."""
        return None

    def entries(self) -> list[ModelEntry]:
        """All models, in the order in which they were named."""
        return [model.entry for model in self._models.values()]

    def metrics(self) -> bytes:
        """The exposition for Prometheus."""
        return ServerMetrics.exposition([model.metrics for model in self._models.values()])

    async def open(self, name: str | None) -> Service:
        """See ServedModels."""
        model = next(iter(self._models.values())) if name is None else self._models.get(name)
        if model is None:
            raise unknown_model(name or "", list(self._models))
        if (service := self._hold(model)) is None:
            if sum(self._waiters.values()) >= self._most_waiting:
                raise Busy(f"{self._most_waiting} requests wait for models already", 1.0)
            service = await self._wait_for(model)
        release_at_end(lambda: self._release(model))
        return service

    # Requests.

    def _hold(self, model: ManagedModel) -> Service | None:
        """The service of a model that is loaded, which now counts one request more; else None."""
        if self.draining:
            raise NotReady("the server is about to end")
        if model.loaded is None or model.closing:
            return None
        model.holds += 1
        model.used = time.monotonic()
        return model.loaded.service

    def _release(self, model: ManagedModel) -> None:
        model.holds -= 1
        model.used = time.monotonic()
        if not self._is_busy(model) and (model.closing or self._keep == 0):
            self._unload(model)

    def _is_busy(self, model: ManagedModel) -> bool:
        """Whether requests hold it, or will in a moment, since it has just been loaded for them."""
        return model.holds > 0 or (not model.closing and self._waiters.get(model.name, 0) > 0)

    async def _wait_for(self, model: ManagedModel) -> Service:
        self._waiters[model.name] = self._waiters.get(model.name, 0) + 1
        deadline = time.monotonic() + self._timeout
        try:
            while (service := self._hold(model)) is None:
                load = self._loads.get(model.name)
                if load is None:
                    self._raise_failure(model)
                    load = self._loads[model.name] = asyncio.create_task(self._load(model))
                await asyncio.wait({load}, timeout=max(0.0, deadline - time.monotonic()))
                if time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"{model.name} could not be loaded within {self._timeout:g} s: other models have "
                        "the memory, or loading takes longer"
                    )
            return service
        finally:
            self._waiters[model.name] -= 1

    def _raise_failure(self, model: ManagedModel) -> None:
        """Raise why the last load failed, where that was a moment ago."""
        failure = self._failures.get(model.name)
        if failure is not None and time.monotonic() - failure[0] < FAILURE_SECONDS:
            raise failure[1]

    # Loads.

    async def _load(self, model: ManagedModel) -> None:
        """Wait for memory and load; the reason of a failure stays in `_failures`."""
        name = model.name
        self._failures.pop(name, None)
        try:
            if model.need is None:
                model.need = await in_thread(model.loader.need)
            if not await self._get_memory(model):
                return
            self._say(f"{name} is being loaded")
            await model.load()
        except Exception as error:
            self._booked.pop(name, None)
            reason = f"{name} cannot be loaded: {error}"
            self._failures[name] = time.monotonic(), Failed(reason, again=not isinstance(error, _TooLarge))
            if not self.draining:
                self._say(reason)
        else:
            assert model.loaded is not None
            self._say(f"{name} is loaded ({model.loaded.seconds:.1f} s)")
            model.loaded.engines.failure.add_done_callback(lambda _: self._died(model))
        finally:
            del self._loads[name]
            self._changed.set()

    async def _get_memory(self, model: ManagedModel) -> bool:
        """Book memory for a model when it is its turn; False where nobody waits for the model any more."""
        need = self._limit if model.need is None else model.need
        if need > self._limit:
            raise _TooLarge(f"it needs {gib(need)}, and all models together may have {gib(self._limit)}")
        self._turns.append(model.name)
        try:
            while not (
                model.loaded is None
                and model.name not in self._unloads
                and self._turns[0] == model.name
                and self._make_room(model, need)
            ):
                if not self._waiters.get(model.name) or self.draining:
                    return False
                await self._next_change()
            self._booked[model.name] = need
            return True
        finally:
            self._turns.remove(model.name)
            self._changed.set()

    async def _next_change(self) -> None:
        self._changed.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changed.wait(), TICK_SECONDS)

    def _make_room(self, wanted: ManagedModel, need: int) -> bool:
        """Whether `need` bytes are free; else models are chosen to go until they will be, or as many as may."""
        lacking = need - (self._limit - sum(self._booked.values()))
        if lacking <= 0:
            return True
        going = [model for model in self._models.values() if model.closing or model.name in self._unloads]
        lacking -= sum(self._booked.get(model.name, 0) for model in going)
        for model in self._may_go(wanted):
            if lacking <= 0:
                break
            lacking -= self._booked[model.name]
            model.closing = True
            if not model.holds:
                self._unload(model)
        return False

    def _may_go(self, wanted: ManagedModel) -> list[ManagedModel]:
        """Loaded models that may be chosen to go: idle ones, and then busy ones that have served long enough."""
        now = time.monotonic()
        found = []
        for model in self._models.values():
            loaded = model.loaded
            if loaded is None or model.closing or model is wanted:
                continue
            if not self._is_busy(model) or now - loaded.at >= max(LEAST_SECONDS, loaded.seconds):
                found.append(model)
        return sorted(found, key=lambda model: (self._is_busy(model), model.used))

    # Unloads.

    def _unload(self, model: ManagedModel) -> None:
        if model.loaded is not None and model.name not in self._unloads:
            model.closing = True
            self._unloads[model.name] = asyncio.create_task(self._unload_now(model))

    async def _unload_now(self, model: ManagedModel) -> None:
        try:
            await model.unload()
            self._say(f"{model.name} is unloaded")
        finally:
            self._booked.pop(model.name, None)
            del self._unloads[model.name]
            self._changed.set()

    def _died(self, model: ManagedModel) -> None:
        """All engines of a model are given up: the next request loads it again."""
        if model.loaded is not None and not model.loaded.engines.failure.cancelled():
            error = model.loaded.engines.failure.exception()
            self._say(f"the engines of {model.name} have died: {error}")
            self._unload(model)

    # Start and end.

    async def live(self) -> None:
        """Unload what is idle, until this is cancelled."""
        while True:
            await asyncio.sleep(min(TICK_SECONDS, self._keep or TICK_SECONDS))
            now = time.monotonic()
            for model in self._models.values():
                if model.loaded is not None and not self._is_busy(model) and now - model.used >= self._keep:
                    self._unload(model)

    async def drain(self, seconds: float) -> int:
        """Refuse new requests and wait up to `seconds` for running ones; returns how many were aborted."""
        self.draining = True
        self._changed.set()
        loaded = [model.loaded for model in self._models.values() if model.loaded is not None]
        return sum(await asyncio.gather(*(each.engines.drain(seconds) for each in loaded)))

    def close(self, now: bool = False) -> None:
        """End all processes. now: kill them instead of letting them exit."""
        self.draining = True
        for load in self._loads.values():
            load.cancel()
        for model in self._models.values():
            if model.loaded is not None:
                model.loaded.service.close()
                model.loaded.engines.close(now=now)


class _TooLarge(IpexAssistError):
    """The model alone takes more than all may."""
