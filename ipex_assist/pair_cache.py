"""What is known of a pair on this machine, in one file of the cache folder: costs of passes, acceptance so far."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipex_assist.acceptance import Acceptance
from ipex_assist.calibration import describe
from ipex_assist.schedule import Costs
from ipex_assist.version import __version__

if TYPE_CHECKING:
    from ipex_assist.checkpoint import Checkpoint

log = logging.getLogger("ipex_assist")

# Seconds between two writings of a process whose texts follow each other: home folders may be slow.
WRITE_EVERY = 5.0


def pair_facts(
    target: Checkpoint, precision: str, assistant: Checkpoint | None, assistant_precision: str | None, **others: Any
) -> dict[str, Any]:
    """All that costs depend on: both checkpoints' files, precisions, and `others`: executor, threads, machine, …"""
    return {
        "version": __version__,
        "target": _identity(target),
        "precision": precision,
        "assistant": _identity(assistant) if assistant else None,
        "assistant_precision": assistant_precision,
        **others,
    }


def _identity(checkpoint: Checkpoint) -> list[Any]:
    files = checkpoint.weight_files()
    return [checkpoint.source, *([str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns] for f in files)]


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/ipex-assist/calibration, by default under ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ipex-assist" / "calibration"


class PairCache:
    """A pair's file. What is missing, damaged, or another pair's counts as unknown; nothing here fails.

    Of processes that use one pair at a time, the last one to end a text writes what the next one will read.
    """

    def __init__(
        self, facts: Mapping[str, Any], *, anew: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """anew: forget what is there."""
        self._facts = json.loads(json.dumps(facts))
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
        self.path = cache_folder() / f"{digest}.json"
        content = {} if anew else self._read()
        self._costs = _costs(content.get("costs"))
        self.models, self.copies = _acceptance(content.get("models")), _acceptance(content.get("copies"))
        self._clock, self._written = clock, -math.inf

    def costs(self, measure: Callable[[], Costs]) -> Costs:
        """What is kept, or else from `measure`, and then kept."""
        if self._costs is None:
            started = time.perf_counter()
            self._costs = measure()
            log.info("calibrated in %.2f s: %s", time.perf_counter() - started, describe(self._costs))
            self._write()
        return self._costs

    def keep_acceptance(self, models: Acceptance, copies: Acceptance) -> None:
        """For later processes; written at most every WRITE_EVERY seconds, and not where nobody kept the costs."""
        self.models, self.copies = models, copies
        if self._costs is not None and self._clock() - self._written >= WRITE_EVERY:
            self._written = self._clock()
            self._write()

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            return content if content["facts"] == self._facts else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def _write(self) -> None:
        content = {
            "facts": self._facts,
            "costs": asdict(self._costs) if self._costs else None,
            "models": self.models.as_counts(),
            "copies": self.copies.as_counts(),
        }
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
            os.replace(temporary, self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            log.info("nothing is kept of this pair: %s", error)


def _costs(content: Any) -> Costs | None:
    try:
        verify, rows = tuple(map(float, content["verify"])), tuple(map(float, content["rows"]))
        found = Costs(verify, float(content["draft"]), rows, float(content["read"]))
    except (ValueError, KeyError, TypeError):
        return None
    return found if found.verify and all(0 < seconds < 1e4 for seconds in found.verify) else None


def _acceptance(content: Any) -> Acceptance:
    try:
        return Acceptance.from_counts(content)
    except (ValueError, KeyError, TypeError):
        return Acceptance()
