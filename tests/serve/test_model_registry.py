"""Which models are loaded, in what order, and for whom: with models that take no memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.serve.backend import Busy, Failed
from ipex_assist.serve.errors import ApiError
from ipex_assist.serve.held_models import HeldModels
from ipex_assist.serve.many_models import registry
from ipex_assist.serve.many_models.registry import ModelRegistry

pytestmark = pytest.mark.one_stack


@dataclass
class FakeLoad:
    """Stands for `Loaded`."""

    service: str
    at: float
    seconds: float = 0.0
    engines: Any = None

    def __post_init__(self) -> None:
        self.engines = self
        self.failure = asyncio.get_running_loop().create_future()


class FakeManaged:
    """A model of `need` bytes. most: bytes of all loaded ones at a time."""

    bytes_now = most = 0

    def __init__(self, name: str, need: int, log: list[str], seconds: float = 0.0, error: str = "") -> None:
        self.name, self.need, self._log, self._seconds, self.error = name, need, log, seconds, error
        self.loaded: FakeLoad | None = None
        self.holds, self.closing, self.used = 0, False, 0.0

    async def load(self) -> None:
        FakeManaged.bytes_now += self.need
        FakeManaged.most = max(FakeManaged.most, FakeManaged.bytes_now)
        await asyncio.sleep(self._seconds)
        if self.error:
            FakeManaged.bytes_now -= self.need
            raise IpexAssistError(self.error)
        self._log.append(f"+{self.name}")
        self.loaded, self.closing = FakeLoad(self.name, time.monotonic()), False

    async def unload(self) -> None:
        assert self.holds == 0, f"{self.name} goes in the middle of a request"
        self.loaded = None
        await asyncio.sleep(0)
        FakeManaged.bytes_now -= self.need
        self.closing = False
        self._log.append(f"-{self.name}")


async def within_request(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run `work` as the answer to an HTTP request."""
    found = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.append(await work())

    await HeldModels(app)({}, None, None)  # type: ignore[arg-type]
    return found[0]


async def use(models: ModelRegistry, name: str, seconds: float = 0.0) -> Any:
    async def work() -> Any:
        service = await models.open(name)
        await asyncio.sleep(seconds)
        return service

    return await within_request(work)


def made(log: list[str], *models: FakeManaged, limit: int = 2, keep: float = 100.0, **more: Any) -> ModelRegistry:
    FakeManaged.bytes_now = FakeManaged.most = 0
    settings: dict[str, Any] = {"most_waiting": 100, "timeout": 20.0, **more}
    return ModelRegistry(models, limit=limit, keep=keep, **settings)  # type: ignore[arg-type]


def test_the_one_used_longest_ago_goes() -> None:
    async def main() -> None:
        log: list[str] = []
        models = made(log, *(FakeManaged(name, 1, log) for name in "abc"))
        for name in "abac":
            assert await use(models, name) == name
        assert log == ["+a", "+b", "-b", "+c"]
        assert FakeManaged.most == 2

    asyncio.run(main())


def test_a_busy_one_stays_and_goes_when_its_request_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is asked of it meanwhile waits, so that the other gets its turn under a load that never pauses."""
    monkeypatch.setattr(registry, "LEAST_SECONDS", 0.05)

    async def main() -> None:
        log: list[str] = []
        models = made(log, FakeManaged("a", 1, log), FakeManaged("b", 1, log), limit=1)

        async def crowd() -> None:
            for _ in range(8):
                await use(models, "a", 0.1)

        crowds = [asyncio.create_task(crowd()) for _ in range(3)]
        await asyncio.sleep(0.06)
        await asyncio.wait_for(use(models, "b"), 2)
        await asyncio.gather(*crowds)
        assert log[:4] == ["+a", "-a", "+b", "-b"]
        assert FakeManaged.most == 1

    asyncio.run(main())


def test_a_load_keeps_nobody_else_waiting_and_is_shared() -> None:
    async def main() -> None:
        log: list[str] = []
        models = made(log, FakeManaged("a", 1, log), FakeManaged("slow", 1, log, seconds=0.5))
        await use(models, "a")
        waiting = [asyncio.create_task(use(models, "slow")) for _ in range(3)]
        await asyncio.sleep(0.01)
        started = time.monotonic()
        for _ in range(20):
            await use(models, "a")
        assert time.monotonic() - started < 0.4
        assert not any(task.done() for task in waiting)
        assert await asyncio.gather(*waiting) == ["slow"] * 3
        assert log == ["+a", "+slow"]

    asyncio.run(main())


def test_reasons_and_limits() -> None:
    """Of a load that fails, a model that never fits, one that there is not, and a queue that is full."""

    async def main() -> None:
        log: list[str] = []
        broken = FakeManaged("broken", 1, log, error="no such file")
        models = made(log, broken, FakeManaged("large", 3, log), FakeManaged("slow", 1, log, 0.2), most_waiting=1)
        with pytest.raises(Failed, match="broken cannot be loaded: no such file") as failed:
            await use(models, "broken")
        assert failed.value.again
        broken.error = ""
        with pytest.raises(Failed):  # a moment ago
            await use(models, "broken")
        models._failures.clear()
        assert await use(models, "broken") == "broken"
        with pytest.raises(Failed, match="all models together may have") as failed:
            await use(models, "large")
        assert not failed.value.again
        with pytest.raises(ApiError, match=r"there is broken, large, slow"):
            await use(models, "x")
        first = asyncio.create_task(use(models, "slow"))
        await asyncio.sleep(0.01)
        with pytest.raises(Busy):
            await use(models, "slow")
        assert await first == "slow"

    asyncio.run(main())


def test_one_that_waits_too_long_gives_up() -> None:
    async def main() -> None:
        log: list[str] = []
        models = made(log, FakeManaged("a", 1, log), FakeManaged("b", 1, log), limit=1, timeout=0.2)
        running = asyncio.create_task(use(models, "a", 0.6))
        await asyncio.sleep(0.01)
        with pytest.raises(TimeoutError, match="b could not be loaded within"):
            await use(models, "b")
        assert await running == "a"

    asyncio.run(main())


@pytest.mark.parametrize(("keep", "stays"), [(0.0, False), (0.3, False), (float("inf"), True)])
def test_an_idle_one_goes(keep: float, stays: bool) -> None:
    async def main() -> None:
        log: list[str] = []
        models = made(log, FakeManaged("a", 1, log), keep=keep)
        living = asyncio.create_task(models.live())
        await use(models, "a", 0.5)
        assert log == ["+a"]
        await asyncio.sleep(0.1)
        assert (log == ["+a"]) == (keep > 0)
        await asyncio.sleep(0.9)
        assert (log == ["+a"]) == stays
        living.cancel()

    asyncio.run(main())
