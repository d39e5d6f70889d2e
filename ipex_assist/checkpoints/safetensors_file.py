"""Safetensors files, read tensor by tensor with plain file reads.

`safetensors.safe_open` maps the file, and every page that was read counts as resident memory of this process: loading
through it takes the size of the file beside the model. A plain read takes one tensor.
Format: https://huggingface.co/docs/safetensors (8 bytes of header length, a JSON header, the data).
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipex_assist.env.errors import IpexAssistError

if TYPE_CHECKING:
    import torch

# Format name → (torch dtype name, bytes of an element).
DTYPES = {
    "F64": ("float64", 8),
    "F32": ("float32", 4),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "I64": ("int64", 8),
    "I32": ("int32", 4),
    "I16": ("int16", 2),
    "I8": ("int8", 1),
    "U8": ("uint8", 1),
    "BOOL": ("bool", 1),
}
_MAX_HEADER_BYTES = 100_000_000  # the limit of the reference implementation


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file: its data are bytes [offset, offset + nbytes) of `path`."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """All tensors of one file by name, in file order. Reads the header only.

    Raises:
        IpexAssistError: the file is truncated, a Git LFS pointer, or not a safetensors file.
    """
    refuse_lfs_pointer(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
        if start > size:
            raise _corrupt(path, f"its header should end at byte {start:,}, but the file has {size:,} bytes")
        try:
            if start - 8 > _MAX_HEADER_BYTES:
                raise ValueError(f"{start - 8:,} bytes of header, and the format allows {_MAX_HEADER_BYTES:,}")
            entries = json.loads(file.read(start - 8))
            tensors = {
                name: _stored_tensor(path, entry, start) for name, entry in entries.items() if name != "__metadata__"
            }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _corrupt(path, f"its header cannot be read ({type(error).__name__}: {error})") from error
    expected = max((tensor.offset + tensor.nbytes for tensor in tensors.values()), default=start)
    if expected > size:
        raise _corrupt(path, f"expected {expected:,} bytes, found {size:,}")
    ordered = sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes))
    for (name, tensor), (other, following) in itertools.pairwise(ordered):
        if tensor.offset + tensor.nbytes > following.offset:
            raise _corrupt(path, f"the data of {name} and of {other} overlap")
    return dict(ordered)


def read_tensors(tensors: Iterable[tuple[str, StoredTensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Read the given tensors in the given order, each into memory of its own.

    Raises IpexAssistError where a file is too short.
    """
    import torch

    file = None
    try:
        for name, tensor in tensors:
            if file is None or file.name != str(tensor.path):
                if file is not None:
                    file.close()
                file = open(tensor.path, "rb", buffering=0)  # noqa: SIM115 - stays open for the file's next tensors
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            data = torch.empty(tensor.nbytes, dtype=torch.uint8)
            read_into(file, tensor.offset, data.numpy())
            yield name, data.view(getattr(torch, DTYPES[tensor.dtype][0])).reshape(tensor.shape)
            del data
    finally:
        if file is not None:
            file.close()


def read_rows(tensor: StoredTensor, first: int, last: int) -> torch.Tensor:
    """Rows [first, last) of a tensor (…, columns), as a matrix. Raises IpexAssistError where the file is too short."""
    import torch

    each = tensor.shape[-1] * DTYPES[tensor.dtype][1]
    data = torch.empty((last - first) * each, dtype=torch.uint8)
    with open(tensor.path, "rb", buffering=0) as file:
        read_into(file, tensor.offset + first * each, data.numpy())
    return data.view(getattr(torch, DTYPES[tensor.dtype][0])).reshape(last - first, tensor.shape[-1])


def type_name(dtype: torch.dtype) -> str:
    """The format's name of a type, such as "BF16"; torch's where the format has none."""
    name = str(dtype).removeprefix("torch.")
    return next((ours for ours, (theirs, _) in DTYPES.items() if theirs == name), name)


def is_equal(first: StoredTensor, second: StoredTensor) -> bool:
    """Whether both have the same shape, type and bytes. Reads up to the first piece that differs."""
    if (first.dtype, first.shape, first.nbytes) != (second.dtype, second.shape, second.nbytes):
        return False
    with first.path.open("rb", buffering=0) as one, second.path.open("rb", buffering=0) as other:
        one.seek(first.offset)
        other.seek(second.offset)
        left = first.nbytes
        while left:
            size = min(left, 1 << 20)
            piece = one.read(size)
            if not piece or piece != other.read(len(piece)):
                return False
            left -= len(piece)
    return True


def read_into(file: Any, offset: int, array: Any) -> None:
    """Fill an array from byte `offset` of an unbuffered file. Raises IpexAssistError where the file is too short."""
    buffer = memoryview(array)
    file.seek(offset)
    filled = 0
    while filled < len(buffer):
        count = file.readinto(buffer[filled:])
        if not count:
            raise IpexAssistError(
                f"{file.name}: the file ended at byte {offset + filled:,} while it was read; "
                f"expected at least {offset + len(buffer):,} bytes. Was it replaced meanwhile? Try again."
            )
        filled += count


def refuse_lfs_pointer(path: Path) -> None:
    """Raise IpexAssistError if `path` is the pointer that `git clone` without Git LFS leaves for a large file."""
    with path.open("rb") as file:
        head = file.read(256)
    if head.startswith(b"version https://git-lfs"):
        size = next((line[5:].decode() for line in head.splitlines() if line.startswith(b"size ")), "?")
        raise IpexAssistError(
            f"{path} is a Git LFS pointer, not the file itself ({size} bytes are missing). "
            f"Run 'git lfs pull' in {path.parent}."
        )


def fits_memory(shape: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape is possible. The other sizes of an empty one may be huge and overflow strides."""
    return math.prod(max(1, length) for length in shape) < 1 << 56


def _stored_tensor(path: Path, entry: dict[str, Any], start: int) -> StoredTensor:
    begin, end = entry["data_offsets"]
    shape = tuple(entry["shape"])
    for number in (begin, end, *shape):
        if type(number) is not int or not 0 <= number < 1 << 63:
            raise ValueError(f"{number!r} among its shapes and offsets")
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"unknown data type {entry['dtype']}")
    if not fits_memory(shape):
        raise ValueError(f"shape {list(shape)}")
    if end - begin != math.prod(shape) * DTYPES[entry["dtype"]][1]:
        raise ValueError(f"offsets {begin}..{end} do not fit shape {list(shape)} of {entry['dtype']}")
    return StoredTensor(path, entry["dtype"], shape, start + begin, end - begin)


def _corrupt(path: Path, what: str) -> IpexAssistError:
    return IpexAssistError(f"{path} is truncated or no safetensors file: {what[:300]}. Download it again.")
