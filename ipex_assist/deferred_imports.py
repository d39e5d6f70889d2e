"""torch, imported when it is first needed or not at all: it takes a second, and greedy text needs none of it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType

from ipex_assist.env.phases import phase

_NO_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
_threads: list[int] = []  # what torch is to compute with, where somebody said so; the last one holds


def torch_module() -> ModuleType:
    """Return torch, imported now if it has not been, with as many threads as `keep_torch_to` said."""
    if (found := sys.modules.get("torch")) is not None:
        return found
    with phase("importing torch"):
        import torch
    if _threads:
        torch.set_num_threads(_threads[-1])
    return torch


def torch_is_here() -> bool:
    """Whether torch has been imported."""
    return sys.modules.get("torch") is not None  # None: see leave_torch_out


def torch_threads() -> int | None:
    """Return how many threads torch has, or will have; None where it is not here and nobody has said that."""
    if torch_is_here():
        return int(torch_module().get_num_threads())
    return _threads[-1] if _threads else None


def keep_torch_to(threads: int) -> None:
    """Let torch compute with this many threads, now or as soon as it is imported by `torch_module`."""
    _threads[:] = [threads]
    if torch_is_here():
        torch_module().set_num_threads(threads)


@contextlib.contextmanager
def one_torch_thread() -> Iterator[None]:
    """Limit torch to one thread inside the `with`, so that no torch pool spins against the core's. Imports torch."""
    torch = torch_module()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def leave_torch_out() -> None:
    """Import transformers as if torch were not installed; from here on nothing in this process can import torch.

    transformers imports torch wherever there is one: 4.x at once, 5.x with AutoTokenizer. No tokenizer asks it for
    anything but tensors as its output. None in sys.modules is Python's own way of saying that a module is not to be had
    (docs.python.org, "The module cache"). There is no way back, so this is for programs. Where torch has been imported
    already nothing happens.
    """
    if "torch" in sys.modules:
        return
    sys.modules["torch"] = None  # type: ignore[assignment]
    said = os.environ.get(_NO_ADVICE)
    os.environ[_NO_ADVICE] = "1"  # which would be to install torch
    try:
        import transformers  # noqa: F401
    finally:
        if said is None:
            del os.environ[_NO_ADVICE]
        else:
            os.environ[_NO_ADVICE] = said
