"""What passes cost, from one text to the next: kept, corrected by what texts found, measured anew where that pays.

A calibration can be disturbed by others who use the cores, and be wrong in two ways. Drafting that looks too cheap is
found out by the drafts themselves, and corrected. Drafting that looks too dear is never tried, so that no text can
tell; such a calibration is made again once it has been in the way for long enough.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

from ipex_assist.executors.blocks import NoBlocksError
from ipex_assist.executors.interface import PassThreads
from ipex_assist.speculative.calibration import describe
from ipex_assist.speculative.costs import Costs
from ipex_assist.speculative.expert_costs import ExpertCosts
from ipex_assist.speculative.live_costs import CostFindings

log = logging.getLogger("ipex_assist")

# A new calibration pays when it takes less than 1/50 of the texts that doubted the old one. Where it changes nothing,
# the next one has to wait for twice as much, and so on.
RECALIBRATION_RATIO, MOST_REPEATS = 50.0, 30
# Seconds between two writings of a process whose texts follow each other: home folders may be slow.
WRITE_EVERY = 5.0
_USUAL_SECONDS = 1.5  # of a calibration whose file does not say how long it took


class CostsFile(Protocol):
    """A place that keeps costs from one process to the next."""

    def read(self) -> Any:
        """Return what was written; None where there is nothing."""
        ...

    def write(self, content: Any) -> None:
        """Keep `content`, which JSON can hold."""
        ...


class StoredCosts:
    """A pair's costs on this machine. One object serves a process, which measures anew once at most."""

    def __init__(self, file: CostsFile, clock: Callable[[], float]) -> None:
        """clock: seconds, by which calibrations and the times between writings are measured."""
        self._file, self._clock, self._written = file, clock, -math.inf
        content = file.read()
        self._costs = _costs(content)
        self._took_s = _number(content, "took_s", _USUAL_SECONDS)
        self._doubt_s = _number(content, "doubt_s", 0.0)  # of texts that could not confirm these costs
        self._repeats = min(
            int(_number(content, "repeats", 0)), MOST_REPEATS
        )  # calibrations since a text last confirmed one
        self._recalibrated = False

    def costs(self, measure: Callable[[], Costs]) -> Costs:
        """Return what is kept, or what `measure` finds where nothing is or the doubts have become large enough."""
        if self._costs is None:
            return self._calibrate(measure)
        if self._doubt_s >= self._recalibration_threshold and not self._recalibrated:
            return self._recalibrate(measure, self._costs)
        return self._costs

    def _recalibrate(self, measure: Callable[[], Costs], known: Costs) -> Costs:
        before, self._repeats = self._repeats, min(self._repeats + 1, MOST_REPEATS)
        try:
            found = self._calibrate(measure)
        except NoBlocksError:  # texts have all the memory: another one may ask again
            self._repeats = before
            return known
        self._recalibrated = True
        return found

    @property
    def _recalibration_threshold(self) -> float:
        """Seconds of doubting texts for which a new calibration pays."""
        return RECALIBRATION_RATIO * self._took_s * 2.0**self._repeats

    def _calibrate(self, measure: Callable[[], Costs]) -> Costs:
        started = self._clock()
        self._costs = measure()
        self._took_s, self._doubt_s = max(0.0, self._clock() - started), 0.0
        log.info("calibrated in %.2f s: %s", self._took_s, describe(self._costs))
        self._write()
        return self._costs

    def correct(self, findings: CostFindings) -> None:
        """Take in what a text found, unless another did since it began. Written at most every WRITE_EVERY seconds."""
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
        found = Costs(verify, float(content["draft"]), rows, float(content["read"]), experts, threads)
    except (ValueError, KeyError, TypeError, OverflowError, AttributeError):
        return None
    others = (found.draft, found.read, *rows)
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
    """A number ≥ 0 of the file, which an older version may have written, or somebody's hand."""
    try:
        value = float(content[key])
    except (ValueError, KeyError, TypeError, OverflowError):
        return default
    return value if 0 <= value < 1e9 else default
