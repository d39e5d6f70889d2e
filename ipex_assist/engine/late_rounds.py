"""Rounds of plain steps, which reach their owners when the next pass has begun."""

from __future__ import annotations

import time
from collections.abc import Iterable

from ipex_assist.engine.next_steps import PreparedPass
from ipex_assist.engine.request import Request
from ipex_assist.executors.interface import Meanwhile
from ipex_assist.speculative.round import Round


class LateRounds:
    """The tokens of a pass whose rounds are made beside the next one, where something is done beside passes at all."""

    def __init__(self) -> None:
        self._late = False
        self._steps: list[tuple[Request, int, float | None]] = []
        self._seconds = self._ended = 0.0

    def begin(self, seconds: float) -> None:
        """A pass of `seconds` has ended, whose tokens are taken next."""
        self.tell()
        self._seconds, self._ended = seconds, time.perf_counter()

    def take(self, request: Request, token: int, plain_s: float | None) -> bool:
        """Give a request the token of a step, of which its owner is told now or beside the next pass.

        plain_s: as of a round. Returns whether it is the last token.
        """
        request.tokens.append(token)
        self._steps.append((request, token, plain_s))
        if not self._late:
            self.tell()
        return len(request.tokens) >= request.end or token in request.eos

    def take_all(self, made: PreparedPass, plain_s: Iterable[float | None]) -> list[Request]:
        """`take` for all requests of a pass; returns those of which it is the last token."""
        requests, tokens = made.requests, made.tokens
        for take, token in zip(made.takes, tokens, strict=True):
            take(token)
        self._steps += zip(requests, tokens, plain_s, strict=False)
        if not self._late:
            self.tell()
        if made.ends_nothing:
            return []
        of_each = zip(requests, tokens, strict=True)
        return [request for request, token in of_each if request.remaining <= 0 or token in request.eos]

    def tell(self) -> None:
        """Tell all owners of what was taken."""
        if self._steps:
            steps, self._steps = self._steps, []
            for request, token, plain_s in steps:
                made = Round([token], target_s=self._seconds, plain_s=plain_s, choose_s=0.0)
                request.outbox.put(made, self._ended)

    def beside(self, meanwhile: Meanwhile | None) -> Meanwhile | None:
        """What is to be called while a pass runs, in place of `meanwhile`."""
        self._late = meanwhile is not None
        if meanwhile is None:
            return None

        def tell_and_go_on() -> bool:
            self.tell()
            return meanwhile()

        return tell_and_go_on
