"""The native executor: a Model whose every pass is one call of the C++ core."""

from __future__ import annotations

import contextlib
import ctypes
from collections import abc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import LogitsError, Model, Rows, Sequence, Tokens, check_length, check_rows
from ipex_assist.executors.rope import RotaryTable
from ipex_assist.executors.turn import turn
from ipex_assist.native.model import PackedModel
from ipex_assist.native.structures import Batch

FEW_ROWS = 16  # kernels.h: FEW. Rows of one decode step: a row's bits do not depend on how many of these there are.
PROMPT_ROWS = 256  # rows of a prompt that pass at once


class NativeSequence:
    """A Sequence (see executors/interface.py) in the core's memory."""

    def __init__(self, model: NativeModel, capacity: int) -> None:
        self.model, self.capacity, self.length = model, capacity, 0
        self._memory = model.spare.take(capacity)

    def __del__(self) -> None:
        if hasattr(self, "_memory"):
            self.model.spare.give_back(self._memory)

    @property
    def handle(self) -> int:
        """The core's."""
        return self._memory.handle

    def truncate(self, length: int) -> None:
        """Forget all tokens from `length` on."""
        check_length(self, length)
        self.length = length


class CacheMemory:
    """Memory of the core for keys and values. Freed with the object."""

    def __init__(self, packed: PackedModel, capacity: int) -> None:
        self._library, self.capacity = packed.library, capacity
        self.handle = packed.library.ia_cache_new(packed.handle, capacity)
        packed.check(0 if self.handle else -1)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self._library.ia_cache_delete(self.handle)


class Spare:
    """The memory of the sequence that was freed last, for the next one: new pages take up to a tenth of a first pass.

    Nothing here waits, as sequences are freed at any moment and in any thread.
    """

    def __init__(self, packed: PackedModel) -> None:
        self._packed = packed
        self._kept: list[CacheMemory] = []

    def take(self, capacity: int) -> CacheMemory:
        """Memory for `capacity` tokens at least."""
        with contextlib.suppress(IndexError):
            memory = self._kept.pop()
            if memory.capacity >= capacity:
                return memory
            del memory  # before there is more
        return CacheMemory(self._packed, capacity)

    def give_back(self, memory: CacheMemory) -> None:
        """A sequence needs it no more."""
        self._kept[:] = [memory]


@dataclass(frozen=True)
class Rotation:
    """cos and sin (count, 1, head_dim) in fp32 of positions from `start` on; None with learned positions."""

    cosine: torch.Tensor | None = None
    sine: torch.Tensor | None = None
    start: int = 0


class Row(NamedTuple):
    """One row of a decode step, and its place among the logits; None where they are not wanted."""

    sequence: NativeSequence
    token: int
    place: int | None


class NativeModel(Model):
    """A Model (see executors/interface.py) on the core, where threads take turns. Logits are fp32."""

    exact_rows = FEW_ROWS

    def __init__(self, packed: PackedModel) -> None:
        self.packed, self.spec = packed, packed.spec
        self.rotary = RotaryTable(self.spec, torch.float32) if self.spec.rope is not None else None
        self.spare = Spare(packed)
        self._width = -(-self.spec.vocab_size // 16) * 16

    def new_sequence(self, capacity: int) -> NativeSequence:
        """An empty sequence with room for `capacity` tokens. Raises IpexAssistError where there is no memory."""
        if self.rotary is not None:
            self.rotary.reach(capacity)
        return NativeSequence(self, capacity)

    def forward(self, rows: abc.Sequence[Rows], vocabulary: int | None = None) -> torch.Tensor:
        """Append each one's tokens to its sequence; logits (sum of `last`, vocab) in the order of `rows`.

        A prompt passes alone, up to PROMPT_ROWS at once; all other rows pass together, up to FEW_ROWS at once.
        """
        assert len({id(each.sequence) for each in rows}) == len(rows), "a sequence twice in one call"
        logits = torch.empty(sum(each.last for each in rows), self._width)
        step: list[Row] = []
        place = 0
        for each in rows:
            sequence, tokens, last = self._own(each.sequence), each.tokens, each.last
            check_rows(sequence, len(tokens), last)
            if sequence.length == 0 and len(tokens) > FEW_ROWS:
                self._prompt(sequence, tokens, logits[place : place + last], vocabulary)
            else:
                unwanted = len(tokens) - last
                step += [
                    Row(sequence, token, place + i - unwanted if i >= unwanted else None)
                    for i, token in enumerate(tokens)
                ]
            place += last
        for first in range(0, len(step), FEW_ROWS):
            self._step(step[first : first + FEW_ROWS], logits, vocabulary)
        return logits[:, : min(vocabulary or self.spec.vocab_size, self.spec.vocab_size)]

    def draft(
        self,
        sequence: Sequence,
        tokens: Tokens,
        count: int,
        vocabulary: int | None = None,
        min_confidence: float = 0.0,
    ) -> tuple[list[int], list[float]]:
        """Append `tokens`, then decode greedily in one call: up to `count` tokens and their probabilities.

        Only the first `vocabulary` tokens take part. Ends behind a token whose probability is below `min_confidence`.
        The last token is not in the cache. Raises LogitsError where there is no likeliest token.
        """
        own = self._own(sequence)
        check_rows(own, len(tokens) + count - 1)
        done = 0
        if own.length == 0 and len(tokens) > FEW_ROWS:
            done = len(tokens) - 1  # a long prompt first, in chunks; its logits are not wanted
            self._prompt(own, tokens[:-1], torch.empty(0, self._width), None)
        while len(tokens) - done > FEW_ROWS:
            self._pass(tokens[done : done + FEW_ROWS], [own] * FEW_ROWS, self._rotation(), None)
            done += FEW_ROWS
        rest = tokens[done:]
        drafted, probabilities = (ctypes.c_int32 * count)(), (ctypes.c_float * count)()
        batch, _keep = self._batch(rest, [own] * len(rest), self._rotation(), None)
        with turn:
            number = self.packed.library.ia_draft(
                self.packed.handle,
                self.packed.pool.handle,
                ctypes.byref(batch),
                count,
                min(vocabulary or self.spec.vocab_size, self.spec.vocab_size),
                min_confidence,
                drafted,
                probabilities,
            )
            if number == -2:
                raise LogitsError("the model", own.length + len(rest))
            self.packed.check(number)
        own.length += len(rest) + number - 1
        return drafted[:number], probabilities[:number]

    def _own(self, sequence: Sequence) -> NativeSequence:
        assert isinstance(sequence, NativeSequence), f"a sequence of {type(sequence).__name__}"
        assert sequence.model is self, "a sequence of another model"
        return sequence

    def _prompt(self, sequence: NativeSequence, tokens: Tokens, logits: torch.Tensor, vocabulary: int | None) -> None:
        """Pass a prompt in chunks; logits of its last rows into `logits`."""
        count, last = len(tokens), len(logits)
        for done in range(0, count, PROMPT_ROWS):
            chunk = tokens[done : done + PROMPT_ROWS]
            wanted = min(len(chunk), max(0, last - (count - done - len(chunk))))
            first = done + len(chunk) - wanted - (count - last)
            rotation = self._rotation(done, len(chunk), count)
            into = logits[first : first + wanted] if wanted else None
            self._pass(chunk, [sequence] * len(chunk), rotation, into, vocabulary)

    def _step(self, rows: list[Row], logits: torch.Tensor, vocabulary: int | None) -> None:
        """Run one pass over rows of any sequences; the logits that are wanted go to their places."""
        tokens, sequences = [row.token for row in rows], [row.sequence for row in rows]
        wanted = [(index, row.place) for index, row in enumerate(rows) if row.place is not None]
        if not wanted:
            self._pass(tokens, sequences, self._rotation(), None)
            return
        # The core gives logits of a pass's last rows: from the first that is wanted on.
        (first, place), (_, last) = wanted[0], wanted[-1]
        count = len(rows) - first
        if len(wanted) == count == last - place + 1:
            self._pass(tokens, sequences, self._rotation(), logits[place : place + count], vocabulary)
            return
        computed = torch.empty(count, self._width)
        self._pass(tokens, sequences, self._rotation(), computed, vocabulary)
        for index, place in wanted:
            logits[place] = computed[index - first]

    def _rotation(self, start: int = 0, count: int = 0, prompt_length: int | None = None) -> Rotation:
        """Return the rotation's cosines and sines of all positions, or of a prompt's."""
        if self.rotary is None:
            return Rotation()
        if prompt_length is None:
            return Rotation(*self.rotary.tables)
        return Rotation(*self.rotary.rows(start, count, prompt_length), start)

    def _pass(
        self,
        tokens: Tokens,
        sequences: abc.Sequence[NativeSequence],
        rotation: Rotation,
        logits: torch.Tensor | None,
        vocabulary: int | None = None,
    ) -> None:
        packed = self.packed
        batch, _keep = self._batch(tokens, sequences, rotation, logits, vocabulary)
        with turn:
            packed.check(packed.library.ia_forward(packed.handle, packed.pool.handle, ctypes.byref(batch)))
        for sequence in sequences:
            sequence.length += 1

    def _batch(
        self,
        tokens: Tokens,
        sequences: abc.Sequence[NativeSequence],
        rotation: Rotation,
        logits: torch.Tensor | None,
        vocabulary: int | None = None,
    ) -> tuple[Batch, object]:
        """The core's description of a pass, and what must live as long as it."""
        rows = len(tokens)
        # ctypes would take a larger number for its lowest 32 bits; the core checks what is left.
        if rows and not -(1 << 31) <= min(tokens) <= max(tokens) < 1 << 31:
            raise IpexAssistError(f"token ids from {min(tokens)} to {max(tokens)}")
        ids = (ctypes.c_int32 * rows)(*tokens)
        at = (ctypes.c_int32 * rows)(*_positions(sequences))
        caches = (ctypes.c_void_p * rows)(*(sequence.handle for sequence in sequences))
        cosine, sine = (table.contiguous() if table is not None else None for table in (rotation.cosine, rotation.sine))
        batch = Batch(
            rows=rows,
            tokens=ids,
            positions=at,
            caches=caches,
            cosine=cosine.data_ptr() if cosine is not None else None,
            sine=sine.data_ptr() if sine is not None else None,
            table_start=rotation.start,
            table_rows=0 if cosine is None else len(cosine),
            last=0 if logits is None else logits.shape[0],
            logits=None if logits is None else logits.data_ptr(),
            stride=self._width,
            vocabulary=min(vocabulary or 0, self.spec.vocab_size),
        )
        return batch, (ids, at, caches, cosine, sine, logits)


def _positions(sequences: abc.Sequence[NativeSequence]) -> Iterator[int]:
    """The position of each row: behind its sequence's rows so far, and behind those of this pass."""
    new: dict[int, int] = {}
    for sequence in sequences:
        key = id(sequence)
        yield sequence.length + new.get(key, 0)
        new[key] = new.get(key, 0) + 1
