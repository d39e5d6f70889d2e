"""The tensors of a checkpoint that a model needs, one at a time, with a bar that shows how far they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ipex_assist.models.weights import resolve

if TYPE_CHECKING:
    from ipex_assist.checkpoints.base import Checkpoint
    from ipex_assist.models import Source


def stream_tensors(
    checkpoint: Checkpoint,
    sources: dict[str, Source],
    progress: bool,
    read: Callable[[Iterable[str]], Iterator[tuple[str, Any]]] | None = None,
) -> tuple[list[str], Iterator[tuple[str, Any]]]:
    """All names of a checkpoint, and the tensors that `sources` needs of it (or what `read` gives by their names)."""
    names = list(checkpoint.names())
    wanted = resolve(sources, names)
    return names, _with_progress((read or checkpoint.tensors)(wanted), len(wanted), checkpoint.source, progress)


def _with_progress(
    tensors: Iterator[tuple[str, Any]], count: int, name: str, progress: bool
) -> Iterator[tuple[str, Any]]:
    if not progress:
        return tensors
    from tqdm import tqdm

    return iter(tqdm(tensors, total=count, desc=f"loading {name}", unit=" tensors", leave=False))
