"""A checkpoint's tensors into the native core's packed image, and the pool they are packed by."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable

import torch

from ipex_assist import launch
from ipex_assist.launch.plan import MASK_AT_START
from ipex_assist.models import Source
from ipex_assist.models.weights import NotFiniteError, check_shape, part_of, resolve
from ipex_assist.native.library import Pool, shared_pool
from ipex_assist.native.model import NativeModel


@functools.cache
def planned_pool(threads: int | None = None) -> Pool:
    """The pool the launcher planned: its CPUs in order, or as many as torch would use of those we were started on.

    What the first call found holds for the process: by then torch is told to keep to one thread.
    """
    plan = launch.inherited_plan(os.environ)
    cpus = tuple(plan.cpus) if plan is not None else tuple(sorted(MASK_AT_START))
    count = threads or (plan.threads if plan is not None else min(torch.get_num_threads(), len(cpus)))
    return shared_pool(count, cpus[:count] if count <= len(cpus) else None)


def spans_nodes() -> bool:
    """Whether memory of several NUMA nodes was planned, so that weights belong near the thread that reads them."""
    plan = launch.inherited_plan(os.environ)
    return plan is not None and len(plan.nodes) > 1


def pack_weights(
    model: NativeModel,
    sources: dict[str, Source],
    names: Iterable[str],
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> None:
    """Fill a model's image from a checkpoint's stream, one tensor at a time."""
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
