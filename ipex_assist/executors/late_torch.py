"""torch where it is imported late: text that is chosen in the native core needs none of it, and it takes a second."""

from __future__ import annotations

import sys
from types import ModuleType

_threads: list[int] = []  # what torch is to compute with, where somebody said so; the last one holds


def torch_module() -> ModuleType:
    """Return torch, imported now if it has not been, with as many threads as `keep_torch_to` said."""
    late = not torch_is_here()
    import torch

    if late and _threads:
        torch.set_num_threads(_threads[-1])
    return torch


def torch_is_here() -> bool:
    """Whether torch has been imported."""
    return sys.modules.get("torch") is not None  # None where it has been left out (tokenization/without_torch.py)


def torch_threads() -> int | None:
    """Return how many threads torch has, or will have; None where it is not here and nobody has said that."""
    if torch_is_here():
        return int(torch_module().get_num_threads())
    return _threads[-1] if _threads else None


def keep_torch_to(threads: int) -> None:
    """Let torch compute with so many threads, now or as soon as it is imported by `torch_module`."""
    _threads[:] = [threads]
    if torch_is_here():
        torch_module().set_num_threads(threads)
