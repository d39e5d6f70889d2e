"""What the operations of the core's passes write: for finding the first one that differs from a reference."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipex_assist.native.model import PackedModel


class WatchedBuffer(ctypes.Structure):
    """Mirrors `WatchedBuffer` of operation.h."""

    _fields_ = [
        ("operation", ctypes.c_char_p),
        ("buffer", ctypes.c_char_p),
        ("layer", ctypes.c_int32),
        ("pass_rows", ctypes.c_int32),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("data", ctypes.POINTER(ctypes.c_float)),
        ("batch_rows", ctypes.POINTER(ctypes.c_int32)),
    ]


class OperationOutput(NamedTuple):
    """A buffer as an operation left it.

    layer: -1 before the first layer, the number of layers after the last. values: float32 (rows, columns), a copy.
    batch_rows: which row of the batch each of them is; a row may come several times (once for each of its experts), and
    -1 is a row of an earlier pass that a recurrent state has yet to take.
    """

    operation: str
    buffer: str
    layer: int
    values: NDArray[np.float32]
    batch_rows: tuple[int, ...]


_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(WatchedBuffer))


class COperationWatch(ctypes.Structure):
    """Mirrors `OperationWatch` of operation.h."""

    _fields_ = [("call", _CALL), ("context", ctypes.c_void_p)]


@contextlib.contextmanager
def watched(model: PackedModel, see: Callable[[OperationOutput], None]) -> Iterator[None]:
    """Within it, `see` gets every buffer that an operation of this model's passes writes, in their order.

    It may not use the model. Passes take many times as long, and compute the same.
    """
    failures: list[BaseException] = []

    def call(_: int | None, buffer: ctypes._Pointer[WatchedBuffer]) -> None:
        try:
            see(_output(buffer.contents))
        except BaseException as error:
            failures.append(error)

    watch = COperationWatch(_CALL(call), None)
    model.library.ia_watch(model.handle, ctypes.byref(watch))
    try:
        yield
    finally:
        model.library.ia_watch(model.handle, None)
    if failures:
        raise failures[0]


def _output(found: WatchedBuffer) -> OperationOutput:
    rows, columns, stride = found.rows, found.columns, found.stride
    values = np.zeros((0, columns), np.float32)
    if rows:
        flat = np.ctypeslib.as_array(found.data, (rows * stride - (stride - columns),))
        strides = (stride * flat.itemsize, flat.itemsize)
        values = np.lib.stride_tricks.as_strided(flat, (rows, columns), strides).copy()
    numbers = tuple(found.batch_rows[:rows])
    return OperationOutput(found.operation.decode(), found.buffer.decode(), found.layer, values, numbers)
