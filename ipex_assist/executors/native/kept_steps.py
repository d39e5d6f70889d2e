"""The description of a pass of steps, kept for the next one: most have the same sequences, each a token longer."""

from __future__ import annotations

import ctypes
import weakref
from collections import abc
from typing import Any

import numpy as np

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import Rows
from ipex_assist.executors.native.segments import TokenSegment
from ipex_assist.executors.native.sequence import NativeSequence
from ipex_assist.native.structures import Batch, Segment

Reserve = abc.Callable[[abc.Sequence[tuple[NativeSequence, int]]], None]


class KeptSteps:
    """The last pass, if it was one of steps: a row of each sequence, with logits.

    Nothing of it but tokens, lengths and blocks changes from pass to pass. It keeps no sequence alive.
    """

    def __init__(self) -> None:
        self._batch: Batch | None = None
        self._own: list[NativeSequence] = []  # while the pass runs

    def keep(self, segments: abc.Sequence[TokenSegment], batch: Batch, what_lives: object, shared: object) -> None:
        """After a pass of `segments`. what_lives: as long as it. shared: what must be the same the next time."""
        self._batch, self._own = None, []
        if not all(map(_is_step, segments)) or not segments:
            return
        self._batch, self._what_lives, self._shared = batch, what_lives, shared
        self._sequences = [weakref.ref(each.sequence) for each in segments]
        self._starts = [each.start for each in segments]
        number = len(segments)
        described: Any = (Segment * number).from_address(ctypes.addressof(batch.segments.contents))
        fields = np.frombuffer(described, np.uint8).reshape(number, ctypes.sizeof(Segment))
        self._start_fields = _int32_field(fields, Segment.start.offset)
        self._block_counts = _int32_field(fields, Segment.block_count.offset)
        self._tokens = np.ctypeslib.as_array(batch.tokens, (number,))

    def again(self, rows: abc.Sequence[Rows], reserve: Reserve, shared: object) -> Batch | None:
        """The pass of these rows; None where it is another than the last one. Blocks are reserved for it."""
        batch, self._own = self._batch, []
        if batch is None or len(rows) != len(self._sequences) or shared != self._shared:
            return None
        tokens: list[int] = []
        wants: list[tuple[NativeSequence, int]] = []
        starts = [start + 1 for start in self._starts]
        own: list[NativeSequence] = []
        for known, start, (sequence, given, last, hidden) in zip(self._sequences, starts, rows, strict=True):
            if (mine := known()) is not sequence or mine is None or mine.length != start or start >= mine.capacity:
                return None
            if last != 1 or len(given) != 1 or hidden is not None:
                return None
            own.append(mine)
            tokens.append(given[0])
            if mine.blocks_for(1):
                wants.append((mine, 1))
        if not -(1 << 31) <= min(tokens) <= max(tokens) < 1 << 31:
            raise IpexAssistError(f"token ids from {min(tokens)} to {max(tokens)}")
        if wants:
            reserve(wants)
        self._block_counts[:] = [each.count for each in own]
        self._tokens[:] = tokens
        self._start_fields[:] = starts
        self._starts, self._own = starts, own
        return batch

    def lengthen(self) -> None:
        """After the pass: each row is its sequence's."""
        for own in self._own:
            own.length += 1
        self._own = []


def _is_step(segment: TokenSegment) -> bool:
    own = segment.sequence
    whole = len(segment.tokens) == 1 and segment.last == 1 and not segment.after and segment.hidden is None
    return whole and own.state is None and segment.start >= own.rope_prompt_length


def _int32_field(fields: Any, offset: int) -> Any:
    """A column of int32 of structures that are rows of bytes."""
    return fields[:, offset : offset + 4].view(np.int32)[:, 0]
