"""PyTorch `.bin` files, read tensor by tensor through a mapped `torch.load` with weights_only."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ipex_assist.checkpoints.safetensors_file import refuse_lfs_pointer
from ipex_assist.env.errors import IpexAssistError

if TYPE_CHECKING:
    import torch

# Mapped pages count as resident memory once they are read; after this many bytes the file is mapped again.
MAPPED_BYTES = 256 << 20


def read_shapes(path: Path) -> dict[str, torch.Tensor]:
    """The file's tensors on the `meta` device: names, shapes and dtypes without data."""
    return _load(path, device="meta")


def read_tensors(path: Path, names: Iterable[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the file's tensors (those in `names`, in that order), each copied into memory of its own."""
    mapped = _load(path)
    touched = 0
    for name in list(mapped) if names is None else names:
        if touched > MAPPED_BYTES:
            mapped = {}  # unmaps
            mapped = _load(path)
            touched = 0
        tensor = mapped[name].clone()
        touched += tensor.nbytes
        yield name, tensor
        del tensor  # not held while the next one is read


def _load(path: Path, device: str = "cpu") -> dict[str, torch.Tensor]:
    import torch

    refuse_lfs_pointer(path)
    try:
        # Files of torch < 1.6 are no zip archives and cannot be mapped.
        state = torch.load(path, map_location=device, weights_only=True, mmap=_is_zip(path))
    except pickle.UnpicklingError as error:
        reason = error.__context__ or error  # torch's own message is a page of advice to load it anyway
        if "GLOBAL" in str(reason) or "reduce" in str(reason):
            raise IpexAssistError(_refusal(path, reason)) from error
        raise _corrupt(path, reason) from error
    except Exception as error:  # a damaged pickle can raise anything
        raise _corrupt(path, error) from error
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise IpexAssistError(
            f"{path} holds no plain mapping of names to tensors, so it is not a Hugging Face checkpoint. "
            "Save the model with save_pretrained()."
        )
    return state


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _refusal(path: Path, reason: BaseException) -> str:
    return (
        f"{path} was refused: unpickling it would run code of the file's choosing ({str(reason).splitlines()[0]}). "
        "Only tensors are read from .bin files. Convert it to safetensors where you trust it, with "
        "model.save_pretrained(FOLDER), and pass that folder."
    )


def _corrupt(path: Path, error: BaseException) -> IpexAssistError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].partition(". ")[0]
    missing = "; the zip directory that should end it is missing" if "central directory" in reason else ""
    return IpexAssistError(
        f"{path} is truncated or corrupt: {path.stat().st_size:,} bytes{missing} ({reason}). Download it again."
    )
