"""Rows of images among those of a pass, as the native core reads them."""

from __future__ import annotations

from collections import abc

import numpy as np
from numpy.typing import NDArray

from ipex_assist.executors.native.segments import TokenSegment
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.native.batch_structures import Batch


def give_embeddings(batch: Batch, spec: DecoderSpec, segments: abc.Sequence[TokenSegment]) -> object:
    """Point a batch to the rows of its segments that images gave; returns what must live as long as it."""
    addresses = np.zeros(batch.rows, np.uint64)
    before, keep = 0, list[object]()
    for segment in segments:
        start, end = segment.start, segment.start + len(segment.tokens)
        for image in segment.sequence.images.within(start, end) if segment.sequence.images is not None else ():
            first, last = max(start, image.first), min(end, image.end)
            own = image.rows[first - image.first : last - image.first]
            addresses[before + first - start : before + last - start] = own.ctypes.data + own.strides[0] * np.arange(
                last - first, dtype=np.int64
            )
            keep.append(own)
        before += end - start
    if not keep:
        return None
    batch.embeddings, batch.embedding_layers = addresses.ctypes.data, spec.embedding_layers
    if spec.whole_images is not None:
        seen = np.concatenate([_last_seen(segment) for segment in segments])
        batch.last_seen, batch.ahead_in_windows = seen.ctypes.data, int(spec.whole_images == "windows")
        keep.append(seen)
    return addresses, keep


def _last_seen(segment: TokenSegment) -> NDArray[np.int32]:
    images, start, count = segment.sequence.images, segment.start, len(segment.tokens)
    if images is None:
        return np.arange(start, start + count, dtype=np.int32)
    return images.last_seen(start, count)
