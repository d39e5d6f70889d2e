"""A checkpoint's tensors into the native core's packed image, and the pool they are packed by."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Iterable, Iterator

import torch

from ipex_assist import launch
from ipex_assist.checkpoints.quantized import QuantizedCheckpoint
from ipex_assist.env.memory import release_free_memory
from ipex_assist.executors.native import NativeModel
from ipex_assist.executors.native_int4 import int4_model, pack_stored
from ipex_assist.executors.packed_cache import load_packed, packed_path, save_packed
from ipex_assist.executors.registry import LoadRequest
from ipex_assist.executors.tensor_stream import stream_tensors
from ipex_assist.launch.plan import MASK_AT_START
from ipex_assist.models import Source
from ipex_assist.models.weights import NotFiniteError, check_shape, part_of, resolve
from ipex_assist.native.library import Pool, instruction_set, shared_pool
from ipex_assist.native.model import PackedModel

log = logging.getLogger("ipex_assist")


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """Keep torch to one thread meanwhile, so that it starts no pool of its own, which would spin against the core's."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def planned_pool(threads: int | None = None) -> Pool:
    """The pool the launcher planned: its CPUs in order, or as many as torch would use of those we were started on.

    What the first call found holds for the process: the commands then tell torch to keep to one thread.
    """
    plan = launch.inherited_plan(os.environ)
    cpus = tuple(plan.cpus) if plan is not None else tuple(sorted(MASK_AT_START))
    count = threads or (plan.threads if plan is not None else min(torch.get_num_threads(), len(cpus)))
    return shared_pool(count, cpus[:count] if count <= len(cpus) else None)


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
    """Pack a checkpoint's weights into the core's image, or take the image from the cache folder.

    torch has one thread meanwhile, and then the caller's number again.
    """
    pool = planned_pool()
    with one_torch_thread():
        return _load(request, pool)


def _load(request: LoadRequest, pool: Pool) -> NativeModel:
    checkpoint, spec, sources, precision = request.checkpoint, request.spec, request.sources, request.precision
    started = time.perf_counter()
    stored = checkpoint if precision == "int4" and isinstance(checkpoint, QuantizedCheckpoint) else None
    model = (
        PackedModel(spec, precision, pool, request.group) if stored is None else int4_model(stored, spec, sources, pool)
    )
    kept = packed_path(checkpoint, model) if request.cache_packed else None
    from_cache = kept is not None and load_packed(model, kept)
    if kept is None and isinstance(request.table_of, NativeModel):
        model.share_table(request.table_of.packed)
    if not from_cache:
        if stored is not None:
            _, weights = stream_tensors(stored, sources, request.progress, stored.stored)
            pack_stored(model, stored, sources, weights)
        else:
            names, tensors = stream_tensors(checkpoint, sources, request.progress)
            pack_weights(model, sources, names, tensors)
        release_free_memory()
        if kept is not None:
            save_packed(model, kept)
    # What is kept on disk is whole, and so it is only now that its table may go.
    if kept is not None and isinstance(request.table_of, NativeModel):
        model.share_table(request.table_of.packed)
    log.info(
        "%s: %s %s (%.2f GB) in %.1f s; native core with %s, %d threads",
        checkpoint.source,
        precision,
        f"from {kept}" if from_cache else "packed",
        model.nbytes / 1e9,
        time.perf_counter() - started,
        instruction_set(),
        pool.threads,
    )
    return NativeModel(model, request.kv_memory, request.kv_precision)
