"""Calibration of draft heads: a step, a block's pass, and reading rows of the target's hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ipex_assist.executors import interface
from ipex_assist.executors.interface import (
    DraftInput,
    DraftsInOneCall,
    FewerThreads,
    Model,
    Rows,
    truncate_or_clear,
)
from ipex_assist.models.draft_head import HeadSpec
from ipex_assist.speculative.costs.draft_threads import choose_threads
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.sources.hidden_window import HiddenStates

READ_ROWS = (1, 2, 4, 8, 16)  # of passes by which a head catches up …
READ_TOKENS = 64  # … and of one by which it reads a prompt
TURNS = 5  # of each size; the fastest counts
COLD_TURNS = 3  # of a step between passes of the target, as drafts are made
DRAFTED = 4  # tokens by which a step is timed
BLOCKS = (1, 2, 4, 8)  # requests that share a block's pass
BEFORE = 8  # tokens before the timed ones

Clock = Callable[[], float]


class HeadTimer:
    """Times a head beside a sequence of its target, whose keys and values some heads read."""

    def __init__(self, target: Model, head: Model, vocabulary: int | None, clock: Clock) -> None:
        assert head.spec.head is not None
        self._head, self._clock = head, clock
        self.spec: HeadSpec = head.spec.head
        self._vocabulary = None if self.spec.draft_vocab_size else vocabulary
        self._capacity = BEFORE + READ_TOKENS + 2 * max(DRAFTED, self.spec.block_size)
        self._target, self._read = target, target.new_sequence(BEFORE + COLD_TURNS)
        target.extend(self._read, [3] * BEFORE)
        self._shared = self._read if self.spec.kind == "shared_kv" else None
        self._sequences = [self._begun()]

    def _begun(self) -> interface.Sequence:
        sequence = self._head.new_sequence(min(self._capacity, self._head.spec.context_length))
        if self._shared is None:
            self._head.forward([Rows(sequence, [3] * BEFORE, 0, self._hidden(BEFORE))])
        return sequence

    def _hidden(self, rows: int) -> HiddenStates:
        return np.full((rows, self.spec.input_size), 0.5, np.float32)

    def _timed(self, run: Callable[[], object], sequences: Sequence[interface.Sequence]) -> float:
        before = [sequence.length for sequence in sequences]
        started = self._clock()
        run()
        seconds = self._clock() - started
        for sequence, length in zip(sequences, before, strict=True):
            truncate_or_clear(sequence, length)
        return seconds

    def reading(self, rows: int) -> float:
        """Return the seconds of one pass over `rows` rows, the last with logits where the head drafts by steps."""
        [sequence] = self._sequences[:1]
        last = 0 if self.spec.block_size or rows > max(READ_ROWS) else 1
        asked = [Rows(sequence, [3] * rows, last, self._hidden(rows))]
        return self._timed(lambda: self._head.forward(asked), [sequence])

    def draft(self, count: int, requests: int = 1) -> float:
        """Return the seconds of drafting `count` tokens for each of `requests` requests."""
        while len(self._sequences) < requests:
            self._sequences.append(self._begun())
        sequences = self._sequences[:requests]
        if not isinstance(self._head, DraftsInOneCall):
            return count * self.reading(1)
        inputs = [DraftInput(each, [3], count, 0.0, self._hidden(1), self._shared) for each in sequences]
        head = self._head
        return self._timed(lambda: head.draft_many(inputs, self._vocabulary), sequences)

    def cold_step(self) -> float:
        """`step` after a pass of the target, whose weights take the place of the head's in the caches."""
        self._target.extend(self._read, [3])
        return self.step()

    def step(self) -> float:
        """Return the mean seconds of a few drafted tokens, or those of one block."""
        count = self.spec.block_size - 1 if self.spec.block_size else DRAFTED
        return self.draft(count) / (1 if self.spec.block_size else count)


def calibrate_head(
    target: Model, head: Model, verify: Costs, draft_vocabulary: int | None, clock: Clock, turns: int = TURNS
) -> Costs:
    """Return the target's costs with those of its head. The head is left with the number of threads that was fastest.

    verify: the target's costs alone.
    """
    timer = HeadTimer(target, head, draft_vocabulary, clock)
    spec = timer.spec
    timer.draft(1)  # warm-up: the first pass of a shape touches pages and wakes threads
    threads = verify.threads
    if isinstance(head, FewerThreads):
        most = 1 if spec.kind == "shared_kv" else max(READ_ROWS)
        threads = choose_threads(head, timer.step, timer.reading, most)
    warm = min(timer.step() for _ in range(turns))
    cold = max(1.0, min(timer.cold_step() for _ in range(COLD_TURNS)) / max(warm, 1e-9))
    step = 0.0 if spec.block_size else warm * cold
    if spec.kind == "shared_kv":  # a draft needs one hidden state, however many tokens came
        return Costs(verify.verify, step, (step,) * max(READ_ROWS), 0.0, verify.experts, threads)
    block = _fastest(
        lambda requests: timer.draft(spec.block_size - 1, requests), BLOCKS if spec.block_size else (), turns
    )
    block = tuple(seconds * cold for seconds in block)
    rows = tuple(seconds * cold for seconds in _fastest(timer.reading, READ_ROWS, turns))
    read = min(rows[-1] / len(rows), min(timer.reading(READ_TOKENS) for _ in range(turns)) / READ_TOKENS)
    return Costs(verify.verify, step, rows, read, verify.experts, threads, block).plausible()


def _fastest(seconds: Callable[[int], float], sizes: Sequence[int], turns: int) -> tuple[float, ...]:
    """Return the seconds of 1, 2, … to the largest of `sizes`: no size takes longer than a larger one."""
    if not sizes:
        return ()
    times = {size: min(seconds(size) for _ in range(turns)) for size in sizes}
    values = [min(times[later] for later in sizes if later >= size) for size in sizes]
    return tuple(np.interp(range(1, sizes[-1] + 1), sizes, values).tolist())
