"""Costs of a pass that several requests share. No torch here."""

from __future__ import annotations

import numpy as np

from ipex_assist.speculative.costs.acceptance import Array
from ipex_assist.speculative.costs.by_rows import seconds_at_most, seconds_of
from ipex_assist.speculative.costs.pair_costs import Costs


class BatchCosts:
    """Current costs of a pass in which `requests` requests decode beside `prefill_rows` prompt rows."""

    def __init__(self, costs: Costs, requests: int, prefill_rows: int = 0) -> None:
        self.requests, self.base = requests, requests + prefill_rows
        self.now, self._verify = costs, np.array(costs.verify)
        self._draft = np.array([0.0, *(_draft_pass(costs, count) for count in range(1, requests + 1))])
        self.plain_s = float(self.pass_s(requests))  # seconds of a pass without drafts and prompts
        self.base_s = float(self.pass_s(self.base))  # seconds of a pass without drafts, with the prompt rows
        self._mean_row_s = (self.base_s - float(self._verify[0])) / max(1, self.base - 1)

    def pass_s(self, rows: float | Array) -> Array:
        """Return the target's seconds."""
        return seconds_at_most(self._verify, rows)

    def more_s(self, rows: float | Array) -> Array:
        """Return the seconds that `rows` drafted rows add to the pass.

        Beside prompt rows no less than as many rows add on average: chunks have any number of rows, so that steps of
        the cost are met as often as not, and such passes do not correct what calibration says.
        """
        more = self.pass_s(self.base + rows) - self.base_s
        return more if self.base == self.requests else np.maximum(more, self._mean_row_s * rows)

    def block_s(self, requests: float) -> float:
        """Return the seconds of a pass that drafts a block for each of `requests`; 0 where drafts are made by steps."""
        return self.now.blocks(requests)

    def draft_s(self, requests: float | Array) -> Array:
        """Return the seconds of a draft pass with a row for each of `requests`; below one, that share of it."""
        if isinstance(requests, int) and 0 <= requests < len(self._draft):
            one: Array = self._draft[requests]
            return one
        seconds: Array = np.interp(requests, np.arange(len(self._draft)), self._draft)
        return seconds


def _draft_pass(costs: Costs, requests: int) -> float:
    if not costs.rows:
        return costs.draft
    return costs.draft * seconds_of(costs.rows, requests) / costs.rows[0]
