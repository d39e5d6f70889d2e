"""Signals that end a server: the first starts a graceful shutdown, the second ends it at once."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ipex_assist.commands.shared.stop_signal import STOPPING
from ipex_assist.env.runner import REPEAT_SECONDS


class StopSignals:
    """`first` and `second` are futures of signal numbers. Created in the event loop of the main thread.

    A repetition within half a second does not count: a scheduler may signal a job and each of its processes.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.first: asyncio.Future[int] = loop.create_future()
        self.second: asyncio.Future[int] = loop.create_future()
        self._at = 0.0

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Handle SIGINT, SIGTERM and SIGHUP in this context; those that were ignored (nohup) stay ignored."""
        loop = asyncio.get_running_loop()
        numbers = [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
        for number in numbers:
            loop.add_signal_handler(number, self.take, number)
        try:
            yield
        finally:
            if self.first.done():  # a late signal must not change the exit code
                signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
            for number in numbers:
                loop.remove_signal_handler(number)

    def take(self, number: int) -> None:
        """Handle a signal."""
        if not self.first.done():
            self.first.set_result(number)
            self._at = time.monotonic()
        elif not self.second.done() and time.monotonic() - self._at >= REPEAT_SECONDS:
            self.second.set_result(number)
