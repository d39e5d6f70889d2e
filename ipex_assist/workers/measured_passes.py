"""Seconds of a target's passes by rows, on an engine's cores: kept for later starts, which divide a machine by them.

Never imports torch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.isa import read_isa
from ipex_assist.executors.blocks import NoBlocksError
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.launch.plan import inherited_plan
from ipex_assist.native import library

if TYPE_CHECKING:
    from ipex_assist.speculative.costs.pair_cache import KeptFile
    from ipex_assist.workers.worker_model import WorkerModel

log = logging.getLogger("ipex_assist")


def kept_passes(load: LoadOptions, cpus: Sequence[int]) -> tuple[float, ...] | None:
    """Seconds of passes of 1, 2, … rows on these CPUs; None where they were not measured with this core."""
    file = _file(load, cpus)
    try:
        found = () if file is None else tuple(map(float, file.read()))
    except (ValueError, TypeError, OverflowError):
        return None
    return found if found and all(0 < seconds < 1e4 for seconds in found) else None


def measured_passes(model: WorkerModel, load: LoadOptions) -> Sequence[float] | None:
    """The same of a loaded model, in the process of an engine: measured where they were not, and kept.

    None where requests share no passes of the native core, or its memory is too small to measure them.
    """
    if model.kv_blocks is None:
        return None
    plan = inherited_plan(os.environ)
    known = None if plan is None or load.recalibrate else kept_passes(load, plan.cpus)
    if known is not None:
        return known
    try:
        passes = model.pass_seconds
    except NoBlocksError:
        return None
    if plan is not None and passes is not None and (file := _file(load, plan.cpus)) is not None:
        file.write(list(passes))
    return passes


def _file(load: LoadOptions, cpus: Sequence[int]) -> KeptFile | None:
    """Where they are kept; None for a model that is not here."""
    from ipex_assist.speculative.costs.pair_cache import KeptFile, pair_facts  # late: it imports NumPy

    if load.target is None:
        return None
    try:
        checkpoint = OpenCheckpoints().open(load.target, revision=load.revision, offline=True)
        precision = load.precision or checkpoint.stored_precision or "bf16"
        pair = pair_facts(checkpoint, precision, None, None, kv_precision=load.kv_precision)
        machine = {"machine": read_isa().model, "cpus": sorted(cpus), "core": library.PATH.stat().st_mtime_ns}
    except (IpexAssistError, OSError):
        return None
    return KeptFile("passes", {**pair, **machine})
