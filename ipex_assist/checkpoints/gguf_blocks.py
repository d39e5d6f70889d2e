"""Which weights a GGUF file has in blocks that the native core multiplies as they are, and where their rows lie."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints import gguf_config, gguf_file
from ipex_assist.deferred_imports import one_torch_thread
from ipex_assist.models.weights import Source, head_dim_of, may_be_linear, part_of, rows_of, weight_shape
from ipex_assist.quantization.precision import BLOCK_FORMAT, BLOCK_TYPES

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from ipex_assist.checkpoints.gguf_tables import RestoredTensor
    from ipex_assist.models.spec import DecoderSpec


@dataclass(frozen=True)
class RowsInFile:
    """A matrix in blocks: row i from byte `rows[i]` of the file on, all within [offset, offset + nbytes)."""

    path: Path
    offset: int
    nbytes: int
    rows: array[int]
    columns: int


def block_formats(
    tensors: Mapping[str, RestoredTensor], spec: DecoderSpec, sources: Mapping[str, Source]
) -> dict[str, int]:
    """Our weights that are in blocks, by the headers, and the formats that these have in the core."""
    formats = {}
    for ours, source in sources.items():
        name = _name(tensors, source)
        kind = None if name is None else _type(tensors[name])
        if name is None or kind is None or not may_be_linear(ours):
            continue
        if _keeps_columns(tensors[name], source, weight_shape(spec, ours)):
            formats[ours] = BLOCK_FORMAT + kind
    return formats


def block_rows(
    tensors: Mapping[str, RestoredTensor], config: dict[str, Any], spec: DecoderSpec, ours: str, source: Source
) -> RowsInFile | None:
    """Where the rows of one of `block_formats` lie; None where it is made of a file's rows in another way."""
    import numpy as np

    name = _name(tensors, source)
    assert name is not None, ours
    stored, (rows, columns), head_dim = tensors[name], weight_shape(spec, ours), head_dim_of(spec, ours)
    counts = [math.prod(part.shape[:-1]) for part in stored.parts]
    numbers = _numbers_by_name(name, stored, config, source, head_dim)
    if numbers is None:
        numbers = _numbers_by_probe(name, stored, config, source, head_dim)
    if numbers is None or numbers.shape != (rows,):
        return None
    each = gguf_file.stored_bytes(name, stored.parts[0]) // counts[0]
    starts = np.cumsum([0, *counts[:-1]])
    part_of_row = np.searchsorted(starts, numbers, "right") - 1
    before = np.array([part.offset for part in stored.parts]) - starts * each
    found = before[part_of_row] + numbers * each
    first, last = int(found.min()), int(found.max())
    return RowsInFile(stored.parts[0].path, first, last + each - first, array("q", found.tobytes()), columns)


def _numbers_by_name(
    name: str, stored: RestoredTensor, config: dict[str, Any], source: Source, head_dim: int
) -> NDArray[np.int64] | None:
    """The file's row numbers of our rows, without torch: of tensors that are as stored, or q and k of Llama's files."""
    import numpy as np

    moved = source.expert is not None or source.transposed or source.flat or source.last_first
    moved = moved or source.pairs or source.heads_transposed
    if moved or len(stored.parts) != 1 or not gguf_config.keeps_rows(name, stored, config):
        return None
    numbers: Any = np.arange(stored.parts[0].shape[0])
    if stored.restore is None:
        numbers = gguf_config.undo_permutation(name, numbers, config)
    try:
        return np.asarray(rows_of(numbers, source, head_dim))
    except ValueError:  # rows that cannot be cut into heads
        return None


def _numbers_by_probe(
    name: str, stored: RestoredTensor, config: dict[str, Any], source: Source, head_dim: int
) -> NDArray[np.int64] | None:
    """Of any tensor: row numbers are sent through all that its rows go through on their way to our weight."""
    with one_torch_thread():
        import torch

        probes, total = [], 0
        for part in stored.parts:
            rows = math.prod(part.shape[:-1])
            probes.append(_probe_of(torch.arange(total + 1, total + rows + 1)).reshape(*part.shape[:-1], 3))
            total += rows
        try:
            found = part_of(gguf_config.restored(name, stored, probes, config), source, head_dim)
        except (RuntimeError, ValueError, IndexError):  # it looks at columns
            return None
        whole = found.dtype == torch.int64 and found.dim() == 2 and found.shape[1] == 3
        if not whole or not torch.equal(found, _probe_of(found[:, 0])):
            return None
        numbers: NDArray[np.int64] = (found[:, 0] - 1).numpy()
        return numbers


def _probe_of(numbers: torch.Tensor) -> torch.Tensor:
    """Rows by which it shows when one is scaled, shifted or mixed with others: (rows, 3)."""
    import torch

    return torch.stack((numbers, -numbers, torch.full_like(numbers, 7)), 1)


def _name(tensors: Mapping[str, RestoredTensor], source: Source) -> str | None:
    """The file's name of what one of our weights is taken from."""
    return next((name for name in (source.name, *source.alternatives) if name in tensors), None)


def _type(stored: RestoredTensor) -> int | None:
    """The type of all of its parts, which lie in one file; None where they differ, or are no blocks."""
    kinds = {(part.type, part.path, part.shape[-1]) for part in stored.parts if len(part.shape) > 1}
    if len(kinds) != 1 or any(len(part.shape) < 2 for part in stored.parts):
        return None
    [(kind, _, _)] = kinds
    return kind if kind in BLOCK_TYPES else None


def _keeps_columns(stored: RestoredTensor, source: Source, shape: tuple[int, ...]) -> bool:
    whole = source.factor == 1 and source.plus == 0 and not source.heads_transposed
    return whole and len(shape) == 2 and stored.parts[0].shape[-1] == shape[1]
