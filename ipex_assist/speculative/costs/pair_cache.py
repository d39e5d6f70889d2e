"""The pair cache: costs of passes on this machine and acceptance rates, stored in the cache folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipex_assist.env.cache import cache_folder
from ipex_assist.speculative.costs.acceptance import Acceptance
from ipex_assist.speculative.costs.live_costs import CostFindings
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.costs.stored_costs import WRITE_EVERY, StoredCosts
from ipex_assist.version import __version__

if TYPE_CHECKING:
    from ipex_assist.checkpoints.base import Checkpoint

log = logging.getLogger("ipex_assist")

FORMAT = 5  # of the files


def pair_facts(
    target: Checkpoint, precision: str, assistant: Checkpoint | None, assistant_precision: str | None, **others: Any
) -> dict[str, Any]:
    """Return what identifies a pair: both checkpoints' files, precisions, and `others`, e.g. its draft vocabulary."""
    return {
        "version": __version__,
        "format": FORMAT,
        "target": _identity(target),
        "precision": precision,
        "assistant": _identity(assistant) if assistant else None,
        "assistant_precision": assistant_precision,
        **others,
    }


def _identity(checkpoint: Checkpoint) -> list[Any]:
    return [checkpoint.source, *(_identity_of(file) for file in checkpoint.weight_files())]


def _identity_of(file: Path) -> list[Any]:
    try:
        stat = file.stat()
    except OSError:  # deleted since it was read
        return [str(file)]
    return [str(file.resolve()), stat.st_size, stat.st_mtime_ns]


class PairCache:
    """A pair's costs, which are this machine's, and its acceptance rates, which hold on every machine.

    Missing, damaged or foreign files count as absent; nothing here raises. Of concurrent processes with the same pair
    the last writer wins.
    """

    def __init__(
        self,
        pair: Mapping[str, Any],
        machine: Mapping[str, Any],
        *,
        refresh: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """pair, machine: facts as JSON values. refresh: delete what is stored."""
        costs_file = KeptFile("costs", {**pair, **machine})
        self._acceptance_file = KeptFile("acceptance", pair)
        if refresh:
            costs_file.delete()
            self._acceptance_file.delete()
        self._costs = StoredCosts(costs_file, clock)
        counts = self._acceptance_file.read()
        self.model_acceptance, self.lookup_acceptance = _acceptance(counts, "models"), _acceptance(counts, "copies")
        self.gained_passes = _gained(counts)
        self._clock, self._written = clock, -math.inf

    def costs(self, measure: Callable[[], Costs]) -> Costs:
        """Return the stored costs, or store and return those of `measure`. Called before each request."""
        return self._costs.costs(measure)

    def correct_costs(self, findings: CostFindings) -> None:
        """Apply a request's findings about the costs it started with."""
        self._costs.correct(findings)

    def keep_acceptance(self, models: Acceptance, copies: Acceptance, gained_passes: float = 0.0) -> None:
        """Store the counts, and what drafts gained in plain passes; written at most every WRITE_EVERY seconds."""
        if self._clock() - self._written >= WRITE_EVERY:
            self._written = self._clock()
            counts = {"models": models.as_counts(), "copies": copies.as_counts()}
            self._acceptance_file.write({**counts, "gained_passes": gained_passes})


class KeptFile:
    """A file of the cache folder, named by a digest of the facts it is for."""

    def __init__(self, kind: str, facts: Mapping[str, Any]) -> None:
        self.kind, self.facts = kind, json.loads(json.dumps(facts))
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
        self.path: Path | None = None
        with contextlib.suppress(RuntimeError):
            self.path = cache_folder("calibration") / f"{digest}.{kind}.json"

    def read(self) -> Any:
        """Return the stored content; None if there is none for these facts."""
        if self.path is None:
            return None
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            return content[self.kind] if content["facts"] == self.facts else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def write(self, content: Any) -> None:
        """Write the content atomically."""
        if self.path is None:
            return
        text = json.dumps({"facts": self.facts, self.kind: content}, indent=1)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _temporary(self.path) as temporary:
                temporary.write_text(text, encoding="utf-8")
                os.replace(temporary, self.path)
        except (NotADirectoryError, FileExistsError) as error:
            log.warning("%s of this pair are not kept: %s; XDG_CACHE_HOME must be a folder", self.kind, error)
        except OSError as error:
            log.info("%s of this pair are not kept: %s", self.kind, error)

    def delete(self) -> None:
        """Delete the file, if there is one."""
        if self.path is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """Create a uniquely named file beside `path`, removed at exit; unique also on a shared file system."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _gained(content: Any) -> float:
    try:
        gained = float(content["gained_passes"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return 0.0
    return gained if abs(gained) < 1e6 else 0.0


def _acceptance(content: Any, kind: str) -> Acceptance:
    try:
        return Acceptance.from_counts(content[kind])
    except (ValueError, KeyError, TypeError, OverflowError):
        return Acceptance()
