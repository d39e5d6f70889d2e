"""Checkpoints: a hub id, a folder or a GGUF file as one config and named tensors, read one at a time."""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipex_assist import gguf_file, gguf_model, hub, safetensors_file
from ipex_assist.assistants import canonical_id
from ipex_assist.env.errors import IpexAssistError

if TYPE_CHECKING:
    import torch

_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
# The single file wins over shards, and safetensors over .bin, as in transformers.
_WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


class Checkpoint(ABC):
    """A stored model. `config` and `generation_config` have Hugging Face's keys whatever the format.

    source: what the user named; path: the local folder or file.
    """

    source: str
    path: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]

    @property
    def architecture(self) -> str:
        """`architectures[0]` of the config, or "" where it names none."""
        return str((self.config.get("architectures") or [""])[0])

    def names(self) -> list[str]:
        """Hugging Face names of the stored tensors, in the order `tensors()` yields them."""
        return list(self.shapes())

    @property
    def num_parameters(self) -> int:
        """Stored elements, from headers alone (for .bin: from file sizes and the config's dtype)."""
        return sum(math.prod(shape) for shape in self.shapes().values())

    @abstractmethod
    def weight_files(self) -> list[Path]:
        """The files that hold the tensors."""

    @property
    @abstractmethod
    def parameter_bytes(self) -> int:
        """Bytes of all tensors as `tensors()` yields them, from headers alone."""

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape by name, in PyTorch's order. Reads headers only (.bin needs torch for it)."""

    @abstractmethod
    def tensors(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield (name, tensor) one at a time; those of `names` in that order, else all in file order.

        Memory: each tensor is read into memory of its own and belongs to the caller; besides that at most one tensor's
        raw bytes are held (and 256 MiB of mapped pages for .bin). Stored dtypes are kept; quantised GGUF gives bf16.
        Tied weights are yielded as they are stored, absent or twice.
        """


def open_checkpoint(source: str, *, revision: str | None = None, offline: bool = False) -> Checkpoint:
    """Open a hub id (fetched into the hub cache if need be), a folder, or a .gguf file. Reads no weights.

    Raises:
        IpexAssistError: nothing there, unreadable, incomplete, truncated or corrupt.
    """
    source = canonical_id(source)
    path = Path(source).expanduser()
    if path.is_file():
        return GgufCheckpoint(source, path)
    if path.is_dir():
        return open_folder(FolderCheckpoint(source, path))
    if not hub.is_hub_id(source):
        raise IpexAssistError(f"{source}: no such file or folder (looked for {path.absolute()}).")
    folder = hub.fetch(source, revision=revision, offline=offline)
    hint = f"The cached copy of {source} is incomplete; run once without --offline to complete it."
    return open_folder(FolderCheckpoint(source, folder, hint))


def open_folder(stored: FolderCheckpoint) -> Checkpoint:
    """The checkpoint, or, where its linears are quantised (GPTQ, AWQ), its view as one of plain weights."""
    from ipex_assist.quantized_checkpoint import quantised

    return quantised(stored)


class FolderCheckpoint(Checkpoint):
    """A Hugging Face folder: config.json, and safetensors or .bin files, single or sharded."""

    def __init__(self, source: str, path: Path, hint: str = "") -> None:
        self.source, self.path, self._hint = source, path, hint
        self.config = self._read_config()
        self.generation_config = read_json(path / "generation_config.json") or {}
        self.files = self._find_files()
        self._safetensors: dict[str, safetensors_file.StoredTensor] = {}
        if self.files[0].suffix == ".safetensors":
            for file in self.files:
                self._safetensors.update(safetensors_file.read_header(file))
        self._bin_names: dict[str, Path] = {}
        self._bin_shapes: dict[str, tuple[int, ...]] = {}

    @property
    def num_parameters(self) -> int:
        if self._safetensors:
            return super().num_parameters
        return self.parameter_bytes // dtype_bytes(self.config)

    @property
    def parameter_bytes(self) -> int:
        if self._safetensors:
            return sum(tensor.nbytes for tensor in self._safetensors.values())
        return sum(file.stat().st_size for file in self.files)

    def weight_files(self) -> list[Path]:
        return list(self.files)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        if self._safetensors:
            return {name: tensor.shape for name, tensor in self._safetensors.items()}
        if not self._bin_shapes:
            from ipex_assist import bin_file

            for file in self.files:
                for name, tensor in bin_file.read_shapes(file).items():
                    self._bin_shapes[name], self._bin_names[name] = tuple(tensor.shape), file
        return dict(self._bin_shapes)

    def tensors(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        if self._safetensors:
            wanted = self._safetensors if names is None else self._existing(names)
            yield from safetensors_file.read_tensors((name, self._safetensors[name]) for name in wanted)
            return
        from ipex_assist import bin_file

        if names is None:
            for file in self.files:
                yield from bin_file.read_tensors(file)
            return
        self.shapes()
        run: list[str] = []
        for name in self._existing(names):
            if run and self._bin_names[run[0]] != self._bin_names[name]:
                yield from bin_file.read_tensors(self._bin_names[run[0]], run)
                run = []
            run.append(name)
        if run:
            yield from bin_file.read_tensors(self._bin_names[run[0]], run)

    def _existing(self, names: Iterable[str]) -> list[str]:
        wanted, known = list(names), self.shapes()
        missing = [name for name in wanted if name not in known]
        if missing:
            raise IpexAssistError(
                f"{self.path} lacks {len(missing)} of {len(wanted)} tensors this architecture needs, "
                f"the first is {missing[0]}. Is it a complete {self.architecture or 'causal LM'}?"
            )
        return wanted

    def _read_config(self) -> dict[str, Any]:
        config = read_json(self.path / "config.json")
        if config is not None:
            return config
        content = sorted(entry.name for entry in self.path.iterdir())
        shown = ", ".join(content[:12]) + (f" and {len(content) - 12} more" if len(content) > 12 else "")
        files = [name for name in content if name.endswith(".gguf")]
        advice = self._hint or (
            f"Pass the file itself: {self.path / files[0]}" if files else "Pass the folder save_pretrained() wrote."
        )
        raise IpexAssistError(f"{self.path} has no config.json; it holds {shown or 'nothing'}. {advice}")

    def _find_files(self) -> list[Path]:
        first = next((self.path / name for name in _WEIGHT_FILES if (self.path / name).exists()), None)
        if first is None:
            content = ", ".join(sorted(entry.name for entry in self.path.iterdir())[:12])
            raise IpexAssistError(
                f"{self.path} has no weights: none of {', '.join(_WEIGHT_FILES)}; it holds {content}. "
                f"{self._hint or 'Save the model with save_pretrained().'}"
            )
        if first.suffix != ".json":
            return [first]
        index = read_json(first) or {}
        if not isinstance(index.get("weight_map"), dict) or not index["weight_map"]:
            raise IpexAssistError(f"{first} has no weight_map. Download it again.")
        shards = sorted(set(index["weight_map"].values()))
        missing = [shard for shard in shards if not (self.path / shard).exists()]
        if missing:
            shown = ", ".join(missing[:4]) + (" …" if len(missing) > 4 else "")
            raise IpexAssistError(
                f"{self.path} lacks {len(missing)} of {len(shards)} shards that {first.name} names: {shown}. "
                f"{self._hint or 'Download them again.'}"
            )
        return [self.path / shard for shard in shards]


class GgufCheckpoint(Checkpoint):
    """A GGUF file (or all parts of a split one), dequantised tensor by tensor."""

    def __init__(self, source: str, path: Path) -> None:
        self.source, self.path = source, path
        self._cpus = os.sched_getaffinity(0)
        if path.suffix in (".safetensors", ".bin", ".json"):
            raise IpexAssistError(f"{path} is one file of a checkpoint. Pass its folder: {path.absolute().parent}")
        self.header = gguf_file.read_header(path)
        try:
            self.config = gguf_model.config_from(self.header)
            self.generation_config = gguf_model.generation_config_from(self.header)
            self._tensors = gguf_model.hf_tensors(self.header)
        except (TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
            # Metadata of a damaged file may have any type and value; what they break is of no use to the reader.
            raise IpexAssistError(
                f"{path} is corrupt: its metadata contradict each other ({type(error).__name__}: {error}). "
                "Download or convert it again."
            ) from error
        gguf_file.check_sizes(self.header)

    @property
    def parameter_bytes(self) -> int:
        return sum(math.prod(t.shape) * (4 if t.type == 0 else 2) for t in self._tensors.values())

    def weight_files(self) -> list[Path]:
        return sorted({tensor.path for tensor in self._tensors.values()})

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def tensors(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        wanted = list(self._tensors if names is None else names)
        missing = [name for name in wanted if name not in self._tensors]
        if missing:
            raise IpexAssistError(f"{self.path} lacks {len(missing)} tensors, the first is {missing[0]}.")
        for name, tensor in gguf_file.read_tensors(((name, self._tensors[name]) for name in wanted), self._cpus):
            yield name, gguf_model.undo_permutation(name, tensor, self.config)
            del tensor  # not held while the next one is read


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None if there is no such file.

    Raises:
        IpexAssistError: the file is no JSON object.
    """
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise IpexAssistError(f"{path} is no valid JSON ({error}). Download it again.") from error
    if not isinstance(content, dict):
        raise IpexAssistError(f"{path} holds a {type(content).__name__}, not an object. Download it again.")
    return content


def dtype_bytes(config: dict[str, Any]) -> int:
    """Bytes per stored element by the config ("torch_dtype"; "dtype" since transformers 4.56), 4 if it does not say."""
    return _DTYPE_BYTES.get(str(config.get("torch_dtype") or config.get("dtype")).removeprefix("torch."), 4)
