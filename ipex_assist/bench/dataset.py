"""Average speed-up over a set of prompts: a file of records that can be resumed, and a confidence interval."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ipex_assist.bench.measure import Row
from ipex_assist.env.errors import IpexAssistError, UsageError

RESAMPLES = 10_000


class Records:
    """Rows of finished prompts on disk, one prompt a line after a first line that says what was measured.

    A line is written whole and reaches the disk before the next prompt begins. A last line without its end, as a
    kill may leave it, is cut off when the file is opened again.
    """

    def __init__(self, path: Path, settings: dict[str, Any], *, resume: bool) -> None:
        """settings: everything that the figures depend on. UsageError where the file holds something else.

        `samples` alone may have grown since the file was begun (0 is all): what is done stays, the rest is added.
        """
        self.path, self.settings = path, json.loads(json.dumps(settings))
        self.done: dict[str, list[Row]] = {}
        if path.exists() and not resume:
            raise UsageError(f"-o {path}: the file exists; --resume goes on with it, or name another")
        try:
            if path.exists():
                self._read()
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
            if not self._file.tell():
                self._write({"settings": self.settings})
        except OSError as error:
            raise IpexAssistError(f"cannot keep records in {path}: {error}") from error

    def _read(self) -> None:
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                record = json.loads(line)
                if number == 1:
                    self._check(record["settings"])
                else:
                    self.done[record["key"]] = [Row.from_dict(row) for row in record["rows"]]
            except (ValueError, KeyError, TypeError) as error:
                raise UsageError(
                    f"{self.path} line {number} is no record of this command ({type(error).__name__}: {error}): "
                    "name another file with -o"
                ) from error

    def _check(self, settings: dict[str, Any]) -> None:
        names = [name for name in {**settings, **self.settings} if settings.get(name) != self.settings.get(name)]
        was, now = settings.get("samples"), self.settings.get("samples")
        if "samples" in names and was and now is not None and (now == 0 or now > was):
            names.remove("samples")
        if names:
            first = names[0]
            raise UsageError(
                f"{self.path} was begun with other settings ({', '.join(names)}; {first} was {settings.get(first)!r} "
                f"and is {self.settings.get(first)!r}): resume with the same flags, or name another file with -o"
            )

    def add(self, key: str, rows: Sequence[Row]) -> None:
        """Keep a finished prompt. Raises IpexAssistError where the file cannot be written."""
        self.done[key] = list(rows)
        try:
            self._write({"key": key, "rows": [row.as_dict() for row in rows]})
        except OSError as error:
            raise IpexAssistError(f"cannot write {self.path}: {error}; --resume goes on when there is room") from error

    def _write(self, record: dict[str, Any]) -> None:
        self._file.write(json.dumps(record).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """The file; everything in it is on disk already."""
        self._file.close()


def summaries(rows: Iterable[Row], seed: int) -> list[dict[str, Any]]:
    """Return one summary for each contender and pair of precisions, over all prompts and for each kind of them."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    kinds: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row.contender.draft is not None and row.speedup:
            key = (row.precision, row.assistant_precision, row.contender)
            groups.setdefault(key, []).append(row)
            kinds.setdefault((*key, row.kind), []).append(row)
    found = []
    for key, members in groups.items():
        summary = summarise(members, seed)
        named = {key_[-1]: of for key_, of in kinds.items() if key_[:-1] == key and key_[-1]}
        summary["kinds"] = {kind: summarise(of, seed) for kind, of in named.items()}
        found.append(
            {
                "contender": key[2].label,
                "precision": key[0],
                "assistant_precision": key[1],
                "simulated": key[2].acceptance is not None,
                **summary,
            }
        )
    return found


def summarise(rows: Sequence[Row], seed: int) -> dict[str, Any]:
    """Mean speed-up of a token after the first with its 95 % interval, the spread, and how the draft did."""
    import statistics

    speedups = [statistics.median(row.speedup) for row in rows]
    totals = [statistics.median(row.total_speedup) for row in rows]
    drafted = sum(sample.drafted or 0 for row in rows for sample in row.samples)
    accepted = sum(sample.accepted or 0 for row in rows for sample in row.samples)
    return {
        "prompts": len(rows),
        "mean_speedup": statistics.fmean(speedups),
        "interval_95": confidence_interval(speedups, seed),
        "median_speedup": statistics.median(speedups),
        "min_speedup": min(speedups),
        "max_speedup": max(speedups),
        "mean_total_speedup": statistics.fmean(totals),
        "slower_than_plain": sum(speedup < 1 for speedup in speedups),
        "acceptance_rate": accepted / drafted if drafted else None,
    }


def confidence_interval(values: Sequence[float], seed: int) -> tuple[float, float] | None:
    """95 % of the mean by the percentile bootstrap (Efron 1979); None for fewer than two values."""
    import numpy

    if len(values) < 2:
        return None
    sample = numpy.asarray(values)
    generator = numpy.random.default_rng(seed)
    means = [generator.choice(sample, len(sample)).mean() for _ in range(RESAMPLES)]
    low, high = numpy.percentile(means, [2.5, 97.5])
    return float(low), float(high)
