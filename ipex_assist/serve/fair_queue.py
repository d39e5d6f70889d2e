"""The queue of texts that wait for an engine, fair between the requests that they belong to.

A request may have thousands of texts, and one of them may run for minutes. So if every slot is taken and the request
whose turn it is runs at least two texts fewer than the request that runs most, the youngest text of the latter is
paused, unless its turn would come at once again, by its priority or its API key. Its engine keeps the tokens and frees
their memory. When the text's turn comes again, the tokens are read again, mostly from the prefix cache, and the output
is the same. The youngest text has the fewest tokens to read. With a difference of two each pause brings the counts
closer together, so requests never pause each other in turn, and a request that runs only one text is never paused.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence

from ipex_assist.serve.backend import RequestShare
from ipex_assist.serve.engine_slot import ActiveRequest


class _Turns:
    """Whose turn it is beside texts that run: of several waiting ones that with the least."""

    def __init__(self, running: Sequence[ActiveRequest]) -> None:
        self.counts = Counter(active.request.share for active in running)
        self._callers = Counter(active.request.share.caller for active in running)

    def of(self, active: ActiveRequest) -> tuple[int, int, int]:
        """By its API key, its priority and its share."""
        share = active.request.share
        return self._callers[share.caller], active.request.options.priority, self.counts[share]


class FairQueue:
    """Waiting texts by the share that they count against; within a share they keep their order.

    Next is a text of the API key with the fewest running texts, among those by priority, and then of the share with
    the fewest; of equals, the one that has waited longest since its last
    text left the queue. So a request with thousands of texts takes every free slot while it is alone, and gives slots
    to others as long as they have less.
    """

    def __init__(self) -> None:
        self._shares: dict[RequestShare, deque[ActiveRequest]] = {}  # in the order of their turns; none is empty
        self._texts = 0

    def __len__(self) -> int:
        return self._texts

    @property
    def shares(self) -> int:
        """How many requests have waiting texts."""
        return len(self._shares)

    def __contains__(self, share: RequestShare) -> bool:
        return share in self._shares

    def put(self, active: ActiveRequest) -> None:
        """Add a text."""
        self._shares.setdefault(active.request.share, deque()).append(active)
        self._texts += 1

    def put_back(self, active: ActiveRequest) -> None:
        """Add a text that was running: its share continues with it, and is next among equals."""
        share = active.request.share
        texts = self._shares.pop(share, deque())
        texts.appendleft(active)
        self._shares = {share: texts, **self._shares}
        self._texts += 1

    def next(self, running: Sequence[ActiveRequest], slots: Collection[int] = ()) -> ActiveRequest:
        """The text whose turn it is; it stays in the queue. At least one must wait.

        running: the texts that run. slots: those with room; a text that is paused in another slot comes after the rest
        of its share.
        """
        texts = self._first(_Turns(running))
        return next((active for active in texts if not active.paused or active.slot in slots), texts[0])

    def _first(self, turns: _Turns) -> deque[ActiveRequest]:
        """The texts of the share whose turn it is."""
        return min(self._shares.values(), key=lambda texts: turns.of(texts[0]))

    def to_pause(self, running: Sequence[ActiveRequest]) -> ActiveRequest | None:
        """The running text that should give its place to the next one, if any should. At least one must wait."""
        turns = _Turns(running)
        first = self._first(turns)[0]
        share, most = max(turns.counts.items(), key=lambda each: each[1], default=(None, 0))
        if most - turns.counts[first.request.share] < 2:
            return None
        paused = max((active for active in running if active.request.share is share), key=lambda active: active.number)
        then = _Turns([active for active in running if active is not paused])
        # Else it would be resumed, and paused again, without end.
        return paused if then.of(first) < then.of(paused) else None

    def take(self, active: ActiveRequest) -> None:
        """Remove the text that `next` returned; its share is last among equals now."""
        self.remove(active)
        if (texts := self._shares.pop(active.request.share, None)) is not None:
            self._shares[active.request.share] = texts

    def remove(self, active: ActiveRequest) -> None:
        """Remove a text, wherever it is."""
        share = active.request.share
        self._shares[share].remove(active)
        self._texts -= 1
        if not self._shares[share]:
            del self._shares[share]
