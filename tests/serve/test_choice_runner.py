"""Texts of one request that are cancelled."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("fastapi", reason="the extra serve brings it")

from ipex_assist.serve.backend import OutputChunk
from ipex_assist.serve.choice_runner import ChoiceEvent, ChoiceRunner

pytestmark = pytest.mark.one_stack


def test_a_cancel_is_not_forgotten_where_news_come_at_that_moment() -> None:
    """asyncio.wait_for did so until Python 3.12: half of the clients that went away were written for to the end."""

    async def cancelled() -> None:
        choices = ChoiceRunner(None, [], None)  # type: ignore[arg-type]
        waiting = asyncio.create_task(choices.next(10))
        for _ in range(3):
            await asyncio.sleep(0)
        choices._events.put_nowait(ChoiceEvent(0, OutputChunk([], None, 0, 0)))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(cancelled())
