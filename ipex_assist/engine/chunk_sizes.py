"""How much of a prompt goes into a pass that other texts wait for. No torch here."""

from __future__ import annotations

from ipex_assist.engine.limits import EngineLimits

PASSES = 4.0  # a pass with a chunk may take so many times as long as one without
FEWEST_ROWS = 16  # that a chunk has at least: it must come to an end
REMEMBERED = 16  # passes with chunks, after which one without tells how fast the machine is by now
FIRST_ROWS = 32  # of the first chunk, before anything is known
_FORGET = 0.3  # weight of the latest pass in what is known


class ChunkSizes:
    """Learns what a pass takes without a chunk, and each row of one, and chooses the chunk by it."""

    def __init__(self, limits: EngineLimits) -> None:
        self._limits = limits
        self._plain_s: dict[int, float] = {}  # by the number of texts, in powers of two
        self._row_s: float | None = None
        self._since_plain = 0  # passes with chunks

    def rows(self, decoding: int) -> int:
        """Rows of prompts in the pass to come, beside `going` texts; 0 where one without must tell what that takes."""
        most = max(FEWEST_ROWS, self._limits.rows - decoding)
        if not decoding:
            return most
        plain = self._plain_s.get(decoding.bit_length())
        if plain is None or self._since_plain >= REMEMBERED:
            return 0  # the pass without a chunk tells
        if self._row_s is None:
            return min(FIRST_ROWS, most)
        limit = self._limits.max_pass_s or PASSES * plain
        return int(min(most, max(FEWEST_ROWS, (limit - plain) / max(self._row_s, 1e-9))))

    def observe(self, read: int, decoding: int, seconds: float) -> None:
        """Hear of a pass with `read` rows of prompts beside `going` texts."""
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
