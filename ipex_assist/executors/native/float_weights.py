"""Packs a checkpoint's floats into the native core's image: from its files, where they lie there as they are packed.

Then the core's threads read the rows that they pack, all at a time, and nothing imports torch. Whatever must be cut,
transposed or dequantized before comes as tensors, one at a time, and large ones in ranges of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from ipex_assist.checkpoints.safetensors_file import DTYPES, StoredTensor
from ipex_assist.deferred_imports import one_torch_thread, torch_module
from ipex_assist.executors.native.files_ahead import FilesAhead
from ipex_assist.executors.native.matrix_rows import matrix_rows, pack_matrix_rows
from ipex_assist.executors.tensor_stream import packing_phase
from ipex_assist.models import Source
from ipex_assist.models.weights import NotFiniteError, check_shape, head_dim_of, part_of, resolve, run_of
from ipex_assist.native.model import PackedModel

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from ipex_assist.checkpoints.base import Checkpoint


RowOrders = Mapping[str, "NDArray[np.int32]"]  # of our weights: which row of a matrix comes first, second, …


def pack_floats(
    model: PackedModel,
    checkpoint: Checkpoint,
    sources: dict[str, Source],
    orders: RowOrders = MappingProxyType({}),
    *,
    allocated: bool = False,
) -> None:
    """Fill a model's image from a checkpoint, or what is left of one that is allocated.

    Raises NotFiniteError for a weight that holds NaN or infinity.
    """
    wanted = resolve(sources, checkpoint.names())
    if not allocated:
        model.allocate()
    in_files = _in_files(checkpoint, sources, wanted, orders)
    with packing_phase(checkpoint, wanted, model.precision) as packed:
        _pack_files(model, sources, wanted, in_files, packed)
        others = [name for name in wanted if name not in in_files]
        if not others:
            return
        with one_torch_thread(), torch_module().inference_mode():
            unordered = [name for name in others if not any(each in orders for each in wanted[name])]
            rows = {name: matrix_rows(checkpoint, sources, name, wanted[name], model.precision) for name in unordered}
            large = {name: matrix for name, matrix in rows.items() if matrix is not None}
            for name, matrix in large.items():
                pack_matrix_rows(model, sources, name, wanted[name], matrix)
                packed(name)
            for name, tensor in checkpoint.stream([name for name in others if name not in large], model.precision):
                _pack_tensor(model, sources, wanted[name], name, tensor, orders)
                del tensor
                packed(name)


def _in_files(
    checkpoint: Checkpoint, sources: Mapping[str, Source], wanted: Mapping[str, list[str]], orders: RowOrders
) -> dict[str, StoredTensor]:
    """The tensors whose weights are runs of their elements as a file has them, in the order of the files."""
    found = {}
    for name, ours in wanted.items():
        stored = None if any(each in orders for each in ours) else checkpoint.stored_floats(name)
        if stored is not None and all(run_of(stored.shape, sources[each]) for each in ours):
            found[name] = stored
    return dict(sorted(found.items(), key=lambda item: (item[1].path, item[1].offset)))


def _pack_files(
    model: PackedModel,
    sources: Mapping[str, Source],
    wanted: Mapping[str, list[str]],
    tensors: Mapping[str, StoredTensor],
    packed: Callable[[str], None],
) -> None:
    with FilesAhead(tensors.values()) as files:
        for name, stored in tensors.items():
            _pack_stored(model, sources, wanted[name], name, stored, files.begin(stored))
            packed(name)


def _pack_stored(
    model: PackedModel,
    sources: Mapping[str, Source],
    ours: Iterable[str],
    name: str,
    stored: StoredTensor,
    file: int,
) -> None:
    dtype, element = DTYPES[stored.dtype]
    for weight in ours:
        run = run_of(stored.shape, sources[weight])
        assert run is not None, weight
        first, shape = run
        check_shape(model.spec, weight, shape)
        try:
            model.pack_file(weight, file, stored.offset + first * element, dtype, shape)
        except NotFiniteError as error:
            raise NotFiniteError(name, error.where) from None


def _pack_tensor(
    model: PackedModel,
    sources: Mapping[str, Source],
    ours: Iterable[str],
    name: str,
    tensor: torch.Tensor,
    orders: RowOrders,
) -> None:
    for weight in ours:
        part = part_of(tensor, sources[weight], head_dim_of(model.spec, weight))
        check_shape(model.spec, weight, tuple(part.shape))
        if (order := orders.get(weight)) is not None:
            part = part[order.tolist()]
        try:
            model.pack(weight, part)
        except NotFiniteError as error:
            raise NotFiniteError(name, error.where) from None
