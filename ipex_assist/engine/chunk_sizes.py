"""What a pass may hold: the limits of an engine, and prompt rows that others share or may want to share. No torch."""

from __future__ import annotations

from dataclasses import dataclass

PASSES = 4.0  # a pass with a prompt chunk may take this many times as long as one without
# And as long as a chunk whose rows are nearly as fast as those of the fastest, up to this many seconds: four passes of
# a small model have room for few rows, each of which takes longer, and nobody reads more than 20 tokens a second.
LEAST_S = 0.05
# Where nobody has come for long, a pass of a dense model keeps to these seconds, or to a chunk whose rows are as fast
# as those of the fastest: the first who comes waits for no more, and whoever is alone for nobody.
ALONE_S = 0.1
NEARLY, ALONE_NEARLY = 1.15, 1.03  # times as long as a row of the fastest chunks: beside streams, and alone
FEWEST_ROWS = 16  # of a chunk at least, so that every prompt makes progress
ROWS = 512  # of a pass, where the model's passes have room for fewer: then it is several of them
REMEMBERED = 16  # passes with chunks, after which a pass without one is timed again
FIRST_ROWS = 32  # of the first chunk, before anything was measured
NEAR = 1024  # positions up to which attention's part of a row's time is not told apart from the rest
_FORGET = 0.3  # weight of the latest pass in the moving averages


@dataclass(frozen=True)
class EngineLimits:
    """Limits of an engine. requests: running at a time. rows: of one pass; None: as many as the model's passes have
    room for, and ROWS at least. max_pass_s: seconds of a pass with a prompt chunk in which other requests decode; None:
    PASSES times a pass without a chunk, and as long as a chunk of nearly the fastest rows, up to LEAST_S.
    """

    requests: int = 256
    rows: int | None = None
    max_pass_s: float | None = None


class ChunkSizes:
    """Chooses chunk sizes from measured seconds: of a pass without a chunk, and of each prompt row on top of it.

    A row takes longer the fewer are in its chunk, most of all in a mixture, whose experts a chunk of few rows reads as
    one of thousands does; so rows are told apart by the bit length of how many there were. And it takes longer the
    more positions are before it, so that a chunk of a long prompt has fewer rows than one of a short prompt in the same
    time.
    """

    def __init__(self, limits: EngineLimits, pass_rows: int = 0) -> None:
        """pass_rows: of the model's passes."""
        self._limits = limits
        self._rows = limits.rows or max(ROWS, pass_rows)
        self._dense = True
        self._plain_s: dict[int, float] = {}  # by the bit length of the number of decoding requests
        self._row_s: dict[int, float] = {}  # of a row at the beginning of a prompt, by that of the chunk's rows
        self._position_s = 0.0  # for each position before a row
        self._since_plain = 0  # passes with chunks

    def most_rows(self, decoding: int) -> int:
        """Return the rows that a pass may have beside `decoding` requests, whatever they take."""
        return max(FEWEST_ROWS, self._rows - decoding)

    def rows_alone(self, position: int) -> int:
        """Return the rows of prompts, the first read up to `position`, in a pass for which nobody waits."""
        most = self.most_rows(0)
        if not self._row_s or not self._dense:
            return most
        rows = max(FEWEST_ROWS, int(ALONE_S / max(self.row_s(position), 1e-9)))
        while rows < most and self._is_slow(rows.bit_length(), ALONE_NEARLY):
            rows = 1 << rows.bit_length()
        return min(most, rows)

    def _is_slow(self, size: int, nearly: float = NEARLY) -> bool:
        """Whether rows of chunks of this bit length are known to take longer than nearly the fastest."""
        return self._row_s.get(size, 0.0) > nearly * min(self._row_s.values())

    def _efficient_s(self) -> float:
        """Seconds of the smallest chunk of nearly the fastest rows, or of a smaller one that was not measured."""
        if not self._row_s:
            return LEAST_S
        size = min(size for size in self._row_s if not self._is_slow(size))
        rows = 1 << size - 1
        return self._row_s[size] * (NEARLY * rows if size - 1 in self._row_s else rows - 1)

    def seconds(self, decoding: int, company: bool = False, streamed: bool = True) -> float | None:
        """Return the seconds of prompt rows in the next pass; 0 to time a pass without any, None if nobody waits.

        company: whether a request may come at any moment that should not wait for a long pass, though none decodes.
        streamed: whether tokens of those that decode are read as they come.
        """
        plain = self._plain_s.get(decoding.bit_length())
        if not decoding:
            plain = min(self._plain_s.values(), default=None)
            if not company or plain is None or not self._row_s:
                return None
        elif plain is None or self._since_plain >= REMEMBERED:
            return 0.0
        elif not streamed:
            return None
        least = min(LEAST_S, plain + self._efficient_s())
        return max((self._limits.max_pass_s or max(PASSES * plain, least)) - plain, 1e-9)

    def rows_within(self, seconds: float, position: int) -> int:
        """Return how many rows of a prompt that was read up to `position` fit into some seconds."""
        if not self._row_s:
            return FIRST_ROWS
        for size in range(max(self._rows.bit_length(), *self._row_s), 0, -1):
            fitting = int(seconds / max(self.row_s(position, (1 << size) - 1), 1e-9))
            if fitting >= 1 << size - 1:
                return min(fitting, (1 << size) - 1)
        return 0

    def row_s(self, position: int, rows: int = 0) -> float:
        """Return the seconds of a row with `position` tokens before it, in a chunk of `rows`; 0: of the fastest."""
        if not self._row_s:
            return self._position_s * position
        first = self._first_row_s(rows.bit_length()) if rows else min(self._row_s.values())
        return first + self._position_s * position

    def _first_row_s(self, size: int) -> float:
        """Of a row at the beginning of a prompt in chunks of a bit length, which may not have been measured.

        It takes no longer than in a smaller chunk, and all no longer than a larger chunk; rows of a dense model take as
        long as in that.
        """
        if size in self._row_s:
            return self._row_s[size]
        above = min((each for each in self._row_s if each > size), default=None)
        below = max((each for each in self._row_s if each < size), default=None)
        limits = [] if below is None else [self._row_s[below]]
        if above is not None:
            limits.append(self._row_s[above] * (1 if self._dense else 1 << above - size))
        return min(limits)

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
        row_s, position, size = max(0.0, seconds - plain) / read, positions / read, read.bit_length()
        if position < NEAR or size not in self._row_s:
            self._row_s[size] = _mixed(self._row_s.get(size), max(0.0, row_s - self._position_s * position))
        else:
            self._position_s = _mixed(self._position_s, max(0.0, row_s - self._row_s[size]) / position)


def _mixed(known: float | None, latest: float) -> float:
    return latest if known is None else (1 - _FORGET) * known + _FORGET * latest
