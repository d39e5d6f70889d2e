"""Machines on paper: how long threads take to read what the core's partition gives each, and to wait for each other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sockets_shapes import Phase, Shape, attention, decode_pass

GROUP = 8  # threads that count at one line at most: Barrier::GROUP
OUTSTANDING = 10  # cache lines that a core waits for at the same time


@dataclass(frozen=True)
class Core:
    """What one core does: measured on one, but for `memory`.

    linear, attention: GB of int4 weights, and of int8 keys and values, that it multiplies a second where they are in
    its cache; memory: GB/s that it can have of its socket's memory, alone; value_ns: of a row's value that it adds,
    norms and quantizes.
    """

    linear: float
    attention: float
    memory: float
    value_ns: float


@dataclass(frozen=True)
class Paper:
    """A machine on paper: sockets of as many cores, GB/s of a socket, and nanoseconds of a cache line on its way.

    line_ns: from one core to another; spread_ns: between two cores that read the same line; socket_ns: to another
    socket. cache_cores: cores that share a last-level cache, 0: all of a socket.
    """

    cores: int
    sockets: int
    bandwidth: float
    core: Core
    line_ns: float = 70
    spread_ns: float = 15
    socket_ns: float = 150
    staggered: bool = True

    @property
    def nodes(self) -> list[int]:
        """The memory node of each thread."""
        return [node for node in range(self.sockets) for _ in range(self.cores)]

    def barrier_ns(self) -> float:
        """Of a barrier to which all threads come at once: barriers.py has the same model, and says what is in it."""
        groups = math.ceil(self.cores / GROUP)
        counting = (math.ceil(self.cores / groups) + (groups if groups > 1 else 0)) * self.line_ns
        crossing = (2 * self.sockets - 1) * self.socket_ns if self.sockets > 1 else 0
        return counting + crossing + self.line_ns + (self.cores - 1) * self.spread_ns

    def read_ns(self, loads: Sequence[float], rate: float) -> float:
        """Of threads that read these bytes, each `rate` GB/s at most, and those of a socket no more than it has.

        Who has less is done earlier, and leaves more to the others.
        """
        longest = 0.0
        for node in range(self.sockets):
            own = sorted(loads[node * self.cores : (node + 1) * self.cores])
            time, done = 0.0, 0.0
            for index, load in enumerate(own):
                time += (load - done) / min(rate, self.bandwidth / (len(own) - index))
                done = load
            longest = max(longest, time)
        return longest

    def lines_ns(self, lines: int) -> float:
        """Of lines that all threads read, and others have written: all from the same one on, or each from its own."""
        if not lines:
            return 0.0
        return lines * self.line_ns / OUTSTANDING + (0 if self.staggered else (self.cores - 1) * self.spread_ns)

    def phase_ns(self, phase: Phase) -> float:
        instructions = self.core.attention if phase.name == "attention" else self.core.linear
        reading = self.read_ns(phase.loads, min(instructions, self.core.memory))
        preparing = phase.prepared * self.core.value_ns + self.lines_ns(phase.shared_lines)
        return reading + preparing + phase.barriers * self.barrier_ns()


@dataclass(frozen=True)
class PassTime:
    """A pass of one row on paper: bytes, milliseconds, and of these what reading would take if nothing else did."""

    size: float
    ms: float
    reading_ms: float
    barrier_ms: float
    barriers: float

    def share(self, paper: Paper) -> float:
        """Of the time, what the memory of all sockets would take for these bytes."""
        return self.size / (paper.bandwidth * paper.sockets) / 1e6 / self.ms


def pass_time(shape: Shape, context: int, paper: Paper, parts: int = 1) -> PassTime:
    """A pass of one row after `context` others."""
    size = total = reading = barriers = 0.0
    for count, phases in decode_pass(shape, context, paper.nodes, parts):
        for phase in phases:
            rate = paper.core.attention if phase.name == "attention" else paper.core.linear
            size += count * sum(phase.loads)
            total += count * paper.phase_ns(phase)
            reading += count * paper.read_ns(phase.loads, min(rate, paper.core.memory))
            barriers += count * phase.barriers
    return PassTime(size, total / 1e6, reading / 1e6, barriers * paper.barrier_ns() / 1e6, barriers)


@dataclass(frozen=True)
class Prefill:
    """What a core does with many rows: int8 products a second, and bytes a second from the last-level cache.

    rows: of a pass.
    """

    products: float
    cache: float
    rows: int


def prompt_ms(shape: Shape, tokens: int, paper: Paper, prefill: Prefill, row_parts: int) -> float:
    """Milliseconds until all tokens of a prompt are through: threads share columns, or `row_parts` parts of the rows.

    A thread multiplies its rows with its columns; it reads these rows' inputs from the last-level cache, and its
    weights from memory, once for all who share them, or from the cache, where another part of the rows has them, too.
    The three overlap; barriers do not. Attention is products of queries and keys, and of weights and values, shared
    evenly.
    """
    threads = paper.cores * paper.sockets
    column_threads = threads // row_parts
    total = 0.0
    for start in range(0, tokens, prefill.rows):
        rows = min(prefill.rows, tokens - start)
        for count, columns, depth in _linears(shape):
            blocks = math.ceil(math.ceil(columns / 16) / column_threads)
            own_rows = math.ceil(rows / row_parts)
            products = own_rows * blocks * 16 * depth / prefill.products
            inputs = own_rows * depth + (blocks * 16 * depth * 0.5625 if row_parts > 1 else 0)
            weights = columns * depth * 0.5625 / (paper.bandwidth * 1e9 * paper.sockets)
            total += count * (max(products, inputs / prefill.cache, weights) + paper.barrier_ns() / 1e9)
        seen = start + rows / 2
        attended = 2 * rows * seen * shape.heads * shape.head_dim / threads / prefill.products
        total += shape.layers * (attended + 3 * paper.barrier_ns() / 1e9)
    return 1000 * total


def prompt_peak_ms(shape: Shape, tokens: int, paper: Paper, prefill: Prefill) -> float:
    """What the products alone take, if all cores always multiply."""
    linears = sum(count * columns * depth for count, columns, depth in _linears(shape)) * tokens
    attended = shape.layers * tokens * tokens * shape.heads * shape.head_dim
    return 1000 * (linears + attended) / prefill.products / (paper.cores * paper.sockets)


def _linears(shape: Shape) -> list[tuple[int, int, int]]:
    """The linears of a dense model: how many, columns, depth."""
    wide = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    return [
        (shape.layers, wide, shape.hidden),
        (shape.layers, shape.hidden, shape.heads * shape.head_dim),
        (shape.layers, 2 * shape.intermediate, shape.hidden),
        (shape.layers, shape.hidden, shape.intermediate),
    ]


def best_row_parts(shape: Shape, tokens: int, paper: Paper, prefill: Prefill) -> tuple[int, float]:
    """The number of parts of the rows, a power of two, with the shortest time; and that time."""
    threads = paper.cores * paper.sockets
    parts = itertools.takewhile(lambda n: n <= min(threads, prefill.rows // 16), (2**i for i in range(10)))
    return min(((n, prompt_ms(shape, tokens, paper, prefill, n)) for n in parts), key=lambda found: found[1])


def worst_load(shape: Shape, context: int, paper: Paper) -> float:
    """Of a layer's keys and values: the most that a thread has ÷ the mean."""
    loads = attention(shape, context, paper.nodes, 0).loads
    return max(loads) * len(loads) / sum(loads)
