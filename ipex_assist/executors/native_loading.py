"""A checkpoint's tensors into the native core's packed image, and the pool they are packed by."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ipex_assist import launch
from ipex_assist.checkpoints.quantized import QuantizedCheckpoint
from ipex_assist.deferred_imports import torch_module, torch_threads
from ipex_assist.env.memory import read_memory, release_free_memory
from ipex_assist.env.topology import read_topology
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.native import NativeModel
from ipex_assist.executors.packed_cache import keeps_packed, load_packed, packed_path, save_packed
from ipex_assist.launch.plan import MASK_AT_START
from ipex_assist.models import Source
from ipex_assist.models.weights import NotFiniteError, check_shape, part_of, resolve
from ipex_assist.native.library import Pool, instruction_set, shared_pool
from ipex_assist.native.model import PackedModel

if TYPE_CHECKING:
    import torch

log = logging.getLogger("ipex_assist")

_MARGIN = 1 << 30  # of memory, beside an image


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """Keep torch to one thread meanwhile, so that it starts no pool of its own, which would spin against the core's.

    torch is imported by this.
    """
    torch = torch_module()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def planned_pool(threads: int | None = None) -> Pool:
    """The pool the launcher planned: its CPUs in order, or as many as OpenMP would use of those we were started on.

    What the first call found holds for the process: the commands then tell torch to keep to one thread.
    """
    plan = launch.inherited_plan(os.environ)
    cpus = tuple(plan.cpus) if plan is not None else tuple(sorted(MASK_AT_START))
    count = threads or (plan.threads if plan is not None else min(_openmp_threads(), len(cpus)))
    return shared_pool(count, cpus[:count] if count <= len(cpus) else None)


def _openmp_threads() -> int:
    """Threads that torch has, or would have if it were imported: as somebody said, $OMP_NUM_THREADS, or one a core."""
    known = torch_threads()
    if known is not None:
        return known
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return sum(not MASK_AT_START.isdisjoint(core.cpus) for core in read_topology().cores) or 1


def pack_weights(
    model: PackedModel,
    sources: dict[str, Source],
    names: Iterable[str],
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> None:
    """Fill a model's image from a checkpoint's stream, one tensor at a time. Raises NotFiniteError."""
    wanted = resolve(sources, names)
    model.allocate()
    for name, tensor in tensors:
        for ours in wanted.get(name, ()):
            weight = part_of(tensor, sources[ours], model.spec.head_dim)
            check_shape(model.spec, ours, tuple(weight.shape))
            try:
                model.pack(ours, weight)
            except NotFiniteError as error:
                raise NotFiniteError(name, error.where) from None
            del weight
        del tensor


def load_native(request: LoadRequest) -> NativeModel:
    """Pack a checkpoint's weights into the core's image, or take the image from the cache folder, without torch.

    Where it packs, torch has one thread meanwhile, and then the caller's number again.
    """
    checkpoint, pool = request.checkpoint, planned_pool()
    started = time.perf_counter()
    model = _empty_model(request, pool)
    kept = packed_path(checkpoint, model) if _keeps(request, model) else None
    from_cache = kept is not None and load_packed(model, kept, quick=request.quick)
    if kept is None and isinstance(request.table_of, NativeModel):
        model.share_table(request.table_of.packed)
    if not from_cache:
        if request.before_packing is not None:
            request.before_packing()
        with one_torch_thread():
            _pack(request, model)
        release_free_memory()
        if kept is not None:
            save_packed(model, kept, checkpoint.source, asked=bool(request.cache_packed))
    # What is kept on disk is whole, and so it is only now that its table may go.
    if kept is not None and isinstance(request.table_of, NativeModel):
        model.share_table(request.table_of.packed)
    log.info(
        "%s: %s %s (%.2f GB) in %.1f s; native core with %s, %d threads",
        checkpoint.source,
        request.precision,
        f"from {kept}" if from_cache else "packed",
        model.nbytes / 1e9,
        time.perf_counter() - started,
        instruction_set(),
        pool.threads,
    )
    return NativeModel(model, request.kv_memory, request.kv_precision)


def _keeps(request: LoadRequest, model: PackedModel) -> bool:
    """Whether the image is kept on disk: whole, so that a model which shares a table needs memory for its own, too."""
    if request.cache_packed is None and isinstance(request.table_of, NativeModel):
        available = read_memory().available
        return keeps_packed(None) and (not available or model.nbytes + _MARGIN <= available)
    return keeps_packed(request.cache_packed)


def _stored(request: LoadRequest) -> QuantizedCheckpoint | None:
    """The checkpoint, where its own 4 bits are kept."""
    checkpoint = request.checkpoint
    return checkpoint if request.precision == "int4" and isinstance(checkpoint, QuantizedCheckpoint) else None


def _empty_model(request: LoadRequest, pool: Pool) -> PackedModel:
    stored = _stored(request)
    if stored is None:
        return PackedModel(request.spec, request.precision, pool, request.group)
    from ipex_assist.executors.native_int4 import int4_model

    return int4_model(stored, request.spec, request.sources, pool)


def _pack(request: LoadRequest, model: PackedModel) -> None:
    from ipex_assist.executors.tensor_stream import stream_tensors

    stored = _stored(request)
    with torch_module().inference_mode():
        if stored is not None:
            from ipex_assist.executors.native_int4 import pack_stored

            _, weights = stream_tensors(stored, request.sources, request.progress, stored.stored)
            pack_stored(model, stored, request.sources, weights)
        else:
            names, tensors = stream_tensors(request.checkpoint, request.sources, request.progress)
            pack_weights(model, request.sources, names, tensors)
