"""How many requests a worker has in flight: as many as asked for, or as its memory holds. Never imports torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.commands.shared.load import memory_need, runs_native
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.memory import gib, read_memory
from ipex_assist.generation.load_options import LoadOptions

if TYPE_CHECKING:
    from ipex_assist.workers.settings import WorkerSettings
    from ipex_assist.workers.worker_model import WorkerModel

log = logging.getLogger("ipex_assist")

DEFAULT_CONCURRENCY = 16  # unless more are asked for: beyond that a pass is bound by arithmetic, and wins little


def fitting(sizes: Sequence[int], room: int) -> int:
    """How many of `sizes`, taken in this order, fit into `room` together."""
    return sum(total <= room for total in accumulate(sizes))


@dataclass(frozen=True)
class InstanceNeed:
    """Bytes of an instance: `base` without sequences (None: not known), and `kv_each` of each, the longest first.

    kv_limit: what all sequences together may take (--kv-memory).
    """

    base: int | None
    kv_each: tuple[int, ...] = ()
    kv_limit: int | None = None

    @classmethod
    def of(cls, load: LoadOptions, max_new_tokens: int, lengths: Sequence[int] = ()) -> InstanceNeed:
        """By the headers and configs of the models. lengths: tokens of each sequence; none: one of usual length."""
        need = memory_need(load, max_new_tokens, offline=load.offline, lengths=lengths)
        base = None if need.total is None else need.total - need.kv
        return cls(base, need.kv_each, load.kv_memory if runs_native(load) else None)

    @property
    def total(self) -> int | None:
        """Bytes for all purposes; None where that is not known."""
        if self.base is None:
            return None
        return self.base + (sum(self.kv_each) if self.kv_limit is None else self.kv_limit)


def check_memory_of_all(need: InstanceNeed, instances: int, available: int | None) -> None:
    """IpexAssistError where the instances together do not fit; each for itself sees only what is free as it starts."""
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
    raise IpexAssistError(f"too little memory: {what}{held} and {gib(available)} are available. Use {remedy}")


def concurrency_of(model: WorkerModel, settings: WorkerSettings) -> int:
    """How many prompts an instance with this model, now loaded, takes at a time."""
    if model.one_at_a_time:
        if settings.concurrency != 1:
            log.info("%s runs through transformers: one prompt at a time", short_name(model.identity.target))
        return 1
    if settings.concurrency is not None:
        return settings.concurrency
    blocks = model.kv_blocks
    if blocks is not None:  # all models of it have as many
        wanted = [-(-tokens // blocks.size) for tokens in settings.lengths]
        chosen = max(1, fitting(wanted, blocks.count))
        how = f"{sum(wanted[:chosen])} of {blocks.count} blocks of {blocks.size} tokens"
    else:
        sizes = InstanceNeed.of(settings.load, settings.max_new_tokens, settings.lengths).kv_each
        room = read_memory().available // settings.neighbours
        # What is not known to be too much is tried.
        chosen = max(1, fitting(sizes, room) if room else len(sizes))
        how = f"{gib(sum(sizes[:chosen]))} of {gib(room)} for keys and values"
    log.info("prompts in flight: %d (%s, by the longest prompts; --concurrency says otherwise)", chosen, how)
    return chosen
