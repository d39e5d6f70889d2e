"""What every checkpoint offers, whatever its format: config, names, shapes, tensors one at a time."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipex_assist.env.errors import IpexAssistError

if TYPE_CHECKING:
    import torch


_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}


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
        raw bytes are held (and 256 MiB of mapped pages for .bin). Stored dtypes are kept; quantized GGUF gives bf16.
        Tied weights are yielded as they are stored, absent or twice.
        """


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
