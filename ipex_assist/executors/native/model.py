"""The native executor: a Model on the C++ core, one call a pass. It imports torch only to return logits."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections import abc
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ipex_assist.deferred_imports import torch_module
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.adapters import AdapterChoice, AdapterMatrices
from ipex_assist.executors.blocks import BlockPool
from ipex_assist.executors.interface import (
    ALL_THREADS,
    ANY_ROWS,
    DraftInput,
    HiddenRows,
    LogitsError,
    Model,
    PassThreads,
    Rows,
    Sequence,
    TokenLogprob,
    Tokens,
    check_rows,
    truncate_or_clear,
)
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.native.choices import CoreChoices, KeptLogits
from ipex_assist.executors.native.drafts import (
    CoreDrafts,
    check_draft,
    context_rows,
    draft_rows,
)
from ipex_assist.executors.native.hidden import TappedRows, check_hidden, check_logits, give_hidden
from ipex_assist.executors.native.prefixes import NativePrefixMemory
from ipex_assist.executors.native.sequence import NativeSequence, reserve
from ipex_assist.executors.pass_lock import pass_lock
from ipex_assist.executors.recurrent_states import PENDING_ROWS, RecurrentState, StatePool
from ipex_assist.executors.rope import Floats, RotaryTable
from ipex_assist.executors.row_choice import RowChoice, SampledRows
from ipex_assist.native.adapter import PackedAdapter
from ipex_assist.native.blocks import BlockMemory, reserve_blocks
from ipex_assist.native.library import memory_nodes
from ipex_assist.native.model import PackedModel
from ipex_assist.native.sizes import PASS_ROWS, workspace_bytes
from ipex_assist.native.states import StateMemory
from ipex_assist.native.structures import Batch, Segment, TopTokens
from ipex_assist.quantization.precision import kv_precision_of

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

SETTLE_BYTES = 64 << 20  # of a mapped image, copied between two passes: takes as long as half a pass of a small model
DECODE_ROWS = 16  # kernels.h: DECODE_ROWS. Passes of up to this many rows take the decode path.


class TokenSegment(NamedTuple):
    """Consecutive tokens of one sequence in a pass, from position `start` on; `last` of them get logits."""

    sequence: NativeSequence
    tokens: Tokens
    start: int
    last: int
    hidden: Floats | None = None  # of a draft head's rows, as in Rows
    after: int = 0  # tokens after those that get logits


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


class NativeModel(Model):
    """A Model (see executors/interface.py) on the C++ core. Calls from several threads wait for each other.

    Logits are fp32.
    """

    exact_rows = ANY_ROWS

    def __init__(self, packed: PackedModel, kv_memory: KvMemory | None = None, kv_precision: str | None = None) -> None:
        """kv_memory: shared with the models that this one runs beside. kv_precision: None is that of attention."""
        self.packed, self.spec = packed, packed.spec
        self.kv_precision = kv_precision_of(packed.precision, kv_precision)
        self.rotary = RotaryTable(self.spec) if self.spec.rotary_tables else None
        self._kv_memory = kv_memory or KvMemory()
        workspace = workspace_bytes(
            self.spec, packed.pool.threads, PASS_ROWS, self.spec.context_length, memory_nodes(packed.pool.cpus)
        )
        # A mapped image counts as free memory now, and will be copied into memory later.
        self._kv_memory.join(
            self.block_bytes,
            self.spec.context_length,
            workspace + (packed.nbytes if packed.settles else 0),
            packed.state_bytes,
        )
        # Of a draft head with a vocabulary of its own: the target's token of each row of its lm_head, ascending.
        self.target_tokens: NDArray[np.int32] | None = None
        self.pass_threads, self._threads_given = ALL_THREADS, False
        self._begun = False
        self._memory: BlockMemory | None = None
        self._pool: BlockPool | None = None
        self._states_memory: StateMemory | None = None
        self._states: StatePool | None = None
        self._making = threading.Lock()
        self._kept = threading.local()  # logits that a thread asked for
        # rows of a block, which do not stay
        self._spare = self.spec.head.block_size if self.spec.head is not None else 0
        self._width = -(-self.spec.lm_head_rows // 16) * 16
        self._shared_rotary = NO_ROTARY
        self.adapters: dict[str, PackedAdapter] = {}
        # a draft head that keeps nothing: its layers read keys and values of its target
        self._over_target = self.spec.head is not None and self.spec.head.kind == "shared_kv"
        self.token_order: NDArray[np.int32] | None = None  # of one with clusters: the token of each row of its lm_head

    @property
    def experts_read(self) -> int:
        """Distinct experts that the last call's passes read, summed over layers; shared experts do not count."""
        return self.packed.experts_read if self.spec.experts else 0

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
                self._memory = reserve_blocks(self.packed, self._kv_memory.blocks(), self.kv_precision)
                if self.spec.recurrents:
                    self._states_memory = StateMemory(self.packed, self._kv_memory.states())
                    memory = self._states_memory
                    self._states = StatePool(memory.count, memory, memory.discard)
                self._pool = BlockPool(self._memory.count, discard=self._memory.discard)
            return self._pool

    @property
    def states(self) -> StatePool | None:
        """The slots of recurrent layers' states, made with the block pool; None in a model without such layers."""
        return self._states if self.blocks is not None else None

    def add_adapter(self, name: str, matrices: abc.Iterable[AdapterMatrices]) -> None:
        """Have an adapter by this name, for `new_sequence`; sequences that have an earlier one keep it."""
        made = PackedAdapter(self.packed)
        for each in matrices:
            made.pack(each.name, each.a, each.b, each.scale)
        self.adapters[name] = made

    def prefix_memory(self) -> NativePrefixMemory:
        """The bytes of blocks and states, for a store of prefixes. Raises IpexAssistError as `blocks` does."""
        self.blocks  # noqa: B018  # makes the memory
        assert self._memory is not None
        return NativePrefixMemory(self.packed, self._memory, self._states_memory, self.kv_precision)

    def new_sequence(
        self,
        capacity: int,
        prompt_length: int | None = None,
        blocks: abc.Sequence[int] = (),
        state: RecurrentState | None = None,
        adapter: AdapterChoice | None = None,
    ) -> NativeSequence:
        """A sequence that may hold up to `capacity` tokens. Raises IpexAssistError where there is no memory.

        state: with `blocks`, the state after the tokens that they hold, which is copied. adapter: one of `adapters`.
        """
        if self.rotary is not None:
            self.rotary.reach(capacity + self._spare)
        made = NativeSequence(self, self.blocks, capacity, prompt_length, blocks, self.states, state, self._spare)
        if adapter is not None:
            made.adapter = self.adapters[adapter.name], adapter.scale
        return made

    def forward(
        self, rows: abc.Sequence[Rows], vocabulary: int | None = None, hidden: HiddenRows | None = None
    ) -> torch.Tensor:
        """Append tokens to each sequence; returns logits (sum of `last`, vocab) in the order of `rows`.

        hidden: gets hidden states of all rows. A draft head's logits are of the tokens that it tells apart.
        """
        segments = self._segments(rows)
        taps = TappedRows.of(hidden, self.spec, segments)
        logits = torch_module().empty(sum(each.last for each in rows), self._width)
        first = 0
        for group in self._passes(segments):
            count = sum(segment.last for segment in group)
            self._forward(group, logits[first : first + count].data_ptr(), vocabulary, taps)
            first += count
        return logits[:, : self._choices(vocabulary)]

    def choose(self, rows: abc.Sequence[Rows], top: int = 0, vocabulary: int | None = None) -> list[TokenLogprob]:
        """`forward`, and the likeliest token of each row of logits, found in the core."""
        choices: list[TokenLogprob] = []
        for group in self._passes(self._segments(rows)):
            choices += self._choose(group, top, vocabulary)
        return choices

    def sample(
        self, rows: abc.Sequence[Rows], choices: abc.Sequence[RowChoice], hidden: HiddenRows | None = None
    ) -> SampledRows:
        """`forward`, and a token for each row of logits, chosen in the core; see executors/row_choice.py."""
        segments = self._segments(rows)
        taps = TappedRows.of(hidden, self.spec, segments)
        assert len(choices) == sum([each.last for each in segments]), "a choice for each row of logits"
        if not hasattr(self._kept, "logits"):
            self._kept.logits = KeptLogits()
        chosen = CoreChoices(choices, self.spec.lm_head_rows, self._kept.logits)
        first = 0
        for group in self._passes(segments):
            if count := sum([segment.last for segment in group]):
                self._sample(group, chosen, first, taps)
            else:
                self._forward(group, 0, None, taps)
            first += count
        return chosen.found()

    def draft(
        self,
        sequence: Sequence,
        tokens: Tokens,
        count: int,
        vocabulary: int | None = None,
        min_confidence: float = 0.0,
        hidden: Floats | None = None,
        shared_kv: Sequence | None = None,
    ) -> tuple[list[int], list[float]]:
        """Append `tokens`, then decode up to `count` tokens greedily in one call; returns them and their probabilities.

        Only the first `vocabulary` token ids are candidates. Ends after a token whose probability is below
        `min_confidence`. The last token is not in the KV cache. hidden, shared_kv: of a draft head, as in DraftInput.
        Raises LogitsError for logits with NaN or infinity.
        """
        before = sequence.length
        request = DraftInput(sequence, tokens, count, min_confidence, hidden, shared_kv)
        [(drafted, probabilities)] = self.draft_many([request], vocabulary)
        if drafted[-1] < 0:
            truncate_or_clear(sequence, before)
            raise LogitsError("the model", before + len(tokens) + len(drafted) - 1)
        return drafted, probabilities

    def draft_many(
        self, requests: abc.Sequence[DraftInput], vocabulary: int | None = None
    ) -> list[tuple[list[int], list[float]]]:
        """`draft` for several sequences, whose rows share passes; see executors/interface.py."""
        blocks = self.spec.head is not None and self.spec.head.kind == "dflash"
        wants = [(self._own(each.sequence), context_rows(each) if blocks else draft_rows(each)) for each in requests]
        for (own, rows), each in zip(wants, requests, strict=True):
            check_rows(own, rows)
            if not each.tokens or each.count < 1:
                raise IpexAssistError(f"{each.count} tokens to draft after {len(each.tokens)}: both must be at least 1")
            check_draft(self.spec, each)
        draft = self._draft_over_target if self._over_target else self._draft
        if not self._over_target:
            self._reserve([(own, rows + self._spare) for own, rows in wants])
        if blocks:
            return self._draft_blocks(requests, vocabulary)
        drafts: list[tuple[list[int], list[float]]] = []
        for first in range(0, len(requests), PASS_ROWS):
            drafts += draft(requests[first : first + PASS_ROWS], vocabulary)
        return drafts

    # ---- putting a pass together

    def _own(self, sequence: Sequence) -> NativeSequence:
        assert isinstance(sequence, NativeSequence), f"a sequence of {type(sequence).__name__}"
        assert sequence.model is self, "a sequence of another model"
        return sequence

    def _choices(self, vocabulary: int | None) -> int:
        rows = self.spec.lm_head_rows
        if vocabulary is not None and self.target_tokens is not None:
            return int(self.target_tokens.searchsorted(vocabulary))
        return min(vocabulary or rows, rows)

    def _reserve(self, wants: abc.Sequence[tuple[NativeSequence, int]]) -> None:
        """Take the blocks that (sequence, further rows) need; NoBlocksError, and no change, where there are too few."""
        pool, memory = self.blocks, self._memory
        assert memory is not None
        assert len({sequence for sequence, _ in wants}) == len(wants), "a sequence twice in one call"
        if self._states is not None:
            for sequence, _ in wants:
                sequence.take_state()
        reserve(pool, wants, memory.copy)

    def _segments(self, rows: abc.Sequence[Rows]) -> list[TokenSegment]:
        """The rows of one call as segments, with blocks reserved for all of them."""
        segments = []
        for each in rows:
            own, tokens, last = self._own(each.sequence), each.tokens, each.last
            check_rows(own, len(tokens), last)
            if tokens:
                check_hidden(self.spec, each.hidden, len(tokens))
                check_logits(self.spec, last)
                segments.append(TokenSegment(own, tokens, own.length, last, each.hidden))
        self._reserve([(segment.sequence, len(segment.tokens)) for segment in segments])
        for segment in segments:
            if segment.start == 0:
                segment.sequence.begin(len(segment.tokens))
        return segments

    def _passes(self, segments: abc.Sequence[TokenSegment]) -> Iterator[list[TokenSegment]]:
        """Segments grouped into passes, in order, cut where a pass has PASS_ROWS rows."""
        if segments and sum([len(each.tokens) for each in segments]) <= PASS_ROWS:
            yield list(segments)
            return
        group: list[TokenSegment] = []
        room = PASS_ROWS
        for each in segments:
            done, count = 0, len(each.tokens)
            while done < count:
                rows = min(count - done, room)
                last = min(rows, max(0, each.last - (count - done - rows)))
                tokens, hidden = each.tokens[done : done + rows], each.hidden
                part = hidden if hidden is None else hidden[done : done + rows]
                group.append(TokenSegment(each.sequence, tokens, each.start + done, last, part))
                done, room = done + rows, room - rows
                if room == 0:
                    yield group
                    group, room = [], PASS_ROWS
        if group:
            yield group

    def _rotary_of_steps(self) -> RotaryRows:
        """The rotary embeddings of decode steps, which all sequences share."""
        if self.rotary is not None and self._shared_rotary.tables is not self.rotary.tables:
            self._shared_rotary = RotaryRows.of(0, self.rotary.tables)
        return self._shared_rotary

    def _rotary_of_prompt(self, prompt_length: int, start: int, rows: int) -> RotaryRows | None:
        """The rotary embeddings of a prompt's rows; None where they are those of decode steps."""
        if self.rotary is None or not self.rotary.stretches(prompt_length):
            return None
        return RotaryRows.of(start, self.rotary.rows(start, rows, prompt_length))

    def _batch(
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
        memory = memory or self._memory
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
            if start < own.rope_prompt_length:
                rotary = self._rotary_of_prompt(own.rope_prompt_length, start, rows + more) or of_steps
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
            vocabulary=self._choices(vocabulary) if vocabulary else 0,
            stride=self._width,
            states=self._states_memory.handle if self._states_memory is not None else None,
            threads=self.pass_threads.of(len(tokens)),
        )
        if self.spec.head is not None:
            keep.append(give_hidden(batch, self.spec, [segment.hidden for segment in segments]))
        return batch, keep

    # ---- passes

    def _settle(self) -> None:
        """Before each pass but the first: copy the next SETTLE_BYTES of a mapped image into memory."""
        if self.packed.settles and self._begun:
            self.packed.settle(SETTLE_BYTES)
        self._begun = True

    def _states_after(self, segments: abc.Sequence[TokenSegment]) -> contextlib.AbstractContextManager[None]:
        """What a pass runs in, so that a signal leaves no state that nobody knows."""
        return NO_STATES if self._states is None else _whole_states(segments)

    def _forward(
        self,
        segments: abc.Sequence[TokenSegment],
        logits: int,
        vocabulary: int | None,
        taps: TappedRows | None = None,
    ) -> None:
        """Run a pass. logits: the address where its rows of logits are written."""
        packed = self.packed
        batch, _keep = self._batch(segments, vocabulary)
        batch.logits = logits
        if taps is not None:
            taps.next_pass(batch)
        with pass_lock, self._states_after(segments):
            self._settle()
            packed.check(packed.library.ia_forward(packed.handle, packed.pool.handle, ctypes.byref(batch)))
            _lengthen(segments)

    def _choose(self, segments: abc.Sequence[TokenSegment], top: int, vocabulary: int | None) -> list[TokenLogprob]:
        packed = self.packed
        batch, _keep = self._batch(segments, vocabulary)
        rows = batch.logit_row_count
        tokens, top_tokens = (ctypes.c_int32 * rows)(), (ctypes.c_int32 * (rows * top))()
        logs, log_sums = (ctypes.c_float * rows)(), (ctypes.c_float * rows)()
        top_logs = (ctypes.c_float * (rows * top))()
        found = TopTokens(top, tokens, logs, log_sums, top_tokens, top_logs)
        with pass_lock, self._states_after(segments):
            self._settle()
            status = packed.library.ia_top_tokens(
                packed.handle, packed.pool.handle, ctypes.byref(batch), ctypes.byref(found)
            )
            packed.check(status)
            _lengthen(segments)
        ranked = [
            list(zip(top_tokens[at : at + top], top_logs[at : at + top], strict=True))
            for at in range(0, rows * top, top or 1)
        ] or [[] for _ in range(rows)]
        return [TokenLogprob(*each) for each in zip(tokens, logs, ranked, strict=True)]

    def _sample(
        self, segments: abc.Sequence[TokenSegment], choices: CoreChoices, first: int, taps: TappedRows | None
    ) -> None:
        """Run a pass whose rows of logits have the choices from `first` on."""
        packed = self.packed
        batch, _keep = self._batch(segments, None)
        if taps is not None:
            taps.next_pass(batch)
        with pass_lock, self._states_after(segments):
            self._settle()
            status = packed.library.ia_sample(
                packed.handle,
                packed.pool.handle,
                ctypes.byref(batch),
                *choices.addresses(first),
            )
            packed.check(status)
            _lengthen(segments)

    def _draft(self, requests: abc.Sequence[DraftInput], vocabulary: int | None) -> list[tuple[list[int], list[float]]]:
        """`draft_many` of at most PASS_ROWS sequences. Tokens that do not fit into one pass go through earlier ones."""
        segments, before = [], []
        for each in requests:
            own, count = self._own(each.sequence), len(each.tokens)
            own.begin(count)
            keep = min(count, PASS_ROWS // len(requests))
            hidden = (None, None) if each.hidden is None else (each.hidden[:-keep], each.hidden[-keep:])
            if keep < count:
                before.append(TokenSegment(own, each.tokens[:-keep], own.length, 0, hidden[0]))
            segments.append(TokenSegment(own, each.tokens[-keep:], own.length + count - keep, 1, hidden[1]))
        for group in self._passes(before):
            self._forward(group, 0, None)  # without logits
        batch, _keep = self._batch(segments, vocabulary or self.spec.vocab_size, [each.count for each in requests])
        drafts, packed = CoreDrafts(requests, self.target_tokens), self.packed
        with pass_lock, self._states_after(segments):
            self._settle()
            status = packed.library.ia_draft(
                packed.handle, packed.pool.handle, ctypes.byref(batch), ctypes.byref(drafts.struct)
            )
            packed.check(status)
            found = []
            for index, segment in enumerate(segments):
                # The last token was not fed back. Truncating frees blocks reserved for tokens that were not drafted.
                end = segment.start + len(segment.tokens)
                segment.sequence.length = end + drafts.drafted[index] - 1
                if (state := segment.sequence.state) is not None:  # as drafting.cpp moves it on
                    settle = state.after(segment.start, end, end + requests[index].count - 1)
                    state.settled = max(settle, segment.sequence.length - PENDING_ROWS)
                segment.sequence.free_unused()
                found.append(drafts.found(index))
        return found

    def _draft_over_target(
        self, requests: abc.Sequence[DraftInput], vocabulary: int | None
    ) -> list[tuple[list[int], list[float]]]:
        """`_draft` of a head whose rows are all after the last one of its target's sequence, whose blocks it reads."""
        segments, targets = [], set()
        for each in requests:
            known = each.shared_kv
            assert isinstance(known, NativeSequence), f"keys and values of {type(known).__name__}"
            assert isinstance(known.model, NativeModel)
            targets.add(known.model)
            if self.rotary is not None:
                self.rotary.reach(known.length + 1)
            segments.append(TokenSegment(known, each.tokens, known.length, 1, each.hidden))
        [target] = targets
        counts = [each.count for each in requests]
        batch, _keep = self._batch(segments, vocabulary or self.spec.vocab_size, counts, target._memory)
        drafts, packed = CoreDrafts(requests, self.token_order), self.packed
        with pass_lock:
            self._settle()
            status = packed.library.ia_draft(
                packed.handle, packed.pool.handle, ctypes.byref(batch), ctypes.byref(drafts.struct)
            )
            packed.check(status)
        return [drafts.found(index) for index in range(len(requests))]

    def _draft_blocks(
        self, requests: abc.Sequence[DraftInput], vocabulary: int | None
    ) -> list[tuple[list[int], list[float]]]:
        """`draft_many` of a head that drafts blocks: hidden states become keys and values, then blocks pass at once."""
        head = self.spec.head
        assert head is not None
        context, blocks = [], []
        for each in requests:
            own, rows = self._own(each.sequence), context_rows(each)
            if rows:
                own.begin(rows)
                context.append(TokenSegment(own, [head.mask_token] * rows, own.length, 0, each.hidden))
            tokens = [*each.tokens, *[head.mask_token] * (head.block_size - 1)]
            after = len(tokens) - 1 - each.count
            blocks.append(TokenSegment(own, tokens, own.length + rows, each.count, None, after))
        for group in self._passes(context):
            self._forward(group, 0, None)
        found, packed = [], self.packed
        together = PASS_ROWS // head.block_size
        for first in range(0, len(blocks), together):
            end = min(first + together, len(blocks))
            batch, _keep = self._batch(blocks[first:end], vocabulary or self.spec.vocab_size)
            drafts = CoreDrafts(requests[first:end], self.target_tokens)
            with pass_lock:
                self._settle()
                status = packed.library.ia_draft(
                    packed.handle, packed.pool.handle, ctypes.byref(batch), ctypes.byref(drafts.struct)
                )
                packed.check(status)
            found += [drafts.found(index) for index in range(end - first)]
        for segment in blocks:
            segment.sequence.free_unused()  # the rows of its block are not the sequence's
        return found


@contextlib.contextmanager
def _whole_states(segments: abc.Sequence[TokenSegment]) -> Iterator[None]:
    """Clear sequences with states where a signal ends the block: nobody knows whether the core has moved them on."""
    try:
        yield
    except IpexAssistError:  # the core refused the pass before it began
        raise
    except BaseException:
        for each in segments:
            if each.sequence.state is not None:
                each.sequence.truncate(0)
        raise


def _lengthen(segments: abc.Sequence[TokenSegment]) -> None:
    for each in segments:
        end = each.start + len(each.tokens)
        if (state := each.sequence.state) is not None:
            state.settled = state.after(each.start, end, end)
        each.sequence.length = end
