"""Who reads how much of a prompt in a pass: the shortest remaining prompt first, and the oldest in every pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ipex_assist.engine.chunk_sizes import FEWEST_ROWS, ChunkSizes
from ipex_assist.engine.request import Request

TURNS = 4  # of so many passes one is the oldest prompt's first, so that nobody waits for ever
ENDS = 2.0  # times its seconds may a pass take that ends a prompt, rather than that another pass does
COMPANY_S = 60.0  # after which a request that reads its prompt alone is taken to stay alone


class PromptShares:
    """Divides the room for prompts in each pass.

    In most passes the prompt comes first that will take the least time yet, among those of the highest priority, so
    that a short one does not wait for a long one. In the others, and in what is left, the oldest comes first: of the
    API key that has read the least, so that many requests of one key are not many shares.
    """

    def __init__(self, chunks: ChunkSizes, clock: Callable[[], float]) -> None:
        self._chunks, self._clock = chunks, clock
        self._read: dict[str | None, float] = {}  # tokens that those with prompts have read, by their keys
        self._last_company = float("-inf")
        self._turn = 0

    def divide(self, prompts: Sequence[Request], decoding: int, streamed: bool = True) -> list[tuple[Request, int]]:
        """Return the rows of each prompt in the next pass beside `decoding` requests; none to time a pass without.

        streamed: whether tokens of any of these are read as they come.
        """
        if decoding or len(prompts) > 1:
            self._last_company = self._clock()
        company = self._clock() - self._last_company < COMPANY_S
        seconds, most = self._chunks.seconds(decoding, company, streamed), self._chunks.most_rows(decoding)
        if seconds == 0.0:
            return []
        oldest = self._oldest(prompts)
        shortest = min(prompts, key=self._length)
        self._turn = (self._turn + 1) % TURNS if oldest is not shortest else 0
        first = [oldest, shortest] if self._turn == TURNS - 1 else [shortest, oldest]
        if seconds is None:
            most = min(most, self._chunks.rows_alone(first[0].position))
        taken: dict[Request, int] = {}
        for request in dict.fromkeys([*first, *sorted(prompts, key=lambda each: each.rank)]):
            room = most
            if seconds is not None:
                ends = request is first[0] and request.pending <= self._chunks.rows_within(
                    ENDS * seconds, request.position
                )
                room = min(room, request.pending if ends else self._chunks.rows_within(seconds, request.position))
            rows = min(room if taken else max(room, FEWEST_ROWS), request.pending)
            if rows <= 0:
                break
            taken[request] = rows
            most -= rows
            if seconds is not None:
                seconds -= rows * self._chunks.row_s(request.position, rows)
        return list(taken.items())

    def _length(self, request: Request) -> tuple[int, float, int]:
        """Its place among others: by priority, then by the time that its prompt will take yet."""
        row_s = self._chunks.row_s(request.position) or 1.0
        return request.priority, request.pending * row_s, request.number

    def count(self, request: Request, rows: int) -> None:
        """Note that some rows of a prompt were read."""
        if request.share in self._read:
            self._read[request.share] += rows

    def _oldest(self, prompts: Sequence[Request]) -> Request:
        """The oldest prompt of the key that has read the least; a key that comes begins with what the least has."""
        present = {request.share for request in prompts}
        self._read = {share: read for share, read in self._read.items() if share in present}
        least = min(self._read.values(), default=0.0)
        for share in present:
            self._read.setdefault(share, least)
        return min(prompts, key=lambda each: (self._read[each.share], each.number))
