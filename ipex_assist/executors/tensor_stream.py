"""Streams the tensors that a model needs from a checkpoint, one at a time, with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from ipex_assist.models.weights import resolve

if TYPE_CHECKING:
    from ipex_assist.checkpoints.base import Checkpoint
    from ipex_assist.models import Source


class _Bar(tqdm):  # type: ignore[type-arg]
    monitor_interval = 0  # otherwise tqdm starts a thread, even for a disabled bar


def stream_tensors(
    checkpoint: Checkpoint,
    sources: dict[str, Source],
    progress: bool,
    precision: str,
    read: Callable[[Iterable[str]], Iterator[tuple[str, Any]]] | None = None,
) -> tuple[list[str], Iterator[tuple[str, Any]]]:
    """All tensor names of a checkpoint, and an iterator over the (name, tensor) pairs that `sources` needs.

    precision: at which the model is loaded. read: reads the tensors of given names; `checkpoint.stream` where None.
    """
    names = list(checkpoint.names())
    wanted = resolve(sources, names)
    tensors = checkpoint.stream(wanted, precision) if read is None else read(wanted)
    bar = f"loading {checkpoint.source}"
    return names, iter(_Bar(tensors, total=len(wanted), desc=bar, unit=" tensors", leave=False, disable=not progress))
