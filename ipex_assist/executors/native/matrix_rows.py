"""Large matrices of a checkpoint, packed in ranges of rows, so that none is ever whole in memory beside the image."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints.base import Checkpoint, RowReader
from ipex_assist.models import Source
from ipex_assist.models.weights import NotFiniteError, check_shape, run_of

if TYPE_CHECKING:
    from ipex_assist.native.model import PackedModel

LARGE_BYTES = 64 << 20  # of a tensor in 16 bits that is read in ranges
RANGE_BYTES = 16 << 20
BLOCK_ROWS = 16  # ranges begin at multiples of them


@dataclass(frozen=True)
class MatrixRows:
    """A tensor (…, columns) of a checkpoint, of which `read` gives rows [first, last) as a matrix."""

    shape: tuple[int, ...]
    read: RowReader

    def pack(self, model: PackedModel, ours: str, source: Source) -> None:
        """Pack the weight that is a run of these rows. Raises NotFiniteError where it holds NaN or infinity."""
        run = run_of(self.shape, source)
        assert run is not None, ours
        start, (rows, columns) = run[0] // self.shape[-1], run[1]
        check_shape(model.spec, ours, run[1])
        step = max(BLOCK_ROWS, RANGE_BYTES // (2 * columns) // BLOCK_ROWS * BLOCK_ROWS)
        for first in range(0, rows, step):
            model.pack_rows(ours, first, self.read(start + first, start + min(first + step, rows)))


def matrix_rows(
    checkpoint: Checkpoint, sources: Mapping[str, Source], name: str, ours: Iterable[str], precision: str
) -> MatrixRows | None:
    """The tensor `name`, that weights `ours` are taken from, if it is large and each of them is a run of its rows."""
    shape = checkpoint.shapes().get(name, ())
    if len(shape) < 2 or 2 * math.prod(shape) < LARGE_BYTES:
        return None
    runs = [run_of(shape, sources[each]) for each in ours]
    if any(run is None or len(run[1]) != 2 or run[0] % shape[-1] or run[1][1] != shape[-1] for run in runs):
        return None
    read = checkpoint.row_reader(name, precision)
    return None if read is None else MatrixRows(shape, read)


def pack_matrix_rows(
    model: PackedModel, sources: Mapping[str, Source], name: str, ours: Iterable[str], matrix: MatrixRows
) -> None:
    """Pack all weights that are runs of a tensor's rows; errors name the tensor as the checkpoint does."""
    for weight in ours:
        try:
            matrix.pack(model, weight, sources[weight])
        except NotFiniteError as error:
            raise NotFiniteError(name, error.where) from None


def with_large_ones(
    large: Mapping[str, MatrixRows], read: Callable[[Iterable[str]], Iterator[tuple[str, Any]]]
) -> Callable[[Iterable[str]], Iterator[tuple[str, Any]]]:
    """A reader of tensors by name that gives those of `large` first, as they are here, and `read` the others."""

    def tensors(names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        wanted = list(names)
        yield from ((name, large[name]) for name in wanted if name in large)
        yield from read([name for name in wanted if name not in large])

    return tensors
