"""A pair's costs, stored between requests and processes, corrected by observations, recalibrated when in doubt.

Other processes can disturb a calibration in two ways. If drafting looks too cheap, drafts are made and their measured
times correct it. If drafting looks too expensive, it is never tried and nothing can correct it; so the calibration is
repeated once it has prevented drafting for long enough.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

from ipex_assist.executors.blocks import NoBlocksError
from ipex_assist.executors.interface import PassThreads
from ipex_assist.speculative.costs.calibration import describe
from ipex_assist.speculative.costs.expert_costs import ExpertCosts
from ipex_assist.speculative.costs.live_costs import CostFindings
from ipex_assist.speculative.costs.pair_costs import Costs

log = logging.getLogger("ipex_assist")

# Recalibrate once the doubtful requests took 50 times as long as the calibration. If that changes nothing, the next
# recalibration waits for twice as much, and so on.
RECALIBRATION_RATIO, MOST_REPEATS = 50.0, 30
# Minimum seconds between two writes: home folders may be slow.
WRITE_EVERY = 5.0
_USUAL_SECONDS = 1.5  # of a calibration, if the file does not say


class CostsFile(Protocol):
    """A file that stores costs between processes."""

    def read(self) -> Any:
        """Return the stored content; None if there is none."""
        ...

    def write(self, content: Any) -> None:
        """Store `content`, a JSON value."""
        ...


class StoredCosts:
    """A pair's costs on this machine. One object per process, which recalibrates at most once."""

    def __init__(self, file: CostsFile, clock: Callable[[], float]) -> None:
        """clock: returns seconds."""
        self._file, self._clock, self._written = file, clock, -math.inf
        content = file.read()
        self._costs = _costs(content)
        self._took_s = _number(content, "took_s", _USUAL_SECONDS)
        self._doubt_s = _number(content, "doubt_s", 0.0)  # seconds of requests that could not confirm these costs
        self._repeats = min(
            int(_number(content, "repeats", 0)), MOST_REPEATS
        )  # recalibrations since a request last confirmed one
        self._recalibrated = False

    def costs(self, measure: Callable[[], Costs]) -> Costs:
        """Return the stored costs, or those of `measure` if there are none or the doubt has grown large enough."""
        if self._costs is None:
            return self._calibrate(measure)
        if self._doubt_s >= self._recalibration_threshold and not self._recalibrated:
            return self._recalibrate(measure, self._costs)
        return self._costs

    def _recalibrate(self, measure: Callable[[], Costs], known: Costs) -> Costs:
        before, self._repeats = self._repeats, min(self._repeats + 1, MOST_REPEATS)
        try:
            found = self._calibrate(measure)
        except NoBlocksError:  # requests hold all the memory: a later one tries again
            self._repeats = before
            return known
        self._recalibrated = True
        return found

    @property
    def _recalibration_threshold(self) -> float:
        """Seconds of doubt from which a recalibration is worthwhile."""
        return RECALIBRATION_RATIO * self._took_s * 2.0**self._repeats

    def _calibrate(self, measure: Callable[[], Costs]) -> Costs:
        started = self._clock()
        self._costs = measure()
        self._took_s, self._doubt_s = max(0.0, self._clock() - started), 0.0
        log.info("calibrated in %.2f s: %s", self._took_s, describe(self._costs))
        self._write()
        return self._costs

    def correct(self, findings: CostFindings) -> None:
        """Apply a request's findings, unless another's came since it began. Writes at most every WRITE_EVERY s."""
        if findings.before != self._costs or not findings.seconds:
            return
        self._costs = findings.costs
        if findings.contradicted and not self._repeats:
            self._doubt_s = max(self._doubt_s, self._recalibration_threshold)
        elif findings.contradicted or findings.untried:
            self._doubt_s += findings.seconds
        else:
            self._doubt_s, self._repeats = 0.0, 0
        if self._clock() - self._written >= WRITE_EVERY:
            self._written = self._clock()
            self._write()

    def _write(self) -> None:
        assert self._costs is not None
        facts = {"took_s": self._took_s, "doubt_s": self._doubt_s, "repeats": self._repeats}
        self._file.write({**asdict(self._costs), **facts})


def _costs(content: Any) -> Costs | None:
    try:
        verify, rows = tuple(map(float, content["verify"])), tuple(map(float, content["rows"]))
        experts = _experts(content.get("experts"))
        number, up_to = map(int, content["threads"])
        threads = PassThreads(number, up_to)
        block = tuple(map(float, content.get("block", ())))
        found = Costs(verify, float(content["draft"]), rows, float(content["read"]), experts, threads, block)
    except (ValueError, KeyError, TypeError, OverflowError, AttributeError):
        return None
    others = (found.draft, found.read, *rows, *block)
    known = verify and all(0 < seconds < 1e4 for seconds in verify) and all(0 <= seconds < 1e4 for seconds in others)
    return found if known and min(threads) >= 0 and max(threads) < 1 << 16 else None


def _experts(content: Any) -> ExpertCosts | None:
    if content is None:
        return None
    found = ExpertCosts(
        int(content["count"]),
        int(content["per_token"]),
        tuple(map(float, content["read"])),
        float(content["seconds"]),
        float(content["spread"]),
        float(content["growth"]),
    )
    known = 0 < found.per_token <= found.count and all(0 < read <= found.count for read in found.read) and found.read
    if not known or not 0 <= found.seconds < 1e4 or not 0 < found.spread < 10 or not 0 < found.growth < 10:
        raise ValueError("experts")
    return found


def _number(content: Any, key: str, default: float) -> float:
    """A number ≥ 0 from the file, which an older version or a person may have written."""
    try:
        value = float(content[key])
    except (ValueError, KeyError, TypeError, OverflowError):
        return default
    return value if 0 <= value < 1e9 else default
