"""Loads a checkpoint into the native core's packed image, and makes the thread pool that packs and runs it."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ipex_assist import launch
from ipex_assist.checkpoints.gguf import GgufCheckpoint
from ipex_assist.checkpoints.quantized import QuantizedCheckpoint
from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.deferred_imports import one_torch_thread, torch_module, torch_threads
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.memory import gib, read_memory, release_free_memory
from ipex_assist.env.phases import phase
from ipex_assist.env.topology import read_topology
from ipex_assist.executors.load_request import HeadRequest, LoadRequest
from ipex_assist.executors.native.matrix_rows import with_large_ones
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.executors.native.packed_cache import keeps_packed, load_packed, packed_path, save_packed
from ipex_assist.launch.plan import MASK_AT_START
from ipex_assist.native.library import Pool, instruction_set, shared_pool
from ipex_assist.native.model import PackedModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ipex_assist.executors.native.block_weights import BlockModel

log = logging.getLogger("ipex_assist")

_MARGIN = 1 << 30  # bytes of memory that must stay free beside an image


@functools.cache
def planned_pool(threads: int | None = None) -> Pool:
    """The thread pool of the launcher's plan; without one, as many threads as OpenMP would use on our CPUs at start.

    These are on physical cores first, node by node, and on SMT siblings only where there are more threads. The first
    call decides for the whole process, because the commands limit torch to one thread later.
    """
    plan = launch.inherited_plan(os.environ)
    if plan is not None:
        cpus = tuple(plan.cpus)
    else:
        cpus = read_topology().cpus_in_order(MASK_AT_START) or tuple(sorted(MASK_AT_START))
    count = threads or (plan.threads if plan is not None else min(_openmp_threads(), len(cpus)))
    return shared_pool(count, cpus[:count] if count <= len(cpus) else None)


def _openmp_threads() -> int:
    """The threads that torch has or would have: as set before, by $OMP_NUM_THREADS, or one for each physical core."""
    known = torch_threads()
    if known is not None:
        return known
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return sum(not MASK_AT_START.isdisjoint(core.cpus) for core in read_topology().cores) or 1


def load_native(request: LoadRequest) -> NativeModel:
    """Pack a checkpoint's weights into the core's image, or take a packed copy from the cache folder without torch.

    While it packs, torch has one thread; then the caller's number again.
    """
    checkpoint, pool = request.checkpoint, planned_pool()
    started = time.perf_counter()
    blocks = _blocks(request, pool)
    model = _empty_model(request, pool) if blocks is None else blocks.model
    _share_with_target(request, model)
    kept = packed_path(checkpoint, model) if _keeps(request, model) else None
    with phase(f"reading packed weights of {short_name(checkpoint.source)} ({request.precision})"):
        from_cache = kept is not None and load_packed(model, kept, quick=request.quick, aside=request.aside)
    if kept is None and isinstance(request.table_of, NativeModel):
        model.share_table(request.table_of.packed)
    if not from_cache:
        if request.before_packing is not None:
            request.before_packing()
        _pack(request, model) if blocks is None else blocks.pack()
        release_free_memory()
        if kept is not None:
            _save(request, functools.partial(save_packed, model, kept, checkpoint.source))
    # The copy on disk is a whole image, so the embedding table is shared, and its memory freed, only after saving.
    if kept is not None and isinstance(request.table_of, NativeModel):
        model.share_table(request.table_of.packed)
    if request.later is None:  # not for one text, which would wait longer than it gains
        model.join_pages(time.perf_counter() - started)
    log.info(
        "%s: %s %s (%s) in %.1f s; native core with %s, %d threads",
        short_name(checkpoint.source),
        request.precision,
        f"from {kept}" if from_cache else "packed",
        gib(model.resident_bytes, 2),
        time.perf_counter() - started,
        instruction_set(),
        pool.threads,
    )
    return NativeModel(model, request.kv_memory, request.kv_precision)


def _share_with_target(request: LoadRequest, model: PackedModel) -> None:
    """Give a draft head the embedding and lm_head of its target, where it has none of its own."""
    head = request.spec.head
    if head is None or not isinstance(request, HeadRequest):
        return
    if not isinstance(request.target, NativeModel):
        raise IpexAssistError("a draft head on the native core needs its target there: give both the same --executor")
    if head.shared_embedding:
        model.share_table(request.target.packed)
    if head.shared_head:
        model.share_head(request.target.packed)


def _token_order(request: LoadRequest) -> NDArray[np.int32] | None:
    return request.token_order if isinstance(request, HeadRequest) else None


def _save(request: LoadRequest, save: Callable[..., object]) -> None:
    """Write the packed copy, now or later; now where the memory of a table is freed after it."""
    save = functools.partial(save, asked=bool(request.cache_packed))
    if request.later is None or request.table_of is not None:
        save()
    else:
        request.later.append(save)


def _keeps(request: LoadRequest, model: PackedModel) -> bool:
    """Whether a packed copy is kept: not of blocks, which pack as fast as they are read.

    It is a whole image: even a model that shares a table needs memory for its own.
    """
    if request.precision == "stored":
        return False
    if request.cache_packed is None and isinstance(request.table_of, NativeModel):
        available = read_memory().available
        return keeps_packed(None) and (not available or model.nbytes + _MARGIN <= available)
    return keeps_packed(request.cache_packed)


def _stored(request: LoadRequest) -> QuantizedCheckpoint | None:
    """The checkpoint, if its linears are to be kept as they are stored; else None."""
    checkpoint = request.checkpoint
    kept = isinstance(checkpoint, QuantizedCheckpoint) and request.precision == checkpoint.stored_precision
    kept = kept and _token_order(request) is None  # its lm_head's rows change places
    return checkpoint if kept and isinstance(checkpoint, QuantizedCheckpoint) else None


def _blocks(request: LoadRequest, pool: Pool) -> BlockModel | None:
    """A file's model whose weights stay as they are stored."""
    if request.precision != "stored" or not isinstance(request.checkpoint, GgufCheckpoint):
        return None
    from ipex_assist.executors.native.block_weights import BlockModel

    return BlockModel(request.checkpoint, request.spec, request.sources, pool, request.resident)


def _empty_model(request: LoadRequest, pool: Pool) -> PackedModel:
    stored = _stored(request)
    if stored is None:
        return PackedModel(request.spec, request.precision, pool, request.group)
    from ipex_assist.executors.native.stored import stored_model

    return stored_model(stored, request.spec, request.sources, pool)


def _pack(request: LoadRequest, model: PackedModel) -> None:
    stored = _stored(request)
    if stored is None:
        from ipex_assist.executors.native.float_weights import pack_floats

        order = _token_order(request)
        pack_floats(model, request.checkpoint, request.sources, {} if order is None else {"lm_head.weight": order})
        return
    with one_torch_thread(), torch_module().inference_mode():
        from ipex_assist.executors.native.stored import large_floats, pack_stored
        from ipex_assist.executors.tensor_stream import stream_tensors

        read = with_large_ones(large_floats(stored, request.sources), stored.stored)
        _, weights = stream_tensors(stored, request.sources, request.precision, read)
        pack_stored(model, stored, request.sources, weights)
