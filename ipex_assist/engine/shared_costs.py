"""What drafting costs a text that shares its passes with others. No torch here.

With one text these are the pair's costs as they are. With n texts a plain pass of n rows brings each of them a token,
so that each pays its share of it; where m of them draft, one more drafted token each makes the pass m rows larger. So
the schedule that finds the best draft for one text finds it for many: what all of them draft is what lets the pass
bring the most tokens a second.
"""

from __future__ import annotations

from ipex_assist.speculative.costs import Costs
from ipex_assist.speculative.live_costs import CostFindings, LiveCosts
from ipex_assist.speculative.schedule import LONGEST_DRAFT, RoundResult


class SharedCosts:
    """The costs of one text's part of a pass; the engine says who takes part, and hears what passes take."""

    def __init__(self, calibrated: Costs) -> None:
        self._live = LiveCosts(calibrated)
        self._texts, self._drafters, self._others = 1, 1, 0
        self._costs: Costs | None = None

    def share(self, texts: int, drafters: int, others: int = 0) -> None:
        """Say what the pass to come holds: texts that go on, those of them that may draft, rows of prompts besides."""
        self._texts, self._drafters, self._others = max(1, texts), max(1, drafters), others
        self._costs = None

    @property
    def costs(self) -> Costs:
        """Of a text whose draft source reads the text."""
        if self._costs is None:
            self._costs = self._shared()
        return self._costs

    @property
    def copying(self) -> Costs:
        """Of a text whose draft source costs nothing."""
        return Costs(self.costs.verify)

    @property
    def pass_s(self) -> float:
        """Seconds of a pass in which nothing is drafted."""
        rows = self._texts + self._others
        return _pass(self._live.costs_from(rows), rows)

    def observe(self, outcome: RoundResult, read: int) -> None:
        """Take in a text's round, where it was alone; of passes of several the engine tells as a whole."""
        if self._texts == 1 and not self._others:
            self._live.observe(outcome, read)
            self._costs = None

    def observe_pass(self, rows: int, seconds: float, drafted: list[int], draft_s: float) -> None:
        """Take in a pass of `rows` rows of several texts, and the drafting of so many tokens for each before it."""
        if self._texts > 1:
            self._live.observe_pass(rows, seconds, _drafting(self._live.calibrated, drafted), draft_s)
            self._costs = None

    def findings(self, untried: bool) -> CostFindings:
        """Return what the passes so far taught about the calibrated costs."""
        return self._live.findings(untried)

    def _shared(self) -> Costs:
        texts, drafters = self._texts, self._drafters
        if texts == 1 and not self._others:
            return self._live.costs
        base = texts + self._others
        live = self._live.costs_from(base)
        plain = _pass(live, base)
        verify = tuple(
            plain / texts + (_pass(live, base + drafters * more) - plain) / drafters
            for more in range(LONGEST_DRAFT + 1)
        )
        return Costs(verify, _draft_pass(live, drafters) / drafters, live.rows, live.read)


def _pass(costs: Costs, rows: int) -> float:
    """Seconds of a pass of the target; beyond what was measured all rows are taken to cost alike, which is the most."""
    known = max(len(costs.verify), LONGEST_DRAFT + 1)
    seconds = costs.verifying(min(rows, known))
    return seconds * max(1.0, rows / known)


def _drafting(costs: Costs, tokens: list[int]) -> float:
    """Seconds to draft so many tokens for each of several texts: a pass of the draft for each depth."""
    return sum(_draft_pass(costs, sum(count > depth for count in tokens)) for depth in range(max(tokens, default=0)))


def _draft_pass(costs: Costs, texts: int) -> float:
    """Seconds of a pass of the draft in which each of `texts` texts has one row."""
    if texts <= 1 or not costs.rows:
        return costs.draft if texts else 0.0
    known = len(costs.rows)
    grown = costs.rows[min(texts, known) - 1] / costs.rows[0]
    if texts > known:
        grown += (texts - known) * max(0.0, costs.rows[-1] / costs.rows[0] - 1) / max(1, known - 1)
    return costs.draft * grown
