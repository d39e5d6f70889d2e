"""Streams the tensors that a model needs from a checkpoint, one at a time, as a phase that says how far it is."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.env.phases import phase
from ipex_assist.models.weights import resolve

if TYPE_CHECKING:
    from ipex_assist.checkpoints.base import Checkpoint
    from ipex_assist.models import Source


def stream_tensors(
    checkpoint: Checkpoint,
    sources: dict[str, Source],
    precision: str,
    read: Callable[[Iterable[str]], Iterator[tuple[str, Any]]] | None = None,
) -> tuple[list[str], Iterator[tuple[str, Any]]]:
    """All tensor names of a checkpoint, and an iterator over the (name, tensor) pairs that `sources` needs.

    precision: at which the model is loaded. read: reads the tensors of given names; `checkpoint.stream` where None.
    """
    names = list(checkpoint.names())
    wanted = resolve(sources, names)
    tensors = checkpoint.stream(wanted, precision) if read is None else read(wanted)
    return names, _counted(tensors, packing_phase(checkpoint, wanted, precision))


@contextlib.contextmanager
def packing_phase(checkpoint: Checkpoint, wanted: Collection[str], precision: str) -> Iterator[Callable[[str], None]]:
    """A phase in which the `wanted` tensors are packed; it is told the name of each that is."""
    sizes = {name: math.prod(shape) for name, shape in checkpoint.shapes().items() if name in wanted}
    done, total = 0, max(1, sum(sizes.values()))

    def packed(name: str) -> None:
        nonlocal done
        done += sizes.get(name, 0)
        shown.share = done / total

    with phase(f"packing weights of {short_name(checkpoint.source)} ({precision})") as shown:
        shown.share = 0.0
        yield packed


def _counted(
    tensors: Iterator[tuple[str, Any]], packing: contextlib.AbstractContextManager[Callable[[str], None]]
) -> Iterator[tuple[str, Any]]:
    """The tensors, in a phase that lasts until the last one is done with."""
    with packing as packed:
        for name, tensor in tensors:
            yield name, tensor
            del tensor
            packed(name)
