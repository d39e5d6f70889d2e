"""Which prompt goes to which instance next: one queue, and second tries elsewhere. Pure: no processes, no files."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ipex_assist.batch.prompts import Entry

MAX_TRIES = 2


@dataclass
class Task:
    """A prompt on its way: the instances that have tried it, and what became of each try that is over."""

    entry: Entry
    instances: list[int] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def tries(self) -> int:
        return len(self.instances)


class Queue:
    """Hands every entry to an instance, once, and to another one (where there is one) if it was lost."""

    def __init__(self, entries: Iterable[Entry], total: int) -> None:
        """`total` is how many `entries` there are."""
        self._fresh = iter(entries)
        self._left = total
        self._again: list[Task] = []
        self._running: dict[int, Task] = {}

    @property
    def unfinished(self) -> int:
        """Prompts that are neither done nor given up."""
        return self.waiting + len(self._running)

    @property
    def waiting(self) -> int:
        """How many prompts no instance is working on."""
        return self._left + len(self._again)

    def running(self, instance: int) -> Task | None:
        """Return the task that `instance` is working on; None where it is idle."""
        return self._running.get(instance)

    def next_for(self, instance: int, usable: Collection[int]) -> Task | None:
        """Give `instance` something to do; None if there is nothing for it.

        A lost prompt comes first, unless `instance` is the one that lost it and another of the `usable` has not
        tried it yet.
        """
        task = next((task for task in self._again if self._may_try(task, instance, usable)), None)
        if task is not None:
            self._again.remove(task)
        elif self._left:
            self._left -= 1
            task = Task(next(self._fresh))
        else:
            return None
        task.instances.append(instance)
        self._running[instance] = task
        return task

    @staticmethod
    def _may_try(task: Task, instance: int, usable: Collection[int]) -> bool:
        return instance not in task.instances or all(other in task.instances for other in usable)

    def finished(self, instance: int) -> Task:
        """`instance` is done with its prompt, well or badly; returns it."""
        return self._running.pop(instance)

    def lost(self, instance: int, reason: str) -> Task | None:
        """`instance` did not get its prompt done; returns it if that was its last try."""
        task = self._running.pop(instance)
        task.failures.append(reason)
        if task.tries >= MAX_TRIES:
            return task
        self._again.append(task)
        return None
