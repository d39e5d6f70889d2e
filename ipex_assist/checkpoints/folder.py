"""Hugging Face folders: config.json and safetensors or .bin files, single or sharded."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints import safetensors_file
from ipex_assist.checkpoints.base import Checkpoint, RowReader, dtype_bytes, read_json, require_file
from ipex_assist.env.errors import IpexAssistError

if TYPE_CHECKING:
    import torch


# The single file wins over shards, and safetensors over .bin, as in transformers.
_WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# What the names of a linear's scales add to that of its weight.
_SCALE_ENDS = ("_scale", "_scale_inv", ".scale")


_READ = (".json", ".safetensors", ".bin", ".model", ".jinja", ".txt")  # of the files that are read


class FolderCheckpoint(Checkpoint):
    """A Hugging Face folder: config.json, and safetensors or .bin files, single or sharded."""

    def __init__(self, source: str, path: Path, hint: str = "") -> None:
        self.source, self.path, self._hint = source, path, hint
        _refuse_special_files(path, hint or "Download the model again.")
        self.config = self._read_config()
        self.generation_config = read_json(path / "generation_config.json") or {}
        self.files = self._find_files()
        self._safetensors: dict[str, safetensors_file.StoredTensor] = {}
        if self.files[0].suffix == ".safetensors":
            for file in self.files:
                self._safetensors.update(safetensors_file.read_header(file))
            if not self._safetensors:
                raise IpexAssistError(f"{self.files[0]} holds no tensors. Download it again.")
        self._bin_names: dict[str, Path] = {}
        self._bin_shapes: dict[str, tuple[int, ...]] = {}
        self._bin_types: dict[str, str] = {}

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
            from ipex_assist.checkpoints import bin_file

            for file in self.files:
                for name, tensor in bin_file.read_shapes(file).items():
                    self._bin_shapes[name], self._bin_names[name] = tuple(tensor.shape), file
                    self._bin_types[name] = safetensors_file.type_name(tensor.dtype)
        return dict(self._bin_shapes)

    def dtypes(self) -> dict[str, str]:
        """Types of the tensors as safetensors names them ("BF16", "F8_E4M3", …); for .bin all are "BIN"."""
        if self._safetensors:
            return {name: tensor.dtype for name, tensor in self._safetensors.items()}
        return dict.fromkeys(self.shapes(), "BIN")

    def tensors(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        if self._safetensors:
            wanted = self._safetensors if names is None else self._existing(names)
            yield from safetensors_file.read_tensors((name, self._safetensors[name]) for name in wanted)
            return
        from ipex_assist.checkpoints import bin_file

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

    def stored_floats(self, name: str) -> safetensors_file.StoredTensor | None:
        tensor = self._safetensors.get(name)
        return tensor if tensor is not None and tensor.dtype in ("F32", "F16", "BF16") else None

    def raw(self, name: str) -> tuple[str, bytes] | None:
        """The type and the bytes of a small tensor, read without torch; None for .bin files."""
        tensor = self._safetensors.get(name)
        if tensor is None:
            return None
        content = bytearray(tensor.nbytes)
        with open(tensor.path, "rb", buffering=0) as file:
            safetensors_file.read_into(file, tensor.offset, content)
        return tensor.dtype, bytes(content)

    def bare_type(self, name: str) -> str | None:
        kind = self._safetensors[name].dtype if self._safetensors else self._bin_types[name]
        scaled = any(name + end in self.shapes() for end in _SCALE_ENDS)
        integers = kind[0] in "IU" or kind == "BOOL"
        return kind if integers or (kind.startswith("F8_") and scaled) else None

    def is_equal(self, first: str, second: str) -> bool:
        if not self._safetensors:
            return super().is_equal(first, second)
        return safetensors_file.is_equal(self._safetensors[first], self._safetensors[second])

    def row_reader(self, name: str, precision: str = "bf16") -> RowReader | None:
        tensor = self._safetensors.get(name)
        return None if tensor is None else functools.partial(safetensors_file.read_rows, tensor)

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
        require_file(first)
        if first.suffix != ".json":
            return [first]
        shards = _shards(first)
        missing = [shard for shard in shards if not (self.path / shard).exists()]
        if missing:
            shown = ", ".join(missing[:4]) + (" …" if len(missing) > 4 else "")
            raise IpexAssistError(
                f"{self.path} lacks {len(missing)} of {len(shards)} shards that {first.name} names: {shown}. "
                f"{self._hint or 'Download them again.'}"
            )
        files = [self.path / shard for shard in shards]
        for file in files:
            require_file(file)
        return files


def _shards(index: Path) -> list[str]:
    """The files that an index names. It is untrusted input: files outside its own folder are refused."""
    named = (read_json(index) or {}).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise IpexAssistError(f"{index} has no weight_map. Download it again.")
    kind = index.name.split(".")[1]  # model.safetensors.index.json, pytorch_model.bin.index.json
    for tensor, shard in named.items():
        if not isinstance(shard, str):
            raise IpexAssistError(f"{index} names no file for {tensor[:80]!r}. Download it again.")
        if "/" in shard or not shard.isprintable() or not shard.endswith(f".{kind}"):
            raise IpexAssistError(
                f"{index} names {shard[:80]!r} as the file of {tensor[:80]!r}, which is no .{kind} file in its own "
                "folder. Nothing else is read. Download it again."
            )
    return sorted(set(named.values()))


def _refuse_special_files(folder: Path, hint: str) -> None:
    """Raise IpexAssistError for pipes, devices and links to nothing: libraries would block on a tokenizer's pipe."""
    for entry in folder.iterdir():
        if entry.exists() and not entry.is_dir():
            require_file(entry)
        elif entry.is_symlink() and not entry.exists() and entry.suffix in _READ:
            raise IpexAssistError(
                f"{entry} leads to {entry.readlink()}, which is gone: a part of the cache was deleted. {hint}"
            )
