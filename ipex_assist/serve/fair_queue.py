"""The queue of texts that wait for an engine, fair between the requests that they belong to.

A request may have thousands of texts, and one of them may run for minutes. So if every slot is taken and a waiting
request runs at least two texts fewer than the request that runs most, the youngest text of the latter is paused. Its
engine keeps the tokens and frees their memory. When the text's turn comes again, the tokens are read again, mostly from
the prefix cache, and the output is the same. The youngest text has the fewest tokens to read. With a difference of two
each pause brings the counts closer together, so requests never pause each other in turn, and a request that runs only
one text is never paused.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Sequence

from ipex_assist.serve.backend import RequestShare
from ipex_assist.serve.engine_slot import ActiveRequest


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
        counts = Counter(active.request.share for active in running)
        callers = Counter(active.request.share.caller for active in running)

        def turn(share: RequestShare) -> tuple[int, int, int]:
            return callers[share.caller], self._shares[share][0].request.options.priority, counts[share]

        texts = self._shares[min(self._shares, key=turn)]
        return next((active for active in texts if not active.paused or active.slot in slots), texts[0])

    def to_pause(self, running: Sequence[ActiveRequest]) -> ActiveRequest | None:
        """The running text that should give its place to the next one, if any should. At least one must wait."""
        counts = Counter(active.request.share for active in running)
        share, most = max(counts.items(), key=lambda each: each[1], default=(None, 0))
        if most - min(counts[waiting] for waiting in self._shares) < 2:
            return None
        return max((active for active in running if active.request.share is share), key=lambda active: active.number)

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
