"""The queue of texts that wait for an engine, fair between the requests that they belong to."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from ipex_assist.serve.backend import RequestShare
from ipex_assist.serve.engine_slot import ActiveRequest


class FairQueue:
    """Waiting texts by the share that they count against; within a share they keep their order.

    Next is a text of the share with the fewest running texts; of equals, the one that has waited longest since its last
    text left the queue. So a request with thousands of texts takes every free slot while it is alone, and gives each
    that becomes free to others as long as they have less.
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
        """Add a text that was running: it is its share's next, and its share is next among equals."""
        share = active.request.share
        texts = self._shares.pop(share, deque())
        texts.appendleft(active)
        self._shares = {share: texts, **self._shares}
        self._texts += 1

    def next(self, running: Iterable[ActiveRequest]) -> ActiveRequest:
        """The text whose turn it is; it stays in the queue. running: the texts in engines. At least one must wait."""
        counts = Counter(active.request.share for active in running)
        return self._shares[min(self._shares, key=counts.__getitem__)][0]

    def take(self, active: ActiveRequest) -> None:
        """Remove the text that `next` returned, and let its share be last among equals."""
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
