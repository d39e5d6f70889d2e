"""The native executor: a Model whose every pass is one call of the C++ core. torch is imported for logits alone."""

from __future__ import annotations

import ctypes
import threading
from collections import abc
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ipex_assist.deferred_imports import torch_module
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.blocks import BlockPool
from ipex_assist.executors.interface import (
    ALL_THREADS,
    ANY_ROWS,
    Choice,
    DraftRequest,
    LogitsError,
    Model,
    PassThreads,
    Rows,
    Sequence,
    Tokens,
    check_rows,
)
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.native_sequence import NativeSequence, reserve
from ipex_assist.executors.rope import Floats, RotaryTable
from ipex_assist.executors.turn import turn
from ipex_assist.native.blocks import BlockMemory, reserve_blocks
from ipex_assist.native.model import PackedModel
from ipex_assist.native.sizes import PASS_ROWS, workspace_bytes
from ipex_assist.native.structures import Batch, GreedyDraft, Segment, TopTokens
from ipex_assist.quantization.precision import kv_precision_of

if TYPE_CHECKING:
    import torch

SETTLE_BYTES = 64 << 20  # of a mapped image, between two passes: as long as half a pass of a small model
DECODE_ROWS = 16  # kernels.h: DECODE_ROWS. Up to so many rows share attention by blocks.


class Part(NamedTuple):
    """Tokens that one sequence gets in a pass, from position `start` on; with logits of the last `last`."""

    sequence: NativeSequence
    tokens: Tokens
    start: int
    last: int


class NativeModel(Model):
    """A Model (see executors/interface.py) on the core, where threads take turns. Logits are fp32."""

    exact_rows = ANY_ROWS

    def __init__(self, packed: PackedModel, kv_memory: KvMemory | None = None, kv_precision: str | None = None) -> None:
        """kv_memory: shared with the models that this one works with. kv_precision: None is that of attention."""
        self.packed, self.spec = packed, packed.spec
        self.kv_precision = kv_precision_of(packed.precision, kv_precision)
        self.rotary = RotaryTable(self.spec) if self.spec.ropes else None
        self._kv_memory = kv_memory or KvMemory()
        workspace = workspace_bytes(self.spec, packed.pool.threads, PASS_ROWS, self.spec.context_length)
        # What is mapped now counts as memory that is free.
        self._kv_memory.join(
            self.block_bytes, self.spec.context_length, workspace + (packed.nbytes if packed.settles else 0)
        )
        self.pass_threads, self._threads_given = ALL_THREADS, False
        self._begun = False
        self._memory: BlockMemory | None = None
        self._pool: BlockPool | None = None
        self._making = threading.Lock()
        self._width = -(-self.spec.vocab_size // 16) * 16

    @property
    def experts_read(self) -> int:
        """Distinct experts that the last call's passes read, of all layers together; shared ones do not count."""
        return self.packed.experts_read if self.spec.experts else 0

    @property
    def thread_choices(self) -> tuple[int, ...]:
        """All, half, a quarter and so on, and those of the first memory node; one where `use_threads` gave a number."""
        return (self.pass_threads.threads,) if self._threads_given else self.packed.pool.fewer()

    def use_threads(self, number: int) -> None:
        """Let so many threads run all passes of few rows; there is no choice from then on."""
        self.pass_threads, self._threads_given = PassThreads(number, DECODE_ROWS), True

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of its keys and values."""
        return self.packed.block_bytes(self.kv_precision)

    @property
    def blocks(self) -> BlockPool:
        """The pool of blocks, made at the first call. Raises IpexAssistError where there is no memory for any."""
        with self._making:
            if self._pool is None:
                self._memory = reserve_blocks(self.packed, self._kv_memory.blocks(), self.kv_precision)
                self._pool = BlockPool(self._memory.count, discard=self._memory.discard)
            return self._pool

    def new_sequence(
        self, capacity: int, prompt_length: int | None = None, blocks: abc.Sequence[int] = ()
    ) -> NativeSequence:
        """A sequence that may hold up to `capacity` tokens. Raises IpexAssistError where there is no memory."""
        if self.rotary is not None:
            self.rotary.reach(capacity)
        return NativeSequence(self, self.blocks, capacity, prompt_length, blocks)

    def forward(self, rows: abc.Sequence[Rows], vocabulary: int | None = None) -> torch.Tensor:
        """Append each one's tokens to its sequence; logits (sum of `last`, vocab) in the order of `rows`."""
        parts = self._parts(rows)
        logits = torch_module().empty(sum(each.last for each in rows), self._width)
        place = 0
        for group in self._passes(parts):
            count = sum(part.last for part in group)
            self._forward(group, logits[place : place + count].data_ptr(), vocabulary)
            place += count
        return logits[:, : self._choices(vocabulary)]

    def choose(self, rows: abc.Sequence[Rows], top: int = 0, vocabulary: int | None = None) -> list[Choice]:
        """`forward`, and the most likely tokens after each row with logits, found in the core."""
        choices: list[Choice] = []
        for group in self._passes(self._parts(rows)):
            choices += self._choose(group, top, vocabulary)
        return choices

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
        before = sequence.length
        [(drafted, probabilities)] = self.draft_many(
            [DraftRequest(sequence, tokens, count, min_confidence)], vocabulary
        )
        if drafted[-1] < 0:
            sequence.truncate(before)
            raise LogitsError("the model", before + len(tokens) + len(drafted) - 1)
        return drafted, probabilities

    def draft_many(
        self, requests: abc.Sequence[DraftRequest], vocabulary: int | None = None
    ) -> list[tuple[list[int], list[float]]]:
        """`draft` for several sequences, whose rows share passes; see executors/interface.py."""
        wants = [(self._own(each.sequence), len(each.tokens) + each.count - 1) for each in requests]
        for (own, rows), each in zip(wants, requests, strict=True):
            check_rows(own, rows)
            if not each.tokens or each.count < 1:
                raise IpexAssistError(f"{each.count} tokens drafted behind {len(each.tokens)}: it takes one of each")
        self._reserve(wants)
        drafts: list[tuple[list[int], list[float]]] = []
        for first in range(0, len(requests), PASS_ROWS):
            drafts += self._draft(requests[first : first + PASS_ROWS], vocabulary)
        return drafts

    # ---- what goes into a pass

    def _own(self, sequence: Sequence) -> NativeSequence:
        assert isinstance(sequence, NativeSequence), f"a sequence of {type(sequence).__name__}"
        assert sequence.model is self, "a sequence of another model"
        return sequence

    def _choices(self, vocabulary: int | None) -> int:
        return min(vocabulary or self.spec.vocab_size, self.spec.vocab_size)

    def _reserve(self, wants: abc.Sequence[tuple[NativeSequence, int]]) -> None:
        """Blocks for all these rows, or NoBlocksError and nothing has changed."""
        pool, memory = self.blocks, self._memory
        assert memory is not None
        assert len({id(sequence) for sequence, _ in wants}) == len(wants), "a sequence twice in one call"
        reserve(pool, wants, memory.copy)

    def _parts(self, rows: abc.Sequence[Rows]) -> list[Part]:
        """The rows of one call, when there is memory for all of them."""
        parts = []
        for each in rows:
            own = self._own(each.sequence)
            check_rows(own, len(each.tokens), each.last)
            if each.tokens:
                parts.append(Part(own, each.tokens, own.length, each.last))
        self._reserve([(part.sequence, len(part.tokens)) for part in parts])
        for part in parts:
            part.sequence.begin(len(part.tokens))
        return parts

    def _passes(self, parts: abc.Sequence[Part]) -> Iterator[list[Part]]:
        """Parts by passes, in their order: rows of any sequences together, as many as one pass may hold."""
        group: list[Part] = []
        room = PASS_ROWS
        for part in parts:
            done, count = 0, len(part.tokens)
            while done < count:
                rows = min(count - done, room)
                last = min(rows, max(0, part.last - (count - done - rows)))
                group.append(Part(part.sequence, part.tokens[done : done + rows], part.start + done, last))
                done, room = done + rows, room - rows
                if room == 0:
                    yield group
                    group, room = [], PASS_ROWS
        if group:
            yield group

    def _rotation(self, sequence: NativeSequence, start: int, rows: int) -> tuple[int, Floats, Floats]:
        """cos and sin (…, 1, head_dim) of at least these rows, and the position of their first."""
        assert self.rotary is not None
        prompt_length = sequence.turned_as
        if start >= prompt_length or not self.rotary.stretches(prompt_length):
            return (0, *self.rotary.tables)
        return (start, *self.rotary.rows(start, rows, prompt_length))

    def _batch(
        self, parts: abc.Sequence[Part], vocabulary: int | None, further: abc.Sequence[int] = ()
    ) -> tuple[Batch, object]:
        """The core's description of a pass, and what must live as long as it. further: tokens drafted after a part."""
        tokens = [token for part in parts for token in part.tokens]
        # ctypes would take a larger number for its lowest 32 bits; the core checks what is left.
        if tokens and not -(1 << 31) <= min(tokens) <= max(tokens) < 1 << 31:
            raise IpexAssistError(f"token ids from {min(tokens)} to {max(tokens)}")
        segments, keep = (Segment * len(parts))(), []
        logit_rows: list[int] = []
        row = 0
        for index, part in enumerate(parts):
            rows, own, segment = len(part.tokens), part.sequence, segments[index]
            segment.blocks, segment.block_count = ctypes.addressof(own.table), own.count
            segment.start, segment.rows = part.start, rows
            if self.rotary is not None:
                first, cosine, sine = self._rotation(own, part.start, rows + (further[index] if further else 0))
                segment.rope_start, segment.rope_rows = first, len(cosine)
                segment.cosine, segment.sine = cosine.ctypes.data, sine.ctypes.data
                keep.append((cosine, sine))
            row += rows
            logit_rows += range(row - part.last, row)
        assert self._memory is not None
        batch = Batch(
            segment_count=len(parts),
            rows=row,
            segments=segments,
            tokens=(ctypes.c_int32 * row)(*tokens),
            blocks=self._memory.handle,
            logit_rows=(ctypes.c_int32 * len(logit_rows))(*logit_rows),
            logit_row_count=len(logit_rows),
            vocabulary=min(vocabulary or 0, self.spec.vocab_size),
            stride=self._width,
            threads=self.pass_threads.of(row),
        )
        return batch, keep

    # ---- passes

    def _settle(self) -> None:
        """Before each pass but the first: give a mapped image a piece of memory of its own."""
        if self.packed.settles and self._begun:
            self.packed.settle(SETTLE_BYTES)
        self._begun = True

    def _forward(self, parts: abc.Sequence[Part], logits: int, vocabulary: int | None) -> None:
        """Run a pass. logits: where its rows with logits are written, an address."""
        packed = self.packed
        batch, _keep = self._batch(parts, vocabulary)
        batch.logits = logits
        with turn:
            self._settle()
            packed.check(packed.library.ia_forward(packed.handle, packed.pool.handle, ctypes.byref(batch)))
        _lengthen(parts)

    def _choose(self, parts: abc.Sequence[Part], top: int, vocabulary: int | None) -> list[Choice]:
        packed = self.packed
        batch, _keep = self._batch(parts, vocabulary)
        rows = batch.logit_row_count
        tokens, top_tokens = (ctypes.c_int32 * rows)(), (ctypes.c_int32 * (rows * top))()
        logs, log_sums = (ctypes.c_float * rows)(), (ctypes.c_float * rows)()
        top_logs = (ctypes.c_float * (rows * top))()
        found = TopTokens(top, tokens, logs, log_sums, top_tokens, top_logs)
        with turn:
            self._settle()
            status = packed.library.ia_top_tokens(
                packed.handle, packed.pool.handle, ctypes.byref(batch), ctypes.byref(found)
            )
            packed.check(status)
        _lengthen(parts)
        ranked = [
            list(zip(top_tokens[at : at + top], top_logs[at : at + top], strict=True))
            for at in range(0, rows * top, top or 1)
        ] or [[] for _ in range(rows)]
        return [Choice(*each) for each in zip(tokens, logs, ranked, strict=True)]

    def _draft(
        self, requests: abc.Sequence[DraftRequest], vocabulary: int | None
    ) -> list[tuple[list[int], list[float]]]:
        """`draft_many` of as many as a pass holds; tokens that do not fit beside those of the others go before."""
        parts, before = [], []
        for each in requests:
            own, count = self._own(each.sequence), len(each.tokens)
            own.begin(count)
            keep = min(count, PASS_ROWS // len(requests))
            if keep < count:
                before.append(Part(own, each.tokens[:-keep], own.length, 0))
            parts.append(Part(own, each.tokens[-keep:], own.length + count - keep, 1))
        for group in self._passes(before):
            self._forward(group, 0, None)  # no row has logits
        counts = [each.count for each in requests]
        batch, _keep = self._batch(parts, self._choices(vocabulary), counts)
        number, stride = len(parts), max(counts)
        tokens, drafted = (ctypes.c_int32 * (number * stride))(), (ctypes.c_int32 * number)()
        probabilities = (ctypes.c_float * (number * stride))()
        draft = GreedyDraft(
            (ctypes.c_int32 * number)(*counts),
            (ctypes.c_float * number)(*(each.min_confidence for each in requests)),
            stride,
            tokens,
            probabilities,
            drafted,
        )
        packed = self.packed
        with turn:
            self._settle()
            status = packed.library.ia_draft(
                packed.handle, packed.pool.handle, ctypes.byref(batch), ctypes.byref(draft)
            )
            packed.check(status)
        found = []
        for index, part in enumerate(parts):
            first, last = index * stride, index * stride + drafted[index]
            # The last token is not fed; nor are blocks kept that were for tokens which did not come.
            part.sequence.length = part.start + len(part.tokens) + drafted[index] - 1
            part.sequence.truncate(part.sequence.length)
            found.append((tokens[first:last], probabilities[first:last]))
        return found


def _lengthen(parts: abc.Sequence[Part]) -> None:
    for part in parts:
        part.sequence.length = part.start + len(part.tokens)
