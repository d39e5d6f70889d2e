"""What a run of `ipex-assist bench` comes to, in one sentence."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ipex_assist.bench.measure import Row
from ipex_assist.bench.throughput import LoadRow


@dataclass(frozen=True)
class Comparison:
    """An assisted contender over all its rows. speedup: mean of the rows' medians, of plain decoding's speed."""

    label: str
    target_precision: str
    draft_precision: str | None
    speedup: float

    @property
    def name(self) -> str:
        """The contender with both precisions."""
        draft = f", {self.draft_precision} draft" if self.draft_precision else ""
        return f"{self.label}, {self.target_precision} target{draft}"


def conclusion(rows: Sequence[Row], loads: Sequence[LoadRow]) -> str | None:
    """The sentence that a report ends with; None where nothing was measured."""
    if loads:
        return _of_loads(loads)
    compared = _comparisons(rows)
    if not compared:
        speeds = [1 / sample.token_s for row in rows for sample in row.samples if sample.token_s]
        return f"Plain decoding alone: {statistics.median(speeds):.2f} tokens/s." if speeds else None
    best = max(compared, key=lambda each: each.speedup)
    subject = _subject(rows) if len(compared) == 1 else f"the best of {len(compared)} ({best.name})"
    speed = f"{_times(best.speedup)} as fast as plain"
    samples = [sample for row in rows if row.contender.draft is not None for sample in row.samples]
    drafted = any(sample.drafted != 0 for sample in samples)
    if best.speedup > 1 and drafted and all(sample.accepted == 0 for sample in samples):
        return f"No draft was accepted: that {subject} is {speed} is noise; {_tokens(rows)}."
    said = f"{subject[0].upper()}{subject[1:]} is {speed}, {_tokens(rows)}."
    return said + ("" if drafted else " Nothing was drafted: all of it is plain decoding.")


def _subject(rows: Sequence[Row]) -> str:
    """What is compared; a simulation is called one everywhere."""
    acceptances = {row.contender.acceptance for row in rows if row.contender.draft is not None} - {None}
    if not acceptances:
        return "assisted decoding"
    return f"decoding with a simulated acceptance of {', '.join(f'{each:g}' for each in acceptances)}"


def _comparisons(rows: Sequence[Row]) -> list[Comparison]:
    groups: dict[tuple[str, str, str | None], list[float]] = {}
    for row in rows:
        if row.contender.draft is not None and row.speedup:
            key = row.contender.label, row.precision, row.assistant_precision
            groups.setdefault(key, []).append(statistics.median(row.speedup))
    return [Comparison(*key, statistics.fmean(speedups)) for key, speedups in groups.items()]


def _of_loads(loads: Sequence[LoadRow]) -> str:
    """The best contender at the fewest and at the most requests in flight."""
    found: dict[int, float] = {}
    for row in loads:
        if row.contender.draft is not None and row.speedup:
            speedup = statistics.median(row.speedup)
            found[row.concurrency] = max(speedup, found.get(row.concurrency, speedup))
    if not found:
        best = max(statistics.median(row.speeds) for row in loads)
        return f"Plain decoding alone: up to {best:.2f} tokens/s."
    parts = [f"{_times(found[number])} at {number} in flight" for number in dict.fromkeys((min(found), max(found)))]
    return f"Assisted decoding is {' and '.join(parts)} as fast as plain, {_tokens(loads)}."


def _tokens(rows: Sequence[Row | LoadRow]) -> str:
    """Whether assisted texts are the plain ones."""
    compared = [row.equals_plain for row in rows if row.contender.draft is not None]
    different = compared.count(False)
    if different:
        return f"but tokens differ in {different} of {len(compared)} measurements"
    return "texts drawn" if None in compared else "same tokens"


def _times(factor: float) -> str:
    """Two figures: 1.6 × and 12 ×, but 0.98 ×, where 1.0 would hide which is faster."""
    return f"{factor:.2f} ×" if factor < 1.05 else f"{factor:.1f} ×" if factor < 10 else f"{factor:.0f} ×"
