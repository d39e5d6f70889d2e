"""Machines on paper: how long threads take to read what the core's partition gives each, and to wait for each other."""

from __future__ import annotations

import argparse
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


def worst_load(shape: Shape, context: int, paper: Paper) -> float:
    """Of a layer's keys and values: the most that a thread has ÷ the mean."""
    loads = attention(shape, context, paper.nodes, 0).loads
    return max(loads) * len(loads) / sum(loads)


def add_line_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a cache line's way."""
    parser.add_argument(
        "--line-ns", type=float, default=Paper.line_ns, help="a cache line from one core to another of its socket"
    )
    parser.add_argument(
        "--spread-ns", type=float, default=Paper.spread_ns, help="between two cores that read the same line"
    )
    parser.add_argument(
        "--socket-ns", type=float, default=Paper.socket_ns, help="a cache line from one socket to another"
    )


def line_times(args: argparse.Namespace) -> dict[str, float]:
    """What `add_line_options` read, by the fields of Paper."""
    return {"line_ns": args.line_ns, "spread_ns": args.spread_ns, "socket_ns": args.socket_ns}
