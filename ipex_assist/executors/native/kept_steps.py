"""The description of a pass of steps, kept for the next one: most have the same sequences, each a token longer.

Where it is known while the pass runs that the same sequences go on, all of the next one but its tokens is made then.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import abc
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.blocks import NoBlocksError
from ipex_assist.executors.interface import Rows, Tokens
from ipex_assist.executors.native.segments import TokenSegment
from ipex_assist.executors.native.sequence import NativeSequence
from ipex_assist.native.batch_structures import Batch, Segment

Reserve = abc.Callable[[abc.Sequence[tuple[NativeSequence, int]]], None]


class StepAfter(NamedTuple):
    """The step after a pass: that pass's number, and what each sequence has then. The same numbers as arrays."""

    number: int
    starts: list[int]
    start_fields: NDArray[np.int64]
    block_counts: NDArray[np.int64]


class KeptSteps:
    """The last pass, if it was one of steps: a row of each sequence, with logits.

    Nothing of it but tokens, lengths and blocks changes from pass to pass. It keeps no sequence alive.
    """

    def __init__(self) -> None:
        self._batch: Batch | None = None
        self._own: list[NativeSequence] = []  # while the pass runs
        self._number = 0  # of the pass

    def keep(self, segments: abc.Sequence[TokenSegment], batch: Batch, what_lives: object, shared: object) -> bool:
        """Before a pass of `segments`: whether it is one of steps. `lengthen` comes after it then.

        what_lives: as long as it. shared: what must be the same the next time.
        """
        self._batch, self._own = None, []
        self._number += 1
        if not all(map(_is_step, segments)) or not segments:
            return False
        self._batch, self._what_lives, self._shared = batch, what_lives, shared
        self._sequences = [weakref.ref(each.sequence) for each in segments]
        self._starts = [each.start for each in segments]
        number = len(segments)
        described: Any = (Segment * number).from_address(ctypes.addressof(batch.segments.contents))
        fields = np.frombuffer(described, np.uint8).reshape(number, ctypes.sizeof(Segment))
        self._start_fields = _int32_field(fields, Segment.start.offset)
        self._block_counts = _int32_field(fields, Segment.block_count.offset)
        self._tokens = np.ctypeslib.as_array(batch.tokens, (number,))
        self._own = [each.sequence for each in segments]
        return True

    def again(self, rows: abc.Sequence[Rows], reserve: Reserve, shared: object) -> Batch | None:
        """The pass of these rows; None where it is another than the last one. Blocks are reserved for it."""
        batch, self._own = self._batch, []
        self._number += 1
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

    def prepare(self, reserve: Reserve) -> StepAfter | None:
        """While a pass of steps runs: what the next one is; None where no step can follow it. Blocks are reserved."""
        if not self._own or any(each.length + 1 >= each.capacity for each in self._own):
            return None
        try:
            reserve([(each, 2) for each in self._own])
        except NoBlocksError:
            return None
        starts = [start + 1 for start in self._starts]
        return StepAfter(self._number, starts, np.array(starts), np.array([each.count for each in self._own]))

    def after(self, step: StepAfter, tokens: Tokens, shared: object) -> Batch | None:
        """The pass that was prepared beside the last one, with these tokens; None where anything has changed."""
        own: list[Any] = [known() for known in self._sequences]
        if step.number != self._number or shared != self._shared or None in own:
            return None
        if [each.length for each in own] != step.starts:
            return None
        self._block_counts[:], self._start_fields[:], self._tokens[:] = step.block_counts, step.start_fields, tokens
        self._starts, self._own = step.starts, own
        self._number += 1
        return self._batch

    @property
    def token_address(self) -> int:
        """Where the core finds the token of the first row."""
        return int(self._tokens.ctypes.data)

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
