"""Writes tensors as a Hugging Face folder's safetensors files, shard by shard."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file

SHARD_BYTES = 2 << 30  # the size of a safetensors file; one shard at a time is held in memory


def save_tensors(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file that others may read as the umask says: `save_file` makes files of mode 0600.

    Raises OSError or safetensors' own errors where it cannot be written.
    """
    path.touch()  # its mode is the umask's, which cannot be read without being changed
    mode = stat.S_IMODE(path.stat().st_mode)
    save_file(tensors, path, metadata=metadata)
    path.chmod(mode)


@dataclass
class ShardWriter:
    """Gathers tensors into files of shard_bytes. Files are renamed at the end, when their number is known."""

    folder: Path
    shard_bytes: int = field(default_factory=lambda: SHARD_BYTES)
    pending: dict[str, torch.Tensor] = field(default_factory=dict)
    size: int = 0
    files: list[list[str]] = field(default_factory=list)
    total: int = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Add a tensor, writing the shard before it if that is full. Raises OSError where it cannot be written."""
        if self.pending and self.size + tensor.nbytes > self.shard_bytes:
            self._write()
        self.pending[name] = tensor.contiguous()
        self.size += tensor.nbytes
        self.total += tensor.nbytes

    def _write(self) -> None:
        save_tensors(self.pending, self.folder / f"part-{len(self.files)}", metadata={"format": "pt"})
        self.files.append(list(self.pending))
        self.pending, self.size = {}, 0

    def close(self) -> None:
        """Write the last shard, and the index if there are several files."""
        self._write()
        count = len(self.files)
        if count == 1:
            os.replace(self.folder / "part-0", self.folder / "model.safetensors")
            return
        weight_map: dict[str, str] = {}
        for part, names in enumerate(self.files):
            file = f"model-{part + 1:05}-of-{count:05}.safetensors"
            os.replace(self.folder / f"part-{part}", self.folder / file)
            weight_map |= dict.fromkeys(names, file)
        index = {"metadata": {"total_size": self.total}, "weight_map": weight_map}
        (self.folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
