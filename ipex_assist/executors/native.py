"""The native executor: checkpoint tensors into the C++ core's packed image, and a Decoder that calls it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ipex_assist.executors.rope import RotaryTable
from ipex_assist.native.model import NativeModel
from ipex_assist.native.structures import Batch

FEW_ROWS = 16  # kernels.h: FEW. Rows of one decode step: a row's bits do not depend on how many of these there are.
PROMPT_ROWS = 256  # rows of a prompt that pass at once


class NativeSequence:
    """Keys and values of one sequence, with room for `capacity` tokens."""

    def __init__(self, model: NativeModel, capacity: int) -> None:
        self.model, self.capacity, self.length = model, capacity, 0
        self.handle = model.library.ia_cache_new(model.handle, capacity)
        model.check(0 if self.handle else -1)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.model.library.ia_cache_delete(self.handle)


@dataclass(frozen=True)
class Rotation:
    """cos and sin (count, 1, head_dim) in fp32 of positions from `start` on; None with learned positions."""

    cosine: torch.Tensor | None = None
    sine: torch.Tensor | None = None
    start: int = 0


class NativeDecoder:
    """A Decoder (see executors/interface.py) on the core. Every pass is one call; logits are fp32."""

    exact_rows = FEW_ROWS

    def __init__(self, model: NativeModel) -> None:
        self.model, self.spec = model, model.spec
        self.sequence = NativeSequence(model, 1)
        self.rotary: RotaryTable | None = None
        self._whole = Rotation()
        self._width = -(-self.spec.vocab_size // 16) * 16

    @property
    def length(self) -> int:
        """Rows in the cache."""
        return self.sequence.length

    def new_sequence(self, tokens: int) -> NativeSequence:
        """A further sequence, for `forward_rows`."""
        self._extend_rotation(tokens)
        return NativeSequence(self.model, tokens)

    def reserve(self, tokens: int) -> None:
        """Make room for a sequence of `tokens` tokens; empties the cache."""
        if tokens > self.sequence.capacity:
            self.sequence = self.new_sequence(tokens)
        self.sequence.length = 0

    def _extend_rotation(self, tokens: int) -> None:
        if self.spec.rope is not None and (self.rotary is None or tokens > len(self.rotary.cos)):
            self.rotary = RotaryTable(self.spec, tokens, torch.float32)
            self._whole = Rotation(self.rotary.cos, self.rotary.sin)

    def truncate(self, length: int) -> None:
        """Forget all rows from `length` on."""
        assert length <= self.sequence.length, f"{length} of {self.sequence.length} rows"
        self.sequence.length = length

    def forward(self, tokens: Sequence[int], last: int = 1, vocabulary: int | None = None) -> torch.Tensor:
        """Append `tokens`; logits (last, vocab) of the last `last`. Rows beyond `reserve` are our own bug.

        vocabulary: compute those of the first so many tokens only.
        """
        start, count = self.sequence.length, len(tokens)
        assert 0 < last <= count, f"{last} of {count} rows"
        prompt = start == 0 and count > FEW_ROWS
        size = PROMPT_ROWS if prompt else FEW_ROWS
        logits = torch.empty(last, self._width)
        for done in range(0, count, size):
            chunk = tokens[done : done + size]
            wanted = min(len(chunk), max(0, last - (count - done - len(chunk))))
            rotation = self._prompt_rotation(done, len(chunk), count) if prompt else self._whole
            first = done + len(chunk) - wanted - (count - last)
            self._pass(
                chunk,
                [self.sequence] * len(chunk),
                rotation,
                logits[first : first + wanted] if wanted else None,
                vocabulary or 0,
            )
        return logits[:, : min(vocabulary or self.spec.vocab_size, self.spec.vocab_size)]

    def forward_rows(self, rows: Sequence[tuple[NativeSequence, int]]) -> torch.Tensor:
        """One token a row, appended to the row's sequence; rows of one sequence are consecutive. Logits (rows, vocab).

        A row's logits have the bits it gets alone, as long as there are at most `exact_rows` rows.
        """
        logits = torch.empty(len(rows), self._width)
        for done in range(0, len(rows), FEW_ROWS):
            chunk = rows[done : done + FEW_ROWS]
            self._pass(
                [token for _, token in chunk],
                [sequence for sequence, _ in chunk],
                self._whole,
                logits[done : done + len(chunk)],
            )
        return logits[:, : self.spec.vocab_size]

    def draft(
        self, tokens: Sequence[int], count: int, vocabulary: int | None = None, min_confidence: float = 0.0
    ) -> tuple[list[int], list[float]]:
        """Append `tokens`, then decode greedily in one call: up to `count` tokens and their probabilities.

        Only the first `vocabulary` tokens take part. Ends behind a token whose probability is below `min_confidence`.
        The last token is not in the cache.
        """
        done = 0
        if self.sequence.length == 0 and len(tokens) > FEW_ROWS:
            done = len(tokens) - 1  # a long prompt first, in chunks; its logits are not wanted
            self._prompt(tokens[:-1])
        while len(tokens) - done > FEW_ROWS:
            self._pass(tokens[done : done + FEW_ROWS], [self.sequence] * FEW_ROWS, self._whole, None)
            done += FEW_ROWS
        rest = tokens[done:]
        drafted, probabilities = (ctypes.c_int32 * count)(), (ctypes.c_float * count)()
        batch, _keep = self._batch(rest, [self.sequence] * len(rest), self._whole, None)
        number = self.model.library.ia_draft(
            self.model.handle,
            self.model.pool.handle,
            ctypes.byref(batch),
            count,
            min(vocabulary or self.spec.vocab_size, self.spec.vocab_size),
            min_confidence,
            drafted,
            probabilities,
        )
        self.model.check(number)
        self.sequence.length += len(rest) + number - 1
        return drafted[:number], probabilities[:number]

    def _prompt(self, tokens: Sequence[int]) -> None:
        for done in range(0, len(tokens), PROMPT_ROWS):
            chunk = tokens[done : done + PROMPT_ROWS]
            rotation = self._prompt_rotation(done, len(chunk), len(tokens))
            self._pass(chunk, [self.sequence] * len(chunk), rotation, None)

    def _prompt_rotation(self, start: int, count: int, length: int) -> Rotation:
        if self.rotary is None:
            return Rotation()
        return Rotation(*self.rotary.rows(start, count, length), start)

    def _pass(
        self,
        tokens: Sequence[int],
        sequences: Sequence[NativeSequence],
        rotation: Rotation,
        logits: torch.Tensor | None,
        vocabulary: int = 0,
    ) -> None:
        batch, _keep = self._batch(tokens, sequences, rotation, logits, vocabulary)
        self.model.check(self.model.library.ia_forward(self.model.handle, self.model.pool.handle, ctypes.byref(batch)))
        for sequence in sequences:
            sequence.length += 1

    def _batch(
        self,
        tokens: Sequence[int],
        sequences: Sequence[NativeSequence],
        rotation: Rotation,
        logits: torch.Tensor | None,
        vocabulary: int = 0,
    ) -> tuple[Batch, object]:
        """The core's description of a pass, and what must live as long as it."""
        rows = len(tokens)
        positions = list(_positions(sequences))
        for sequence, position in zip(sequences, positions, strict=True):
            assert position < sequence.capacity, f"row {position} of a sequence with room for {sequence.capacity}"
        ids = (ctypes.c_int32 * rows)(*tokens)
        at = (ctypes.c_int32 * rows)(*positions)
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
            vocabulary=vocabulary,
        )
        return batch, (ids, at, caches, cosine, sine, logits)


def _positions(sequences: Sequence[NativeSequence]) -> Iterator[int]:
    """The position of each row: behind its sequence's rows so far, and behind those of this pass."""
    new: dict[int, int] = {}
    for sequence in sequences:
        key = id(sequence)
        yield sequence.length + new.get(key, 0)
        new[key] = new.get(key, 0) + 1
