"""How many requests a worker has in flight: as many as asked for, or as its memory holds. Never imports torch."""

from __future__ import annotations

import functools
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.commands.shared.load import memory_need
from ipex_assist.commands.shared.native_runs import runs_native
from ipex_assist.env.cpulist import format_cpulist
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.memory import gib, read_memory
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.launch.placement import Placement
from ipex_assist.native import library
from ipex_assist.speculative.costs.by_rows import seconds_of_many
from ipex_assist.workers.division import (
    LEAST_ROWS,
    MOST_ROWS,
    CoreSpeed,
    PassWork,
    arithmetic_of,
    estimated_speed,
    rows_at_a_time,
    work_of,
)
from ipex_assist.workers.measured_passes import measured_passes

if TYPE_CHECKING:
    from ipex_assist.commands.shared.memory_need import MemoryNeed
    from ipex_assist.workers.settings import WorkerSettings
    from ipex_assist.workers.worker_model import WorkerModel

log = logging.getLogger("ipex_assist")

DEFAULT_CONCURRENCY = LEAST_ROWS  # requests that are expected where nobody says how many
MOST_CONCURRENCY = MOST_ROWS  # that an engine takes where passes of so many rows cost little more
_PEAK_SECONDS, _REPEATS = 0.005, 3


def fitting(sizes: Sequence[int], room: int) -> int:
    """How many of `sizes`, taken in this order, fit into `room` together."""
    return sum(total <= room for total in accumulate(sizes))


@dataclass(frozen=True)
class ModelPasses:
    """Of a model: what its passes read, and what cores do as long as nobody has measured them with it."""

    load: LoadOptions
    work: PassWork
    speed: CoreSpeed


@dataclass(frozen=True)
class InstanceNeed:
    """Bytes of an instance: `base` without sequences (None: not known), and `kv_each` of each, the longest first.

    kv_limit: what all sequences together may take (--kv-memory). passes: of the native core, where it runs them.
    """

    base: int | None
    kv_each: tuple[int, ...] = ()
    kv_limit: int | None = None
    passes: ModelPasses | None = None

    @classmethod
    def of(cls, load: LoadOptions, max_new_tokens: int, lengths: Sequence[int] = ()) -> InstanceNeed:
        """By the headers and configs of the models. lengths: tokens of each sequence; none: one of usual length."""
        need = memory_need(load, max_new_tokens, offline=load.offline, lengths=lengths)
        base = None if need.total is None else need.total - need.kv
        if not runs_native(load):
            return cls(base, need.kv_each)
        return cls(base, need.kv_each, load.kv_memory, _passes_of(load, need))

    @property
    def total(self) -> int | None:
        """Bytes for all purposes; None where that is not known."""
        if self.base is None:
            return None
        return self.base + (sum(self.kv_each) if self.kv_limit is None else self.kv_limit)


def _passes_of(load: LoadOptions, need: MemoryNeed) -> ModelPasses | None:
    """What its passes read; None for a model that is not known here, or not run by the native core."""
    if load.target is None or need.target is None:
        return None
    try:
        checkpoint = OpenCheckpoints().open(load.target, revision=load.revision, offline=True)
        if checkpoint.why_not_ours():
            return None
        spec, precision = checkpoint.config_spec(), load.precision or checkpoint.stored_precision or "bf16"
    except IpexAssistError:
        return None
    return ModelPasses(load, work_of(spec, need.target, need.total or 0), core_speed(precision))


@functools.cache
def core_speed(precision: str) -> CoreSpeed:
    """Of a model that has not been measured here; without AMX one thread multiplies for some hundredths of a second."""
    if library.instruction_set() == "amx":
        return estimated_speed(precision)
    pool = library.Pool(1)
    try:
        return estimated_speed(precision, library.peak(pool, arithmetic_of(precision), _PEAK_SECONDS, _REPEATS))
    finally:
        pool.close()


def check_memory_of_placements(need: InstanceNeed, placements: Sequence[Placement]) -> None:
    """IpexAssistError where instances do not fit together: those bound to the same nodes there, and all here."""
    groups = _by_nodes(placements)
    for nodes, instances in groups.items():
        where = f" on node{'s' * (len(nodes) > 1)} {format_cpulist(nodes)}" if nodes else ""
        check_memory_of_all(need, instances, read_memory(nodes=nodes).available, where)
    if len(groups) > 1:
        check_memory_of_all(need, len(placements), read_memory().available)


def neighbours_of(placements: Sequence[Placement]) -> int:
    """How many instances share memory, one of them included: the most that are bound to the same nodes."""
    return max(_by_nodes(placements).values(), default=1)


def _by_nodes(placements: Sequence[Placement]) -> Counter[tuple[int, ...]]:
    """How many are bound to each set of nodes; to none where memory may come from all."""
    return Counter(placement.nodes if placement.memory == "bind" else () for placement in placements)


def check_memory_of_all(need: InstanceNeed, instances: int, available: int | None, where: str = "") -> None:
    """IpexAssistError where the instances together do not fit; each for itself sees only what is free as it starts.

    where: what all of them share, as it stands in the message.
    """
    total, base, sequences = need.total, need.base, len(need.kv_each)
    if total is None or base is None or not available or total * instances <= available:
        return
    if instances == 1 and sequences <= 1:  # which says itself how much is needed for what
        return
    fewer = available // total
    fewer_sequences = fitting(need.kv_each, available // instances - base)
    if fewer_sequences:
        remedy = f"--concurrency {fewer_sequences}" + (f" or --instances {fewer}" if fewer else "")
    elif fewer:
        remedy = f"--instances {fewer}"
    else:
        remedy = "a smaller --precision or model" + (" or --concurrency" if sequences > 1 else "")
    what = f"{instances} instances need {gib(total)} each, {gib(total * instances)} in all"
    if instances == 1:
        what = f"the instance needs {gib(total)}"
    held = f", with the keys and values of {sequences} prompts at a time," if sequences > 1 else ","
    raise IpexAssistError(f"too little memory: {what}{held} and {gib(available)} are available{where}. Use {remedy}")


def concurrency_of(model: WorkerModel, settings: WorkerSettings) -> int:
    """How many prompts an instance with this model, now loaded, takes at a time."""
    if model.one_at_a_time:
        if settings.concurrency != 1:
            log.info("%s runs through transformers: one prompt at a time", short_name(model.identity.target))
        return 1
    passes = measured_passes(model, settings.load)
    if settings.concurrency is not None:
        return settings.concurrency
    rows = DEFAULT_CONCURRENCY if passes is None else rows_at_a_time(partial(seconds_of_many, passes))
    lengths = settings.lengths[:rows]
    blocks = model.kv_blocks
    if blocks is not None:  # all models of it have as many
        wanted = [-(-tokens // blocks.size) for tokens in lengths]
        chosen = max(1, fitting(wanted, blocks.count))
        how = f"{sum(wanted[:chosen])} of {blocks.count} blocks of {blocks.size} tokens"
    else:
        sizes = InstanceNeed.of(settings.load, settings.max_new_tokens, lengths).kv_each
        room = read_memory().available // settings.neighbours
        # What is not known to be too much is tried.
        chosen = max(1, fitting(sizes, room) if room else len(sizes))
        how = f"{gib(sum(sizes[:chosen]))} of {gib(room)} for keys and values"
    why = ""
    if passes is not None:
        why = f"; a pass of {rows} rows takes {seconds_of_many(passes, rows) / passes[0]:.1f} × one of 1"
    log.info("prompts in flight: %d (%s, by the longest prompts%s; --concurrency says otherwise)", chosen, how, why)
    return chosen
