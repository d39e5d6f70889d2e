"""Which prompt goes to which instance next: one queue, and second tries elsewhere. Pure: no processes, no files."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ipex_assist.batch.prompts import Entry

# Tries that failed for the prompt's own reason: an instance that ends with several prompts in flight blames none yet.
MAX_TRIES = 2


@dataclass
class Task:
    """A prompt in the queue: the instances that have tried it, and how each finished try ended.

    number: of the current try, unique among all tries. blamed: the instances at which it failed, and nothing else can
    have been the reason. alone: the next try has an instance for itself. sent_at, deadline, cancelled: the
    coordinator's, of the current try.
    """

    entry: Entry
    number: int = 0
    instances: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    blamed: list[int] = field(default_factory=list)
    alone: bool = False
    sent_at: float = 0.0
    deadline: float | None = None
    cancelled: bool = False

    @property
    def tries(self) -> int:
        return len(self.instances)


class Queue:
    """Hands every entry to an instance, once, and to another one (where there is one) if it was lost.

    An instance may have several prompts in flight. When it ends, nobody can tell which of them it was: all of them are
    suspects, and each is tried again with an instance for itself. There the one that is at fault ends it again, and the
    others get their results.
    """

    def __init__(self, entries: Iterable[Entry], total: int) -> None:
        """`total` is how many `entries` there are."""
        self._fresh = iter(entries)
        self._left = total
        self._again: list[Task] = []
        self._in_flight: dict[int, dict[int, Task]] = {}
        self._numbers = itertools.count(1)

    @property
    def unfinished(self) -> int:
        """Prompts that are neither done nor given up."""
        return self.waiting + sum(map(len, self._in_flight.values()))

    @property
    def waiting(self) -> int:
        """How many prompts no instance is working on."""
        return self._left + len(self._again)

    def in_flight(self, instance: int) -> list[Task]:
        """Return the tasks that `instance` is working on, in the order in which it got them."""
        return list(self._in_flight.get(instance, {}).values())

    def find(self, instance: int, number: int) -> Task | None:
        """Return the task of this try; None where `instance` is not at it."""
        return self._in_flight.get(instance, {}).get(number)

    def next_for(self, instance: int, usable: Collection[int], most: int = 1) -> Task | None:
        """Give `instance`, which may have `most` in flight, something more to do; None if there is nothing for it.

        A lost prompt comes first, unless `instance` is the one that lost it and another of the `usable` has not
        tried it yet. One that is to be alone waits for an instance that has nothing else to do: an instance that was
        restarted, or one for which nothing fresh is left.
        """
        running = self._in_flight.setdefault(instance, {})
        if len(running) >= most or any(task.alone for task in running.values()):
            return None
        task = next((task for task in self._again if self._may_try(task, instance, usable)), None)
        if task is not None:
            self._again.remove(task)
        elif self._left:
            self._left -= 1
            task = Task(next(self._fresh))
        else:
            return None
        task.number = next(self._numbers)
        task.instances.append(instance)
        running[task.number] = task
        return task

    def _may_try(self, task: Task, instance: int, usable: Collection[int]) -> bool:
        if task.alone and self._in_flight[instance]:
            return False
        return instance not in task.blamed or all(other in task.blamed for other in usable)

    def finished(self, instance: int, number: int) -> Task:
        """`instance` is done with this try, well or badly; returns its task."""
        return self._in_flight[instance].pop(number)

    def lost(self, instance: int, number: int, reason: str, *, alone: bool = False) -> Task | None:
        """`instance` did not get this try done, and it was the prompt's own; returns its task if that was its last try.

        alone: whether the next one shall run alone.
        """
        task = self.finished(instance, number)
        task.failures.append(reason)
        task.blamed.append(instance)
        task.alone = task.alone or alone
        if len(task.blamed) >= MAX_TRIES:
            return task
        self._again.append(task)
        return None

    def ended(self, instance: int, reason: str) -> Task | None:
        """`instance` is no more; returns its task if that ran alone and this was its last try."""
        running = self.in_flight(instance)
        if len(running) == 1:
            return self.lost(instance, running[0].number, reason)
        for task in running:
            self.finished(instance, task.number)
            task.failures.append(f"{reason}, with {len(running)} prompts in flight")
            task.alone = True
            self._again.append(task)
        return None
