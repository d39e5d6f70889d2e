"""Sends waiting texts to engines with room, and makes room where the queue's rule of fairness asks for it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ipex_assist.serve.engine_slot import ActiveRequest, EngineSlot
from ipex_assist.serve.fair_queue import FairQueue
from ipex_assist.serve.routing import choose
from ipex_assist.workers.local_pool import LocalPool


class Dispatcher:
    """Between a queue and the slots of a pool; slots have the numbers of the pool's instances."""

    def __init__(self, pool: LocalPool, slots: Sequence[EngineSlot], waiting: FairQueue) -> None:
        self._pool, self._slots, self._waiting = pool, slots, waiting
        self._numbers = itertools.count(1)

    def feed(self) -> None:
        """Start or resume all waiting texts that can run now."""
        while self._waiting.shares:
            load = {number: slot.load for number, slot in enumerate(self._slots) if slot.has_room}
            if load:
                active = self._waiting.next([each for slot in self._slots for each in slot.running], load)
                self._waiting.take(active)
                self._start(active, load)
            elif not self._pause_one():
                return

    def _start(self, active: ActiveRequest, load: dict[int, float]) -> None:
        """Start or resume a text. load: of the slots with room."""
        if active.paused:
            assert active.slot is not None
            active.paused = False
            if active.slot in load:
                self._pool.resume(active.slot, active.number)
                return
            self._pool.cancel(active.slot, active.number)  # and start again where there is room
            del self._slots[active.slot].requests[active.number]
        load = {number: each for number, each in load.items() if number not in active.tried} or load
        active.slot = choose({number: self._slots[number].known.find(active.keys) for number in load}, load)
        self._slots[active.slot].take(active, next(self._numbers))
        self._pool.submit(active.slot, active.message())

    def _pause_one(self) -> bool:
        """Pause a text so that the next one can start; returns False if that should wait."""
        slots = [slot for slot in self._slots if slot.pauses and slot.ready and not slot.ending]
        active = self._waiting.to_pause([each for slot in slots for each in slot.running if not each.output.over])
        if active is None or active.slot is None:
            return False
        active.paused = True
        self._waiting.put_back(active)
        self._pool.pause(active.slot, active.number)
        return True
