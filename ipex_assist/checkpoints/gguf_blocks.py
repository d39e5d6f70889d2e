"""Which weights a GGUF file has in blocks that the native core multiplies as they are, and where their rows lie."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ipex_assist.checkpoints import gguf_config, gguf_file
from ipex_assist.models.weights import Source, head_dim_of, part_of, weight_shape
from ipex_assist.quantization.precision import BLOCK_FORMAT, BLOCK_TYPES

if TYPE_CHECKING:
    import torch

    from ipex_assist.checkpoints.gguf_tables import RestoredTensor
    from ipex_assist.models.spec import DecoderSpec

# Matrices outside of layers that are linears, or that tokens are looked up in.
_OUTER = ("lm_head", "embed_tokens", "project_in", "project_out")


@dataclass(frozen=True)
class RowsInFile:
    """A matrix in blocks: row i from byte `offsets[i]` of the file on."""

    path: Path
    offsets: array[int]
    columns: int


def block_formats(
    tensors: Mapping[str, RestoredTensor], spec: DecoderSpec, sources: Mapping[str, Source]
) -> dict[str, int]:
    """Our weights that are in blocks, by the headers, and the formats that these have in the core."""
    formats = {}
    for ours, source in sources.items():
        stored = _stored(tensors, source)
        kind = None if stored is None else _type(stored)
        if kind is not None and _is_linear(ours) and _keeps_columns(stored, source, weight_shape(spec, ours)):
            formats[ours] = BLOCK_FORMAT + kind
    return formats


def block_rows(
    tensors: Mapping[str, RestoredTensor], config: dict[str, object], spec: DecoderSpec, ours: str, source: Source
) -> RowsInFile | None:
    """Where the rows of one of `block_formats` lie; None where it is made of a file's rows in another way.

    Row numbers are sent through all that the rows of a tensor go through on their way to our weight.
    """
    stored = _stored(tensors, source)
    assert stored is not None, ours
    name = next(each for each in (source.name, *source.alternatives) if each in tensors)
    probes, starts, total = [], [], 0
    for part in stored.parts:
        rows = math.prod(part.shape[:-1])
        probes.append(_probe(total, rows).reshape(*part.shape[:-1], 3))
        starts.append(total)
        total += rows
    try:
        found = part_of(gguf_config.restored(name, stored, probes, config), source, head_dim_of(spec, ours))
    except (RuntimeError, ValueError, IndexError):  # it looks at columns
        return None
    columns = weight_shape(spec, ours)[1]
    rows = weight_shape(spec, ours)[0]
    import torch

    whole = found.dtype == torch.int64 and tuple(found.shape) == (rows, 3)
    if not whole or not torch.equal(found, _probe_of(found[:, 0])):
        return None
    each = gguf_file.stored_bytes(name, stored.parts[0]) // math.prod(stored.parts[0].shape[:-1])
    numbers = found[:, 0] - 1
    part_of_row = torch.bucketize(numbers, torch.tensor(starts), right=True) - 1
    before = torch.tensor([part.offset - start * each for start, part in zip(starts, stored.parts, strict=True)])
    offsets = array("q", (before[part_of_row] + numbers * each).numpy().tobytes())
    return RowsInFile(stored.parts[0].path, offsets, columns)


def _probe(first: int, rows: int) -> torch.Tensor:
    import torch

    return _probe_of(torch.arange(first + 1, first + rows + 1))


def _probe_of(numbers: torch.Tensor) -> torch.Tensor:
    """Rows by which it shows when one is scaled, shifted or mixed with others: (rows, 3)."""
    import torch

    return torch.stack((numbers, -numbers, torch.full_like(numbers, 7)), 1)


def _stored(tensors: Mapping[str, RestoredTensor], source: Source) -> RestoredTensor | None:
    return next((tensors[name] for name in (source.name, *source.alternatives) if name in tensors), None)


def _type(stored: RestoredTensor) -> int | None:
    """The type of all of its parts, which lie in one file; None where they differ, or are no blocks."""
    kinds = {(part.type, part.path, part.shape[-1]) for part in stored.parts if len(part.shape) > 1}
    if len(kinds) != 1 or any(len(part.shape) < 2 for part in stored.parts):
        return None
    [(kind, _, _)] = kinds
    return kind if kind in BLOCK_TYPES else None


def _is_linear(ours: str) -> bool:
    """Whether one of our weights may be a linear; a router is one in fp32."""
    *_, leaf, kind = ours.split(".")
    return kind == "weight" and (leaf.endswith("_proj") or ours.removesuffix(".weight") in _OUTER)


def _keeps_columns(stored: RestoredTensor | None, source: Source, shape: tuple[int, ...]) -> bool:
    whole = source.factor == 1 and source.plus == 0 and not source.heads_transposed
    return stored is not None and whole and len(shape) == 2 and stored.parts[0].shape[-1] == shape[1]
