"""What a pass may hold: the limits of an engine, and prompt rows that others share or may want to share. No torch."""

from __future__ import annotations

from dataclasses import dataclass

PASSES = 4.0  # a pass with a prompt chunk may take this many times as long as one without
# And this many seconds in any case: nobody reads more than 20 tokens a second, and chunks of few rows, to which four
# passes of a small model come, cost half as much again for each row.
LEAST_S = 0.05
# Where nobody has come for long, a pass of a dense model keeps to these seconds, or to these rows where they take
# longer, in which it reaches the speed of larger ones: the first who comes waits for no more.
ALONE_S, ALONE_ROWS = 0.1, 128
FEWEST_ROWS = 16  # of a chunk at least, so that every prompt makes progress
REMEMBERED = 16  # passes with chunks, after which a pass without one is timed again
FIRST_ROWS = 32  # of the first chunk, before anything was measured
NEAR = 1024  # positions up to which attention's part of a row's time is not told apart from the rest
_FORGET = 0.3  # weight of the latest pass in the moving averages


@dataclass(frozen=True)
class EngineLimits:
    """Limits of an engine. requests: running at a time. rows: of one pass. max_pass_s: seconds of a pass with a prompt
    chunk in which other requests decode; None: PASSES times a pass without a chunk, and LEAST_S at least.
    """

    requests: int = 256
    rows: int = 512
    max_pass_s: float | None = None


class ChunkSizes:
    """Chooses chunk sizes from measured seconds: of a pass without a chunk, and of each prompt row on top of it.

    A row takes longer the more positions are before it, so that a chunk of a long prompt has fewer rows than one of a
    short prompt in the same time.
    """

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self._dense = True
        self._plain_s: dict[int, float] = {}  # by the bit length of the number of decoding requests
        self._row_s: float | None = None  # of a row at the beginning of a prompt
        self._position_s = 0.0  # for each position before a row
        self._since_plain = 0  # passes with chunks

    def most_rows(self, decoding: int) -> int:
        """Return the rows that a pass may have beside `decoding` requests, whatever they take."""
        return max(FEWEST_ROWS, self._limits.rows - decoding)

    def rows_alone(self, position: int) -> int:
        """Return the rows of a prompt that was read up to `position` in a pass for which nobody waits."""
        most = self.most_rows(0)
        if self._row_s is None or not self._dense:
            return most
        return min(most, max(ALONE_ROWS, self.rows_within(ALONE_S, position)))

    def seconds(self, decoding: int, company: bool = False) -> float | None:
        """Return the seconds of prompt rows in the next pass; 0 to time a pass without any, None if nobody waits.

        company: whether a request may come at any moment that should not wait for a long pass, though none decodes.
        """
        plain = self._plain_s.get(decoding.bit_length())
        if not decoding:
            plain = min(self._plain_s.values(), default=None)
            if not company or plain is None or self._row_s is None:
                return None
        elif plain is None or self._since_plain >= REMEMBERED:
            return 0.0
        return max((self._limits.max_pass_s or max(PASSES * plain, LEAST_S)) - plain, 1e-9)

    def rows_within(self, seconds: float, position: int) -> int:
        """Return how many rows of a prompt that was read up to `position` fit into some seconds."""
        if self._row_s is None:
            return FIRST_ROWS
        return int(seconds / max(self.row_s(position), 1e-9))

    def row_s(self, position: int) -> float:
        """Return the seconds of a row with `position` tokens before it."""
        return (self._row_s or 0.0) + self._position_s * position

    def observe(
        self, read: int, decoding: int, seconds: float, positions: int = 0, *, experts: float | None = None
    ) -> None:
        """Record a pass of `seconds` with `read` prompt rows beside `decoding` requests.

        positions: the tokens before each of these rows, added up. experts: that it read, of a mixture, whose passes
        should have as many rows as they may.
        """
        self._dense = experts is None
        if not read:
            requests, self._since_plain = decoding.bit_length(), 0
            self._plain_s[requests] = _mixed(self._plain_s.get(requests), seconds)
            return
        self._since_plain += 1
        if read < FEWEST_ROWS:
            return
        plain = self._plain_s.get(decoding.bit_length(), 0.0) if decoding else 0.0
        row_s, position = max(0.0, seconds - plain) / read, positions / read
        if self._row_s is None or position < NEAR:
            self._row_s = _mixed(self._row_s, max(0.0, row_s - self._position_s * position))
        else:
            self._position_s = _mixed(self._position_s, max(0.0, row_s - self._row_s) / position)


def _mixed(known: float | None, latest: float) -> float:
    return latest if known is None else (1 - _FORGET) * known + _FORGET * latest
