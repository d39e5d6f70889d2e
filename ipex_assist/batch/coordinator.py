"""Feeds instances from one queue, writes each result as it ends, and outlives what happens to them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ipex_assist.batch.options import LineError
from ipex_assist.batch.progress import Progress
from ipex_assist.batch.prompts import Entry, PromptFile
from ipex_assist.batch.queue import Queue, Task
from ipex_assist.batch.results import ResultFile
from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.commands.shared.stop_signal import StopSignal
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.phase_display import PRINTED_AFTER
from ipex_assist.workers.loading_workers import LoadingWorkers
from ipex_assist.workers.pool import WorkerPool
from ipex_assist.workers.restarts import RESTART_DELAYS, RestartState
from ipex_assist.workers.wire import Answered, Ended, Event, LogLine, PhaseReport, Ready, Refused

TICK_SECONDS = 0.2  # how long a signal or a time limit may go unnoticed
GRACE_SECONDS = 3.0  # for prompts that are nearly done when a signal comes
# A cancelled prompt ends between two passes. An instance that takes longer is ended, which costs all that it is at.
CANCEL_SECONDS, CANCEL_SHARE, CANCEL_MOST = 1.0, 0.1, 30.0


@dataclass
class _RunningInstance(RestartState):
    """Holds the state of an instance. timed_out: we are ending it. concurrency: prompts that it may have in flight."""

    timed_out: bool = False
    concurrency: int = 1


class Coordinator:
    """Does one run over the prompts of `todo`. Each gets exactly one record: a result, or an error after two tries."""

    def __init__(
        self,
        prompts: PromptFile,
        todo: Sequence[Entry],
        results: ResultFile,
        pool: WorkerPool,
        progress: Progress,
        stop: StopSignal,
        *,
        concurrency: int | None = None,
        timeout: float | None = None,
        verbose: bool = False,
    ) -> None:
        """concurrency: the most prompts in flight in an instance; None is as each says itself, and else one.

        timeout: seconds for a prompt.
        """
        self._prompts, self._results, self._pool = prompts, results, pool
        self._progress, self._stop, self._timeout, self._verbose = progress, stop, timeout, verbose
        self._concurrency = concurrency
        self._queue = Queue(todo, len(todo))
        self._instances = [_RunningInstance() for _ in range(min(pool.size, len(todo)))]
        self._models = {done.model for done in results.done.values() if done.model is not None}
        self._last_refusal: IpexAssistError | None = None
        self._begun = False
        self._loading = LoadingWorkers()

    def run(self) -> None:
        """Serve the instances until every prompt has its record, or a signal comes.

        Raises:
            OutputError: a record cannot be written.
            IpexAssistError: no instance is left to go on with.
        """
        try:
            while self._queue.unfinished and self._stop.number is None:
                self._start_due()
                self._feed()
                self._take(self._pool.wait(TICK_SECONDS))
                self._show_loading()
                self._end_overdue()
                self._results.sync()
            if self._stop.number is not None:
                self._keep_what_is_nearly_done()
        finally:
            self._pool.close()

    def _show_loading(self) -> None:
        loading = sum(each.alive and not each.ready for each in self._instances)
        self._progress.show_loading(self._loading.text(loading))

    def _start_due(self) -> None:
        if not self._queue.waiting:  # the others do the rest
            return
        now = time.monotonic()
        for number, instance in enumerate(self._instances):
            if instance.alive or instance.given_up or now < instance.restart_at:
                continue
            instance.alive = True
            try:
                self._pool.start(number)
            except IpexAssistError as error:
                self._ended(Ended("cannot be started", Refused(str(error), error.exit_code), instance=number))

    def _feed(self) -> None:
        usable = [number for number, instance in enumerate(self._instances) if not instance.given_up]
        for number, instance in enumerate(self._instances):
            if not instance.ready or instance.timed_out:
                continue
            # The last prompts are spread evenly: an instance that has few is faster with each.
            most = min(instance.concurrency, -(-self._queue.unfinished // len(usable)))
            while (task := self._queue.next_for(number, usable, most)) is not None:
                self._submit(number, task)

    def _submit(self, number: int, task: Task) -> None:
        task.sent_at, task.cancelled = time.time(), False
        try:
            request = self._prompts.read(task.entry).request(task.number, self._prompts.folder)
        except LineError as error:
            self._finish(number, task, {"error": str(error)})
            return
        task.deadline = None if self._timeout is None else time.monotonic() + self._timeout
        self._pool.submit(number, request)

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Ready):
                self._is_ready(event)
            elif isinstance(event, Answered):
                self._answered(event)
            elif isinstance(event, Ended):
                self._ended(event)
            elif isinstance(event, LogLine):
                self._said(event)
            elif isinstance(event, PhaseReport):
                self._loading.note(event)
                if event.seconds >= PRINTED_AFTER:
                    self._progress.say_phase(event.name)

    def _said(self, event: LogLine) -> None:
        line = event.line.rstrip("\r")
        if self._verbose:
            self._progress.say(f"instance {event.instance}: {line}")
        else:
            self._progress.say_once(line)

    def _is_ready(self, event: Ready) -> None:
        instance = self._instances[event.instance]
        self._loading.over(event.instance)
        instance.ready = instance.was_ready = True
        instance.concurrency = event.concurrent(self._concurrency)
        if not self._begun:
            self._begun = True
            self._progress.begin()
        loaded = event.model
        if event.chat_template and self._prompts.undecided:
            self._progress.say_once(
                f"{short_name(loaded.target)} has a chat template, and prompts are continued without it: --chat "
                "makes each a user's message (--raw: as now, without this line)"
            )
        model = (loaded.target, loaded.precision)
        if self._models and model not in self._models:
            before = ", ".join(f"{short_name(target)} in {precision}" for target, precision in sorted(self._models))
            self._progress.say(
                f"{self._results.path} has results of {before}; those of {short_name(model[0])} in {model[1]} join them"
            )
        self._models.add(model)
        if self._verbose:
            self._progress.say(
                f"instance {event.instance}: {short_name(loaded.target)} loaded in {event.load_s:.1f} s, "
                f"{self._pool.describe(event.instance)}; prompts in flight: {instance.concurrency}"
            )

    def _answered(self, event: Answered) -> None:
        number, task = event.instance, self._queue.find(event.instance, event.id)
        if task is None:
            return
        if event.result is not None:
            self._finish(number, task, event.result)
        elif task.cancelled:
            self._lost(number, task, f"instance {number} {self._too_long}")
        elif event.again:  # whatever broke, it may have been for want of memory
            self._lost(number, task, event.error or "failed", alone=len(self._queue.in_flight(number)) > 1)
        else:
            self._finish(number, task, {"error": event.error})
        self._instances[number].ends_in_a_row = 0

    def _ended(self, event: Ended) -> None:
        number, instance = event.instance, self._instances[event.instance]
        self._loading.over(number)
        tasks = self._queue.in_flight(number)
        where = "between prompts" if instance.ready else "while loading"
        if tasks:
            where = f"at id {json.dumps(tasks[0].entry.id)}" + f" and {len(tasks) - 1} others" * (len(tasks) > 1)
        timed_out, instance.timed_out = instance.timed_out, False
        instance.alive = instance.ready = False
        if self._stop.number is not None:  # nothing is tried again, and its prompts stay without a record
            return
        if not timed_out:
            self._count_end(instance, event)
        reason = event.refusal.message if event.refusal is not None else event.reason
        if not all(other.given_up for other in self._instances):  # else the error that ends the run says it
            left_out = "; left out from here on" if instance.given_up else ""
            self._progress.say(f"instance {number}: {reason} ({where}){left_out}")
        given_up = self._queue.ended(number, f"instance {number} {event.reason}")
        if given_up is not None:
            self._give_up(number, given_up)
        self._check_somebody_is_left(number, reason)

    def _count_end(self, instance: _RunningInstance, event: Ended) -> None:
        """Count it, and raise where no other instance can do what this one says that it cannot."""
        instance.count_end(refused=event.refusal is not None)
        if event.refusal is not None:
            self._last_refusal = event.refusal.error()
            wrong_usage = isinstance(self._last_refusal, UsageError)
            if wrong_usage and not self._begun:
                raise self._last_refusal

    def _check_somebody_is_left(self, number: int, reason: str) -> None:
        if not all(instance.given_up for instance in self._instances):
            return
        if self._last_refusal is not None:
            raise self._last_refusal
        raise IpexAssistError(
            f"instance {number} {reason}, and so did the others, {len(RESTART_DELAYS) + 1} times in a row without "
            "finishing a prompt: start with -v to see why. Results so far are kept; --resume goes on from there"
        )

    def _lost(self, number: int, task: Task, reason: str, *, alone: bool = False) -> None:
        if self._queue.lost(number, task.number, reason, alone=alone) is not None:
            self._give_up(number, task)

    def _give_up(self, number: int, task: Task) -> None:
        tries = "; ".join(f"try {index}: {text}" for index, text in enumerate(task.failures, start=1))
        self._write(number, task, {"error": tries})

    def _finish(self, number: int, task: Task, outcome: Mapping[str, Any]) -> None:
        self._queue.finished(number, task.number)
        self._write(number, task, outcome)

    def _write(self, number: int, task: Task, outcome: Mapping[str, Any]) -> None:
        entry = task.entry
        self._results.append(
            {
                "id": entry.id,
                "line": entry.line,
                **outcome,
                "instance": number,
                "host": self._pool.host(number),
                "tries": task.tries,
                "started": round(task.sent_at, 3),
                "ended": round(time.time(), 3),
                "digest": entry.digest,
            }
        )
        self._progress.count(None if "error" in outcome else outcome["new_tokens"])
        if "error" in outcome:
            self._progress.say(f"id {json.dumps(entry.id)} (line {entry.line}) failed: {outcome['error']}")

    @property
    def _too_long(self) -> str:
        return f"gave no result within {self._timeout:g} s (--timeout)"

    def _end_overdue(self) -> None:
        """Cancel prompts that take too long; where that has no effect, end their instance."""
        if self._timeout is None:
            return
        now = time.monotonic()
        for number, instance in enumerate(self._instances):
            for task in self._queue.in_flight(number) if not instance.timed_out else ():
                if task.deadline is None or now < task.deadline:
                    continue
                if task.cancelled:
                    instance.timed_out = True
                    self._pool.end(number, self._too_long)
                    break
                task.cancelled = True
                task.deadline = now + max(CANCEL_SECONDS, min(CANCEL_SHARE * self._timeout, CANCEL_MOST))
                self._pool.cancel(number, task.number)

    def _keep_what_is_nearly_done(self) -> None:
        """Begin no other prompt, keep what ends within the grace, and bring every record to disk."""
        deadline = time.monotonic() + GRACE_SECONDS
        while self._busy() and time.monotonic() < deadline and not self._stop.twice:
            self._take(self._pool.wait(TICK_SECONDS / 4))
        self._results.sync(now=True)

    def _busy(self) -> bool:
        return any(instance.alive and self._queue.in_flight(i) for i, instance in enumerate(self._instances))
