"""GGUF files, single or split, read under Hugging Face's names."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ipex_assist.checkpoints import gguf_blocks, gguf_config, gguf_file
from ipex_assist.checkpoints.base import Checkpoint, RowReader
from ipex_assist.checkpoints.gguf_blocks import RowsInFile
from ipex_assist.checkpoints.gguf_file import GgufTensor
from ipex_assist.checkpoints.safetensors_file import StoredTensor
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models import find
from ipex_assist.models.weights import Source, stored_form
from ipex_assist.quantization.precision import BLOCK_TYPES

if TYPE_CHECKING:
    import torch

    from ipex_assist.models.spec import DecoderSpec


class GgufCheckpoint(Checkpoint):
    """A GGUF file (or all parts of a split one), dequantized tensor by tensor."""

    own_head = False  # its config says of the head what is stored

    def __init__(self, source: str, path: Path) -> None:
        self.source, self.path = source, path
        self._cpus = os.sched_getaffinity(0)
        if path.suffix in (".safetensors", ".bin", ".json"):
            raise IpexAssistError(f"{path} is one file of a checkpoint. Pass its folder: {path.absolute().parent}")
        self.header = gguf_file.read_header(path)
        try:
            gguf_config.separate(self.header)
            self.config = gguf_config.config_from(self.header)
            self.generation_config = gguf_config.generation_config_from(self.header)
            self._tensors = gguf_config.hf_tensors(self.header)
        except (TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
            # The metadata of a damaged file may have any type and value, so any of these errors can come up.
            raise IpexAssistError(
                f"{path} is corrupt: its metadata contradict each other ({type(error).__name__}: {error}). "
                "Download or convert it again."
            ) from error
        gguf_file.check_sizes(self.header)

    @property
    def parameter_bytes(self) -> int:
        return sum(math.prod(part.shape) * (4 if part.type == 0 else 2) for part in self._parts())

    def weight_files(self) -> list[Path]:
        return sorted({part.path for part in self._parts()})

    def shapes(self) -> dict[str, tuple[int, ...]]:
        try:
            return {name: gguf_config.stored_shape(name, each, self.config) for name, each in self._tensors.items()}
        except RuntimeError as error:
            raise IpexAssistError(
                f"{self.path} is corrupt: tensors of one matrix do not fit together, or not to the metadata ({error}). "
                "Download or convert it again."
            ) from error

    def check_weights(self) -> None:
        """As for any checkpoint; and no tensor may be left over, such as a bias that our decoder would not add."""
        super().check_weights()
        architecture = find(self.architecture)
        assert architecture is not None
        sources = stored_form(architecture.weights(self.decoder_spec()), self._tensors)
        known = {name for source in sources.values() for name in (source.name, *source.alternatives)}
        over = [name for name, each in self._tensors.items() if name not in known and not each.further]
        if over:
            raise IpexAssistError(
                f"{self.path}: {len(over)} tensors are of no use to the {self.config['model_type']} model that its "
                f"metadata describe, the first is {over[0]}. Pass the model's Hugging Face id or folder instead."
            )

    def tensors(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        return self._read(self._tensors if names is None else names, fp32=False)

    def stream(self, names: Iterable[str], precision: str = "bf16") -> Iterator[tuple[str, torch.Tensor]]:
        return self._read(names, fp32=precision == "fp32")

    def row_reader(self, name: str, precision: str = "bf16") -> RowReader | None:
        each = self._tensors.get(name)
        if each is None or not gguf_config.is_as_stored(name, each, self.config) or len(each.parts[0].shape) != 2:
            return None
        part = each.parts[0]

        def rows(first: int, last: int) -> torch.Tensor:
            stored = ((name, gguf_file.rows_of(name, part, first, last)),)
            return next(gguf_file.read_tensors(stored, self._cpus, fp32=precision == "fp32"))[1]

        return rows

    def stored_floats(self, name: str) -> StoredTensor | None:
        each = self._tensors.get(name)
        if each is None or len(each.parts) != 1 or not gguf_config.keeps_rows(name, each, self.config):
            return None
        [part], permuted = each.parts, gguf_config.is_permuted(name, self.config)
        if part.type not in gguf_file.PLAIN or (each.restore is None and permuted):
            return None
        shape = part.shape if each.restore is not None else gguf_config.hf_shape(name, part.shape, self.config)
        size = gguf_file.stored_bytes(name, part)
        return StoredTensor(part.path, gguf_file.PLAIN[part.type], shape, part.offset, size)

    def dequantized_to(self, precision: str) -> str | None:
        quantized = any(gguf_file.is_quantized(part) for part in self._parts())
        return "float32" if quantized and precision == "fp32" else None

    @property
    def stored_precision(self) -> str | None:
        kept = any(part.type in BLOCK_TYPES for part in self._parts())
        return "stored" if kept else None

    def block_formats(self, spec: DecoderSpec, sources: Mapping[str, Source]) -> dict[str, int]:
        """Our weights that the file has in blocks which the native core multiplies, and their formats there."""
        return gguf_blocks.block_formats(self._tensors, spec, sources)

    def parts_of(self, source: Source) -> tuple[GgufTensor, ...]:
        """The tensors that one of our weights is made of."""
        found = (self._tensors[name] for name in (source.name, *source.alternatives) if name in self._tensors)
        return next(found).parts

    def block_rows(self, spec: DecoderSpec, ours: str, source: Source) -> RowsInFile | None:
        """Where the rows of one of them lie, None where it is not made of whole rows of the file."""
        return gguf_blocks.block_rows(self._tensors, self.config, spec, ours, source)

    def _read(self, names: Iterable[str], *, fp32: bool) -> Iterator[tuple[str, torch.Tensor]]:
        wanted = list(names)
        missing = [name for name in wanted if name not in self._tensors]
        if missing:
            raise IpexAssistError(f"{self.path} lacks {len(missing)} tensors, the first is {missing[0]}.")
        stored = ((name, part) for name in wanted for part in self._tensors[name].parts)
        read = gguf_file.read_tensors(stored, self._cpus, fp32=fp32)
        for name in wanted:
            each = self._tensors[name]
            parts = [next(read)[1] for _ in each.parts]
            tensor = gguf_config.restored(name, each, parts, self.config)
            parts.clear()
            yield name, tensor
            del tensor  # not held while the next one is read

    def _parts(self) -> Iterator[GgufTensor]:
        return (part for each in self._tensors.values() for part in each.parts)
