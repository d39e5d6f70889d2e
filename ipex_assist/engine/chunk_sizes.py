"""What a pass may hold: the limits of an engine, and prompt rows beside decoding requests. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

PASSES = 4.0  # a pass with a prompt chunk may take this many times as long as one without
FEWEST_ROWS = 16  # of a chunk at least, so that every prompt makes progress
REMEMBERED = 16  # passes with chunks, after which a pass without one is timed again
FIRST_ROWS = 32  # of the first chunk, before anything was measured
_FORGET = 0.3  # weight of the latest pass in the moving averages


@dataclass(frozen=True)
class EngineLimits:
    """Limits of an engine. requests: running at a time. rows: of one pass. max_pass_s: seconds of a pass with a prompt
    chunk in which other requests decode; None: PASSES times a pass without a chunk.
    """

    requests: int = 256
    rows: int = 512
    max_pass_s: float | None = None


class ChunkSizes:
    """Chooses chunk sizes from measured seconds: of a pass without a chunk, and of each prompt row on top of it."""

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self._plain_s: dict[int, float] = {}  # by the bit length of the number of decoding requests
        self._row_s: float | None = None
        self._since_plain = 0  # passes with chunks

    def rows(self, decoding: int) -> int:
        """Return the prompt rows of the next pass beside `decoding` requests; 0 to time a pass without any."""
        most = max(FEWEST_ROWS, self._limits.rows - decoding)
        if not decoding:
            return most
        plain = self._plain_s.get(decoding.bit_length())
        if plain is None or self._since_plain >= REMEMBERED:
            return 0
        if self._row_s is None:
            return min(FIRST_ROWS, most)
        limit = self._limits.max_pass_s or PASSES * plain
        return int(min(most, max(FEWEST_ROWS, (limit - plain) / max(self._row_s, 1e-9))))

    def observe(self, read: int, decoding: int, seconds: float) -> None:
        """Record a pass of `seconds` with `read` prompt rows beside `decoding` requests."""
        if not read:
            requests, self._since_plain = decoding.bit_length(), 0
            self._plain_s[requests] = _mixed(self._plain_s.get(requests), seconds)
            return
        self._since_plain += 1
        if read >= FEWEST_ROWS:
            plain = self._plain_s.get(decoding.bit_length(), 0.0)
            self._row_s = _mixed(self._row_s, max(0.0, seconds - plain) / read)


def _mixed(known: float | None, latest: float) -> float:
    return latest if known is None else (1 - _FORGET) * known + _FORGET * latest
