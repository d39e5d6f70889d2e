"""Parses GGUF headers without numpy, and dequantizes tensors with the `gguf` package.

`gguf.GGUFReader` makes one numpy array for each token, which takes 2 s for 49 k tokens and 7 s for 152 k. The parser
below takes 0.05 s, and reads token lists only when a tokenizer needs them. Types, block sizes and dequantization are
those of the package.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints.safetensors_file import DTYPES, fits_memory, read_into, refuse_lfs_pointer
from ipex_assist.env.errors import IpexAssistError

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    import numpy
    import torch

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
# GGUF value type → struct code; 8 and 9 are strings and arrays.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

# Tensor types that are read as they are, by safetensors' names: F32, F16 and BF16 of GGMLQuantizationType.
PLAIN = {0: "F32", 1: "F16", 26: "I32", 30: "BF16"}

_MAX_DIMENSIONS = 4  # GGML_MAX_DIMS

# Elements dequantized in one call: fp32 temporaries of this size stay in a core's L2 cache.
_CHUNK = 256 * 1024
_WORKERS = 16


@dataclass(frozen=True)
class StringArray:
    """A list of `count` strings that was not read yet: a length and its bytes for each, from byte `offset`."""

    path: Path
    offset: int
    count: int

    def __len__(self) -> int:
        return self.count

    def read(self) -> list[str]:
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            position, strings = self.offset, []
            for _ in range(self.count):
                end = position + 8 + _U64.unpack_from(data, position)[0]
                strings.append(data[position + 8 : end].decode("utf-8", errors="replace"))
                position = end
        return strings

    def find(self, strings: Iterable[str]) -> dict[str, int]:
        """The positions in the list of those of `strings` that are in it, of which no others are read."""
        wanted = {each.encode(): each for each in strings}
        sizes, found = {len(each) for each in wanted}, {}
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            position, unpack = self.offset, _U64.unpack_from
            for index in range(self.count):
                size = unpack(data, position)[0]
                position += 8 + size
                if size in sizes and (string := wanted.get(data[position - size : position])) is not None:
                    found[string] = index
        return found


@dataclass(frozen=True)
class GgufTensor:
    """A stored tensor. shape: in PyTorch's order (GGUF stores it reversed); type: a GGMLQuantizationType."""

    path: Path
    shape: tuple[int, ...]
    type: int
    offset: int


@dataclass
class GgufHeader:
    """Metadata (lists of strings as StringArray) and positions of all tensors, of all parts of a split file."""

    path: Path
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, GgufTensor] = field(default_factory=dict)

    def get(self, key: str, default: Any = None) -> Any:
        """The metadata value of `key`, in which "{arch}" stands for the file's architecture."""
        return self.metadata.get(key.replace("{arch}", str(self.metadata.get("general.architecture"))), default)

    def required(self, key: str) -> Any:
        """The metadata value of "{arch}.key". Raises IpexAssistError where there is none."""
        value = self.get(f"{{arch}}.{key}")
        if value is None:
            arch = self.get("general.architecture")
            raise IpexAssistError(f"{self.path}: the metadata lacks {arch}.{key}. Convert the model again.")
        return value

    def strings(self, key: str) -> list[str]:
        """The list of strings of `key`; empty where there is none."""
        value = self.metadata.get(key)
        return value.read() if isinstance(value, StringArray) else []


def read_header(path: Path) -> GgufHeader:
    """Parse the header of a GGUF file, and of the other parts of a split one. Reads no tensor data.

    Raises:
        IpexAssistError: the file or a part is missing, truncated, or not little-endian GGUF of version 2 or 3.
    """
    header = _read_part(path)
    parts = _count(header, "split.count")
    if parts > 1:
        match = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name)
        if not match or int(match[2]) != parts:  # else a list of billions of names would be made
            raise IpexAssistError(
                f"{path} is one of {parts} parts by its metadata, but is not named like NAME-00001-of-{parts:05}.gguf."
            )
        files = [path.with_name(f"{match[1]}-{part:05}-of-{parts:05}.gguf") for part in range(1, parts + 1)]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise IpexAssistError(f"{path.parent} lacks {len(missing)} of {parts} parts: {', '.join(missing)}.")
        headers = [_read_part(file) for file in files]
        header = GgufHeader(path, headers[0].metadata, {})
        for part in headers:
            header.tensors.update(part.tensors)
    return header


def metadata_entries(path: Path) -> dict[str, bytes]:
    """The metadata of one file as they lie there, key, type and value, by key. Raises IpexAssistError as above."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        parser = _Parser(path, data)
        parser.parse()
        return {key: data[start:end] for key, (start, end) in parser.entries.items()}


def check_sizes(header: GgufHeader) -> None:
    """Raise IpexAssistError where a file is too short for its tensors, or a tensor's type is unknown."""
    sizes: dict[Path, int] = {}
    for name, tensor in header.tensors.items():
        end = tensor.offset + stored_bytes(name, tensor)
        sizes[tensor.path] = max(sizes.get(tensor.path, 0), end)
    for path, expected in sizes.items():
        actual = path.stat().st_size
        if actual < expected:
            raise IpexAssistError(
                f"{path} is truncated: expected {expected:,} bytes, found {actual:,}. Download it again."
            )


def stored_bytes(name: str, tensor: GgufTensor) -> int:
    """Bytes of the tensor in the file. Raises IpexAssistError for an unknown type or an impossible shape."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.type)]
    except (ValueError, KeyError):
        raise IpexAssistError(
            f"{tensor.path}: tensor {name} has quantization type {tensor.type}, which the installed gguf package does "
            "not know. Try 'pip install -U gguf', or use a file in Q4_K_M or Q8_0."
        ) from None
    rows, columns = _elements(tensor.shape[:-1]), tensor.shape[-1] if tensor.shape else 1
    if columns % block:
        raise IpexAssistError(
            f"{tensor.path} is corrupt: tensor {name} has {columns} columns, not a multiple of {block}."
        )
    return rows * columns // block * block_bytes


def is_quantized(tensor: GgufTensor) -> bool:
    """Whether the tensor is stored in blocks that must be dequantized."""
    return tensor.type not in PLAIN


def rows_of(name: str, tensor: GgufTensor, first: int, last: int) -> GgufTensor:
    """Rows first … last of a tensor (matrices of a 3-D one): in every type they are stored one after the other."""
    each = stored_bytes(name, tensor) // tensor.shape[0]
    return replace(tensor, shape=(last - first, *tensor.shape[1:]), offset=tensor.offset + first * each)


def rounded(value: float) -> float:
    """A float32 as a person would write it: 1e-05, not 9.999999747378752e-06."""
    return float(f"{value:.7g}")


def read_tensors(
    tensors: Iterable[tuple[str, GgufTensor]], cpus: set[int] | None = None, *, fp32: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    """Read tensors in the given order: F32, F16 and BF16 as they are, quantized ones as bf16, or exactly where `fp32`.

    cpus: where to dequantize. Threads inherit the affinity of the thread that starts them, and an OpenMP runtime that
    binds its threads leaves the main thread a single CPU; so the caller notes the set before any computation.
    """
    from concurrent.futures import ThreadPoolExecutor  # late: most starts read no GGUF

    cpus = cpus or os.sched_getaffinity(0)
    count = min(_WORKERS, len(cpus))
    with ThreadPoolExecutor(count, initializer=os.sched_setaffinity, initargs=(0, cpus)) as workers:
        for name, tensor in tensors:
            yield name, _read_tensor(name, tensor, workers, fp32)


def read_floats(name: str, tensor: GgufTensor) -> list[float]:
    """The numbers of a small tensor in F32. Raises IpexAssistError for one of another type."""
    import numpy

    if tensor.type != 0:
        raise IpexAssistError(f"{tensor.path}: tensor {name} is of type {tensor.type}, not F32. Convert it again.")
    values = numpy.empty(_elements(tensor.shape), dtype=numpy.float32)
    with open(tensor.path, "rb", buffering=0) as file:
        read_into(file, tensor.offset, values.view(numpy.uint8))
    found: list[float] = values.tolist()
    return found


def _read_tensor(name: str, tensor: GgufTensor, workers: ThreadPoolExecutor, fp32: bool) -> torch.Tensor:
    import numpy
    import torch
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    raw = numpy.empty(stored_bytes(name, tensor), dtype=numpy.uint8)
    with open(tensor.path, "rb", buffering=0) as file:
        read_into(file, tensor.offset, raw)
    if not is_quantized(tensor):
        return torch.from_numpy(raw).view(getattr(torch, DTYPES[PLAIN[tensor.type]][0])).reshape(tensor.shape)

    kind = GGMLQuantizationType(tensor.type)
    block, block_bytes = GGML_QUANT_SIZES[kind]
    result = numpy.empty(_elements(tensor.shape), dtype=numpy.float32 if fp32 else numpy.uint16)
    chunk = _CHUNK // block

    def convert(first: int) -> None:
        blocks: numpy.ndarray = raw[first * block_bytes : (first + chunk) * block_bytes]
        values = dequantize(blocks.reshape(1, -1), kind).reshape(-1)
        result[first * block : first * block + len(values)] = values if fp32 else _to_bf16(values)

    try:
        list(workers.map(convert, range(0, len(raw) // block_bytes, chunk)))
    except NotImplementedError as error:
        raise IpexAssistError(f"{tensor.path}: tensor {name}: {error}. Use a file in Q4_K_M or Q8_0.") from error
    floats = torch.from_numpy(result)
    return (floats if fp32 else floats.view(torch.bfloat16)).reshape(tensor.shape)


def _to_bf16(values: numpy.ndarray) -> numpy.ndarray:
    """The bits of fp32 values rounded to the nearest even bf16; in numpy, so that no worker starts OpenMP threads."""
    bits = values.view("uint32")
    bits += ((bits >> 16) & 1) + 0x7FFF
    return bits >> 16


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for length in shape:
        count *= length
    return count


def _count(header: GgufHeader, key: str) -> int:
    """The count stored under `key`; 0 where there is none. Raises IpexAssistError for any other value."""
    value = header.metadata.get(key, 0)
    if not isinstance(value, int) or value < 0:
        raise IpexAssistError(
            f"{header.path} is corrupt: {key} is {str(value)[:60]!r}, not a count. Download it again."
        )
    return value


def _read_part(path: Path) -> GgufHeader:
    refuse_lfs_pointer(path)
    size = path.stat().st_size
    if size < 24:
        raise IpexAssistError(f"{path} is no GGUF file: it has {size} bytes, a header at least 24. Download it again.")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Parser(path, data).parse()
        except (struct.error, UnicodeDecodeError, IndexError, OverflowError, MemoryError, RecursionError) as error:
            raise IpexAssistError(
                f"{path} is truncated or corrupt: its header does not fit into the {size:,} bytes found "
                f"({type(error).__name__}: {error}). Download it again."
            ) from error


class _Parser:
    """A cursor over the mapped header; running off the end raises struct.error."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.position = path, data, 0
        self.entries: dict[str, tuple[int, int]] = {}  # where the metadata of a key begin and end

    def parse(self) -> GgufHeader:
        if self.data[:4] != b"GGUF":
            raise IpexAssistError(f"{self.path} is no GGUF file: it starts with {self.data[:4]!r}, not with b'GGUF'.")
        self.position = 4
        version, tensor_count, metadata_count = self._u32(), self._u64(), self._u64()
        if version not in (2, 3):
            raise IpexAssistError(
                f"{self.path}: GGUF version {version} (or a big-endian file); versions 2 and 3 are read. "
                "Convert the model again with a current llama.cpp."
            )
        header = GgufHeader(self.path)
        for _ in range(metadata_count):
            start, key = self.position, self._string()
            header.metadata[key] = self._value(self._u32())
            self.entries[key] = start, self.position
        found: list[tuple[str, tuple[int, ...], int, int]] = []
        for _ in range(tensor_count):
            name, dimensions = self._string(), self._u32()
            if dimensions > _MAX_DIMENSIONS:
                raise struct.error(f"tensor {name[:80]} has {dimensions:,} dimensions")
            shape = tuple(self._u64() for _ in range(dimensions))[::-1]
            if not fits_memory(shape):
                raise struct.error(f"tensor {name[:80]} has the shape {list(shape)}")
            found.append((name, shape, self._u32(), self._u64()))
        alignment = _count(header, "general.alignment") or 32
        start = -(-self.position // alignment) * alignment
        header.tensors = {name: GgufTensor(self.path, shape, kind, start + at) for name, shape, kind, at in found}
        return header

    def _u32(self) -> int:
        self.position += 4
        return int(_U32.unpack_from(self.data, self.position - 4)[0])

    def _u64(self) -> int:
        self.position += 8
        return int(_U64.unpack_from(self.data, self.position - 8)[0])

    def _take(self, count: int) -> bytes:
        if count > len(self.data) - self.position:
            raise struct.error(f"{count:,} bytes wanted at byte {self.position:,}")
        self.position += count
        return self.data[self.position - count : self.position]

    def _string(self) -> str:
        return self._take(self._u64()).decode()

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(self._u32(), self._u64())
        if kind not in _SCALARS:
            raise struct.error(f"unknown value type {kind} at byte {self.position:,}")
        code = struct.Struct("<" + _SCALARS[kind])
        return code.unpack(self._take(code.size))[0]

    def _array(self, kind: int, count: int) -> Any:
        if kind == _STRING:
            array = StringArray(self.path, self.position, count)
            data, position, unpack = self.data, self.position, _U64.unpack_from
            for _ in range(count):  # 0.1 µs for each string: nearly all of the time it takes to open a file
                position += 8 + unpack(data, position)[0]
            self.position = position
            return array
        if kind == _ARRAY:
            return [self._value(_ARRAY) for _ in range(count)]
        if kind not in _SCALARS:
            raise struct.error(f"unknown array type {kind} at byte {self.position:,}")
        size = struct.calcsize(_SCALARS[kind])
        data_bytes = self._take(count * size)
        return list(struct.unpack(f"<{count}{_SCALARS[kind]}", data_bytes))
