"""Hidden states of the target's passes for requests' draft heads, and heads' passes over prompts. No torch here."""

from __future__ import annotations

from collections.abc import Callable

from ipex_assist.engine.request import Request
from ipex_assist.engine.scheduled_request import ScheduledRequest
from ipex_assist.executors.blocks import NoBlocksError
from ipex_assist.speculative.sources.head_assistant import HeadAssistant
from ipex_assist.speculative.sources.hidden_window import HiddenStates

# Whether a request's head should read this many rows before it drafts.
Repays = Callable[[Request, int], bool]


class HeadReading:
    """Gives heads what a pass computed. Rows that cannot wait, of prompts mostly, are read now, or dropped for good.

    A head reads at a fraction of the target's cost, one layer instead of all, but not for nothing: only where its
    schedule expects drafts to repay all of it.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._crowded: list[tuple[Request, HeadAssistant]] = []

    def observe(self, scheduled: ScheduledRequest, first: int, hidden: HiddenStates | None) -> None:
        """Give a request's head the hidden states of the rows that stay, of positions from `first` on."""
        head = scheduled.head
        if head is not None and hidden is not None and len(hidden) and head.observe(first, hidden):
            self._crowded.append((scheduled.request, head))

    def read(self, repays: Repays) -> list[tuple[Request, float]]:
        """Let heads read what cannot wait, in one pass, or drop it. Returns who read, and each one's share of seconds.

        Without free blocks for the heads nothing is read.
        """
        crowded, self._crowded = self._crowded, []
        reading = []
        for request, head in crowded:
            if request.finished:
                continue
            if head.reads_ahead is None:
                head.reads_ahead = repays(request, len(request.tokens) - 1 - head.first_known)
            rows = head.waiting(request.tokens) if head.reads_ahead else None
            if rows is None:
                head.drop()
            else:
                reading.append((request, head, rows))
        if not reading:
            return []
        started, count = self._clock(), sum(len(rows.tokens) for _, _, rows in reading)
        try:
            reading[0][1].model.forward([rows for _, _, rows in reading])
        except NoBlocksError:
            for _, head, _ in reading:
                head.drop()
            return []
        seconds = self._clock() - started
        for _, head, _ in reading:
            head.was_read()
        return [(request, seconds * len(rows.tokens) / count) for request, _, rows in reading]
