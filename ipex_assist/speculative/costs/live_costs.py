"""Current costs of an assistant: those of its drafts, and of the target's passes, which it shares with others."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ipex_assist.speculative.costs.draft_errors import DraftErrors
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.costs.pass_times import PassTimes
from ipex_assist.speculative.costs.target_costs import MOST_SURPRISE, NOISE, TargetCosts


@dataclass(frozen=True)
class CostFindings:
    """What a request's rounds say about the costs it started with.

    before, costs: the costs at its start, and as corrected by its passes. seconds: of all its rounds. untried: the
    costs prevented every draft, so the draft's costs were not observed. contradicted: passes were faster than the costs
    allow.
    """

    before: Costs
    costs: Costs
    seconds: float
    untried: bool
    contradicted: bool


class LiveCosts:
    """The calibrated costs, corrected by measured rounds: see TargetCosts of passes, DraftErrors of drafts.

    target: of the first assistant's costs, for those of another one, which drafts in turn with it: passes of the target
    are learnt in one place, and stored with the first's costs.
    """

    def __init__(self, calibrated: Costs, target: TargetCosts | None = None) -> None:
        self.calibrated = calibrated
        self.target, self._stores_target = target or TargetCosts(calibrated), target is None
        self._plausible, self._draft_errors = calibrated.plausible(), DraftErrors()
        self._update()

    @property
    def costs(self) -> Costs:
        """The current costs."""
        if self._costs.verify is not self.target.verify:
            self._update()
        return self._costs

    def _update(self) -> None:
        drafts = self._draft_errors.corrected(self._plausible, self.target.speed)
        self._costs = replace(drafts, verify=self.target.verify)

    def costs_from(self, rows: int) -> Costs:
        """Return the costs for passes of at least `rows` rows, independent of estimates for fewer."""
        return replace(self.costs, verify=self.target.verify_from(rows))

    def reading(self, unread: int) -> float:
        """Return the calibrated seconds to read `unread` tokens."""
        return self._plausible.reading(unread)

    def observe_pass(
        self, took: PassTimes, expected_draft_s: tuple[float, float] = (0.0, 0.0), requests: int = 1
    ) -> None:
        """Update by a pass, and the drafting before it.

        expected_draft_s: of the draft's steps and of its reading, by the calibrated costs; 0 if no model drafted.
        requests: how many shared the pass.
        """
        self.target.observe_pass(took, requests)
        self.observe_draft(took.draft_s, expected_draft_s)

    def observe_draft(self, draft_s: float, expected_s: tuple[float, float]) -> None:
        """Update by the drafting before a pass; expected_s: as of `observe_pass`."""
        steps, reading = (seconds * math.exp(self.target.speed) for seconds in expected_s)
        if draft_s > 0 and steps > 0:
            self._draft_errors.observe(draft_s, steps, reading, NOISE, MOST_SURPRISE)
        self._update()

    def findings(self, untried: bool) -> CostFindings:
        """Return what the rounds so far say. untried: see CostFindings."""
        verify, experts, contradicted = self.calibrated.verify, self.calibrated.experts, False
        if self._stores_target:
            verify, experts = self.target.found
            contradicted = self.target.contradicted
        drafts = self._draft_errors.corrected(self._plausible, self.target.found_speed)
        found = replace(drafts, verify=verify, experts=experts)
        return CostFindings(self.calibrated, found, self.target.seconds, untried, contradicted)
