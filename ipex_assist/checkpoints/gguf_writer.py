"""Writes GGUF files (version 3), tensor by tensor: nothing but one tensor is in memory.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from ipex_assist.env.errors import IpexAssistError

if TYPE_CHECKING:
    import numpy

ALIGNMENT = 32
# Types of values that `entry` writes, by Python's.
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor to be written. shape: in PyTorch's order; type: a GGMLQuantizationType."""

    name: str
    shape: tuple[int, ...]
    type: int
    nbytes: int


def entry(key: str, value: str | float | bool | Sequence[str] | Sequence[int]) -> bytes:
    """One key of the metadata: an unsigned number of 32 bits, a float, a boolean, a text, or a list of texts or
    signed numbers.
    """
    head = _text(key)
    if isinstance(value, (list, tuple)):
        texts = b"".join(_text(each) for each in value if isinstance(each, str))
        if texts:
            return head + struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + texts
        return head + struct.pack(f"<IIQ{len(value)}i", _ARRAY, _INT32, len(value), *value)
    if isinstance(value, bool):
        return head + struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return head + struct.pack("<II", _UINT32, value)
    if isinstance(value, float):
        return head + struct.pack("<If", _FLOAT32, value)
    return head + struct.pack("<I", _STRING) + _text(str(value))


def _text(value: str) -> bytes:
    content = value.encode()
    return struct.pack("<Q", len(content)) + content


class GgufWriter:
    """A file whose header is written at once, and whose tensors follow in the order in which they were planned."""

    def __init__(self, path: Path, metadata: Iterable[bytes], tensors: Sequence[PlannedTensor]) -> None:
        self._path, self._planned = path, iter(tensors)
        entries, offset, infos = list(metadata), 0, []
        for tensor in tensors:
            sides = tensor.shape[::-1]
            infos.append(
                _text(tensor.name) + struct.pack(f"<I{len(sides)}QIQ", len(sides), *sides, tensor.type, offset)
            )
            offset += tensor.nbytes + -tensor.nbytes % ALIGNMENT
        header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries)) + b"".join(entries) + b"".join(infos)
        self.nbytes = len(header) + -len(header) % ALIGNMENT + offset
        self._file: BinaryIO = path.open("wb")
        self._file.write(header + bytes(-len(header) % ALIGNMENT))
        self._left = 0  # bytes of the present tensor that are still to come

    def write(self, blocks: numpy.ndarray) -> None:
        """The next bytes of the tensor whose turn it is."""
        if not self._left:
            self._left = next(self._planned).nbytes
        assert blocks.nbytes <= self._left, "more bytes than were planned"
        self._file.write(blocks.reshape(-1).view("uint8").data)
        self._left -= blocks.nbytes
        if not self._left:
            self._file.write(bytes(-self._file.tell() % ALIGNMENT))

    def __enter__(self) -> GgufWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()
        if kind is None and (self._left or next(self._planned, None) is not None):
            raise IpexAssistError(f"{self._path} is not whole: tensors are missing")
