"""Passes of the native executor: a packed model with its memory, rows put together as the core reads them, one call."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import abc
from typing import TYPE_CHECKING, Any, NamedTuple

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.blocks import BlockPool
from ipex_assist.executors.interface import (
    ALL_THREADS,
    ANY_ROWS,
    Meanwhile,
    Model,
    PassThreads,
    Rows,
    Sequence,
    check_rows,
)
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.native.hidden import TappedRows, check_hidden, check_logits, give_hidden
from ipex_assist.executors.native.images import give_embeddings
from ipex_assist.executors.native.pass_rows import with_rows
from ipex_assist.executors.native.segments import TokenSegment, lengthen, whole_states
from ipex_assist.executors.native.sequence import NativeSequence, reserve
from ipex_assist.executors.pass_lock import pass_lock
from ipex_assist.executors.recurrent_states import StatePool
from ipex_assist.executors.rope import Floats, RotaryTable
from ipex_assist.native.batch_structures import Batch, Segment
from ipex_assist.native.blocks import BlockMemory, reserve_blocks
from ipex_assist.native.library import memory_nodes
from ipex_assist.native.model import PackedModel
from ipex_assist.native.rows import DECODE_ROWS, PASS_ROWS
from ipex_assist.native.sizes import PlannedPasses, workspace_bytes
from ipex_assist.native.states import StateMemory
from ipex_assist.quantization.precision import kv_precision_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SETTLE_BYTES = 64 << 20  # of a mapped image, copied between two passes: takes as long as half a pass of a small model


class RotaryRows(NamedTuple):
    """cos and sin of consecutive positions where the core finds them. fields: Segment's from rope_start to sine."""

    fields: tuple[int, int, int | None, int | None]
    tables: tuple[Floats, Floats] | None  # keeps their memory

    @classmethod
    def of(cls, first: int, tables: tuple[Floats, Floats]) -> RotaryRows:
        """Tables (positions, 1, rotary_width) from position `first` on."""
        cosine, sine = tables
        return cls((first, len(cosine), cosine.ctypes.data, sine.ctypes.data), tables)


NO_ROTARY = RotaryRows((0, 0, None, None), None)
NO_ADAPTER = None, 0.0
NO_STATE = 0, 0, 0  # Segment's fields from state to settle
NO_STATES = contextlib.nullcontext()


class NativePasses(Model):
    """Of a model on the C++ core: its weights and memory, and how rows of its sequences pass through it.

    `segments` describes rows, `batch` writes them as the core reads them, and `run` is one call of the core over them.
    Calls from several threads wait for each other.
    """

    exact_rows = ANY_ROWS

    def __init__(self, packed: PackedModel, kv_memory: KvMemory | None = None, kv_precision: str | None = None) -> None:
        """kv_memory: shared with the models that this one runs beside. kv_precision: None is that of attention."""
        self.packed, self.spec = packed, packed.spec
        self.kv_precision = kv_precision_of(packed.precision, kv_precision)
        self.rotary = RotaryTable(self.spec) if self.spec.rotary_tables else None
        self._kv_memory = kv_memory or KvMemory()
        largest = PlannedPasses(
            PASS_ROWS, self.spec.context_length, packed.pool.threads, memory_nodes(packed.pool.cpus)
        )
        largest = with_rows(packed, largest, self._kv_memory)
        self.pass_rows = largest.rows
        workspace = workspace_bytes(packed.handle, self.spec, largest)
        # A mapped image counts as free memory now, and will be copied into memory later; experts are read later, too.
        self._kv_memory.join(
            self.block_bytes,
            self.spec.context_length,
            workspace + (packed.nbytes if packed.settles else 0) + packed.resident_bytes - packed.nbytes,
            packed.state_bytes(self.kv_precision),
        )
        # Of a draft head with a vocabulary of its own: the target's token of each row of its lm_head, ascending.
        self.target_tokens: NDArray[np.int32] | None = None
        self.pass_threads, self._threads_given = ALL_THREADS, False
        self._begun = False
        self.memory: BlockMemory | None = None
        self._pool: BlockPool | None = None
        self.states_memory: StateMemory | None = None
        self._states: StatePool | None = None
        self._making = threading.Lock()
        # rows of a block, which do not stay
        self.spare = self.spec.head.block_size if self.spec.head is not None else 0
        self.width = -(-self.spec.lm_head_rows // 16) * 16
        self._shared_rotary = NO_ROTARY
        # a draft head that keeps nothing: its layers read keys and values of its target
        self._over_target = self.spec.head is not None and self.spec.head.kind == "shared_kv"
        self.token_order: NDArray[np.int32] | None = None  # of one with clusters: the token of each row of its lm_head

    @property
    def thread_choices(self) -> tuple[int, ...]:
        """All, half, a quarter, … and those of the first NUMA node; a single number after `use_threads`."""
        return (self.pass_threads.threads,) if self._threads_given else self.packed.pool.fewer()

    def use_threads(self, number: int) -> None:
        """Run all decode passes on `number` threads from now on."""
        self.pass_threads, self._threads_given = PassThreads(number, DECODE_ROWS), True

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of keys and values, all layers together."""
        return self.packed.block_bytes(self.kv_precision)

    @property
    def blocks(self) -> BlockPool:
        """The KV block pool, made at the first call. Raises IpexAssistError where not even one block fits."""
        with self._making:
            if self._pool is None and self._over_target:
                self._pool = BlockPool(1)  # nothing is kept
            elif self._pool is None:
                self.memory = reserve_blocks(self.packed, self._kv_memory.blocks(), self.kv_precision)
                if self.spec.keeps_states:
                    self.states_memory = StateMemory(self.packed, self._kv_memory.states(), self.kv_precision)
                    memory = self.states_memory
                    self._states = StatePool(memory.count, memory, memory.discard)
                self._pool = BlockPool(self.memory.count, discard=self.memory.discard)
            return self._pool

    @property
    def states(self) -> StatePool | None:
        """The slots of states, made with the block pool; None in a model whose layers keep none."""
        return self._states if self.blocks is not None else None

    # ---- rows put together as a pass

    def own(self, sequence: Sequence) -> NativeSequence:
        """The sequence, which must be one of this model's."""
        assert isinstance(sequence, NativeSequence), f"a sequence of {type(sequence).__name__}"
        assert sequence.model is self, "a sequence of another model"
        return sequence

    def columns(self, vocabulary: int | None) -> int:
        """How many columns of logits are of the first `vocabulary` token ids; all where None."""
        rows = self.spec.lm_head_rows
        if vocabulary is not None and self.target_tokens is not None:
            return int(self.target_tokens.searchsorted(vocabulary))
        return min(vocabulary or rows, rows)

    def reserve(self, wants: abc.Sequence[tuple[NativeSequence, int]]) -> None:
        """Take the blocks that (sequence, further rows) need; NoBlocksError, and no change, where there are too few."""
        pool, memory = self.blocks, self.memory
        assert memory is not None
        assert len({sequence for sequence, _ in wants}) == len(wants), "a sequence twice in one call"
        if self._states is not None:
            for sequence, _ in wants:
                sequence.take_state()
        reserve(pool, wants, memory.copy)

    def segments(self, rows: abc.Sequence[Rows]) -> list[TokenSegment]:
        """The rows of one call as segments, with blocks reserved for all of them."""
        segments = []
        for each in rows:
            own, tokens, last = self.own(each.sequence), each.tokens, each.last
            check_rows(own, len(tokens), last)
            if tokens:
                check_hidden(self.spec, each.hidden, len(tokens))
                check_logits(self.spec, last)
                segments.append(TokenSegment(own, tokens, own.length, last, each.hidden))
        self.reserve([(segment.sequence, len(segment.tokens)) for segment in segments])
        for segment in segments:
            if segment.start == 0:
                segment.sequence.begin(len(segment.tokens))
        return segments

    def _rotary_of_steps(self) -> RotaryRows:
        """The rotary embeddings of decode steps, which all sequences share."""
        if self.rotary is not None and self._shared_rotary.tables is not self.rotary.tables:
            self._shared_rotary = RotaryRows.of(0, self.rotary.tables)
        return self._shared_rotary

    def _rotary_of(self, sequence: NativeSequence, start: int, rows: int) -> RotaryRows | None:
        """The rotary embeddings of rows of a prompt, or after images; None where they are those of decode steps."""
        images, of_steps = sequence.images, self._rotary_of_steps()
        if self.rotary is None or of_steps.tables is None:
            return None
        if images is None:
            if not self.rotary.stretches(sequence.rope_prompt_length):
                return None
            return RotaryRows.of(start, self.rotary.rows(start, rows, sequence.rope_prompt_length))
        if images.within(start, start + rows):
            return RotaryRows.of(start, self.rotary.at(images.positions(start, rows)))
        _, count, cosine, sine = of_steps.fields  # tokens: those of other positions
        return RotaryRows((-images.shift(start), count, cosine, sine), of_steps.tables)

    def batch(
        self,
        segments: abc.Sequence[TokenSegment],
        vocabulary: int | None,
        further: abc.Sequence[int] = (),
        memory: BlockMemory | None = None,
    ) -> tuple[Batch, object]:
        """The core's description of a pass, and objects that must live as long as it.

        further: for each segment, how many tokens will be drafted after it. memory: that of the segments' blocks, where
        they are another model's.
        """
        memory = memory or self.memory
        tokens: list[int] = []
        logit_rows: list[int] = []
        described: list[Any] = []  # the segments' fields, in the order of Segment's
        of_steps = self._rotary_of_steps()
        keep: list[object] = [of_steps]
        for index, segment in enumerate(segments):
            own, start, last = segment.sequence, segment.start, segment.last
            rows = len(segment.tokens)
            end = start + rows
            more = further[index] if further else 0
            tokens += segment.tokens
            logit_rows += range(len(tokens) - last - segment.after, len(tokens) - segment.after)
            rotary, state = of_steps, NO_STATE
            if start < own.rope_prompt_length or own.images is not None:
                rotary = self._rotary_of(own, start, rows + more) or of_steps
                keep.append(rotary)
            if own.state is not None:
                settle = own.state.after(start, end, end + (more - 1 if further else 0))
                state = own.state.slot, own.state.settled, settle
            # A draft head over its target's sequence has no part in the target's adapter.
            adapter, scale = (own.adapter if own.model is self else None) or NO_ADAPTER
            lora = scale, None if adapter is None else adapter.handle
            described.append((ctypes.addressof(own.table), own.count, start, rows, *rotary.fields, *state, *lora))
        # ctypes would silently keep the lowest 32 bits of a larger number; the core checks ids in that range.
        if tokens and not -(1 << 31) <= min(tokens) <= max(tokens) < 1 << 31:
            raise IpexAssistError(f"token ids from {min(tokens)} to {max(tokens)}")
        assert memory is not None
        batch = Batch(
            segment_count=len(segments),
            rows=len(tokens),
            segments=(Segment * len(segments))(*described),
            tokens=(ctypes.c_int32 * len(tokens))(*tokens),
            blocks=memory.handle,
            logit_rows=(ctypes.c_int32 * len(logit_rows))(*logit_rows),
            logit_row_count=len(logit_rows),
            vocabulary=self.columns(vocabulary) if vocabulary else 0,
            stride=self.width,
            states=self.states_memory.handle if self.states_memory is not None else None,
            threads=self.pass_threads.of(len(tokens)),
        )
        if len(keep) > 1:
            keep.append(give_embeddings(batch, self.spec, segments))
        if self.spec.head is not None:
            keep.append(give_hidden(batch, self.spec, [segment.hidden for segment in segments]))
        return batch, keep

    # ---- passes

    def run(
        self,
        call: str,
        batch: Batch,
        *arguments: object,
        appended: abc.Sequence[TokenSegment] = (),
        after: abc.Callable[[abc.Sequence[TokenSegment]], None] = lengthen,
        meanwhile: Meanwhile | None = None,
    ) -> None:
        """One call of the core over a batch: `call` is its name there, `arguments` what it takes after the batch.

        appended: segments whose rows stay in their sequences; `after` writes down, still under the lock, that they do.
        Without any, nothing of the pass stays. meanwhile: of `ia_sample`, called while the core works. Raises
        IpexAssistError where the core refuses it.
        """
        packed = self.packed
        states = NO_STATES if self._states is None or not appended else whole_states(appended)
        with pass_lock, states:
            if packed.settles and self._begun:  # before each pass but the first
                packed.settle(SETTLE_BYTES)
            self._begun = True
            given = packed.handle, packed.pool.handle, ctypes.byref(batch), *arguments
            if meanwhile is None:
                packed.check(getattr(packed.library, call)(*given))
            else:
                assert call == "ia_sample", call
                self._run_beside(meanwhile, given)
            after(appended)

    def _run_beside(self, meanwhile: Meanwhile, given: tuple[Any, ...]) -> None:
        """`ia_sample`, and `meanwhile` until the core is done, or there is nothing left to do."""
        packed, library = self.packed, self.packed.library
        packed.check(library.ia_begin_sample(*given))
        try:
            while not library.ia_sample_is_done(packed.handle) and meanwhile():
                pass
        finally:
            status = library.ia_end_sample(packed.handle)
        packed.check(status)

    def append(
        self,
        segments: abc.Sequence[TokenSegment],
        logits: int = 0,
        vocabulary: int | None = None,
        taps: TappedRows | None = None,
    ) -> None:
        """Run a pass. logits: the address where its rows of logits are written."""
        batch, _keep = self.batch(segments, vocabulary)
        batch.logits = logits
        if taps is not None:
            taps.next_pass(batch)
        self.run("ia_forward", batch, appended=segments)
