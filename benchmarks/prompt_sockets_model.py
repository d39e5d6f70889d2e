"""Prompts on machines of paper: seconds to the first token, by how threads share rows and columns, and what limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sockets_model import Paper
from sockets_shapes import GROUP, LANES, Shape, blocks_of

from ipex_assist.native.shares import expert_shares, linear_shares

# The core's own numbers.
TILE_ROWS = 16  # that a tile multiplies, whether they are there or not (amx_tiles.h)
TILE_QUERIES = 64  # that attend together (pass_plan.cpp)
PANEL_DEPTH = 1024  # input columns after which sums of many rows are put away (linear_*_amx*.h)
PANEL_BLOCKS = {"int4": 16, "int8": 16, "bf16": 8}  # of output columns, for which the rows are read once
WEIGHT_BYTES = {"int4": 0.5 + 4 / GROUP, "int8": 1.0, "bf16": 2.0}
VALUE_BYTES = {"int4": 1, "int8": 1, "bf16": 2}  # of a linear's inputs
BARRIERS_OF_ATTENTION = 3  # keys and values are stored; attended; and put into the output linear's form
KV_BYTES = 2  # bf16, the default
LATENT_PLAIN, LATENT_VALUES = 128, 128  # columns of a head in DeepSeek-V3 (arXiv:2405.04434)
# A core's cache, and what a socket shares, in MB, by its cores: Xeon Gold 6430, Platinum 8480+ and 8592+, 6787P and
# 6980P as Intel lists them. How much of the former is free for rows is assumed.
OWN_CACHE, FREE = 2 << 20, 0.75
LAST_LEVEL = {32: 60, 56: 105, 64: 320, 86: 336, 128: 504}


@dataclass(frozen=True)
class Rates:
    """What a core does with many rows, and how a pass goes through them.

    products: of int8, 10^12 a second; bf16 has half. score_ns: of a score of attention beside its products. cache: GB/s
    of a core from the last-level cache, or from other cores'. link: GB/s from one socket to another.
    """

    products: float
    score_ns: float
    cache: float
    link: float

    def of(self, precision: str) -> float:
        """Products a nanosecond."""
        return 1000 * self.products / (2 if precision == "bf16" else 1)


@dataclass(frozen=True)
class Split:
    """Rows of a pass, and the parts of them that threads of a socket share; today 256 rows in one part."""

    rows: int = 256
    parts: int = 1


@dataclass
class Spent:
    """Nanoseconds by what limits: "products", "memory", "cache", "link", "norms", "attention", "barriers"."""

    ns: dict[str, float] = field(default_factory=dict)

    def add(self, count: float, **needed: float) -> None:
        """`count` times a phase: what it needs of each overlaps, so the longest limits."""
        limit = max(needed, key=lambda name: needed[name])
        self.ns[limit] = self.ns.get(limit, 0.0) + count * needed[limit]

    @property
    def seconds(self) -> float:
        return sum(self.ns.values()) / 1e9

    def limits(self) -> str:
        """The two that take most, with their shares of the time."""
        most = sorted(self.ns.items(), key=lambda item: -item[1])[:2]
        return ", ".join(f"{name} {100 * ns / sum(self.ns.values()):.0f} %" for name, ns in most)


@dataclass(frozen=True)
class PaperPrompt:
    """A prompt's passes through a model on a machine."""

    shape: Shape
    precision: str
    paper: Paper
    rates: Rates
    split: Split
    last_level: float  # bytes of a socket

    def spent(self, tokens: int) -> Spent:
        """Until the first token: all passes, and the head of one row. That the last layer does less is left out."""
        spent = Spent()
        for start in range(0, tokens, self.split.rows):
            rows = min(self.split.rows, tokens - start)
            for count, window, dense in self._kinds():
                self._attention(spent, count, rows, start, window)
                self._mlp(spent, count, rows) if dense else self._experts(spent, count, rows)
        shares = linear_shares(blocks_of(self.shape.vocabulary), self._threads)
        self._read(spent, [share * self._block(self.shape.hidden) for share in shares])
        return spent

    def peak_seconds(self, tokens: int) -> float:
        """What the products take if all cores always multiply: of linears, and of what each token sees."""
        seconds = 0.0
        for count, window, dense in self._kinds():
            linears = [*self._projections(), *(self._dense() if dense else [])]
            products = tokens * sum(columns * depth for columns, depth, _ in linears)
            if not dense:
                number, chosen, size = self.shape.experts
                products += tokens * self.shape.hidden * (number + 3 * size * (chosen + self.shape.shared))
            seconds += count * products / self.rates.of(self.precision)
            seen = sum(_seen(start, 1, window) for start in range(tokens))
            seconds += count * seen * self._products_of_score() / self.rates.of("bf16")
        return seconds / self._threads / 1e9

    @property
    def _threads(self) -> int:
        return self.paper.cores * self.paper.sockets

    def _block(self, depth: int) -> float:
        return depth * LANES * WEIGHT_BYTES[self.precision]

    def _kinds(self) -> Iterator[tuple[float, int, bool]]:
        """Layers: how many, the window of their attention, and whether their MLP is dense."""
        shape, dense = self.shape, self.shape.layers if not self.shape.experts[0] else self.shape.dense
        if dense:
            yield dense, 0, True
        if shape.layers > dense:
            yield (shape.layers - dense) * (1 - shape.windows), 0, False
        if shape.windows:
            yield (shape.layers - dense) * shape.windows, shape.window, False

    def _projections(self) -> list[tuple[int, int, int]]:
        """Columns, depth, and blocks that stay together, of the linears around attention."""
        shape = self.shape
        if not shape.latent[0]:
            wide = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
            return [(wide, shape.hidden, 1), (shape.hidden, shape.heads * shape.head_dim, 1)]
        queries, latent = shape.latent
        rotated = shape.head_dim - latent
        return [
            (queries + shape.head_dim, shape.hidden, 1),
            (shape.heads * (LATENT_PLAIN + rotated), queries, 1),
            (shape.heads * latent, LATENT_PLAIN, 1),
            (shape.heads * LATENT_VALUES, latent, 1),
            (shape.hidden, shape.heads * LATENT_VALUES, 1),
        ]

    def _dense(self) -> list[tuple[int, int, int]]:
        return [(2 * self.shape.intermediate, self.shape.hidden, 2), (self.shape.hidden, self.shape.intermediate, 1)]

    def _attention(self, spent: Spent, count: float, rows: int, start: int, window: int) -> None:
        """Norms and projections, then tiles of queries, each through the keys and values that it sees."""
        shape = self.shape
        self._prepare(spent, count, rows * shape.hidden)
        linears = self._projections()
        for number, (columns, depth, unit) in enumerate(linears):
            if number == len(linears) - 1:
                self._attend(spent, count, rows, start, window)
            self._linear(spent, count, rows, columns, depth, unit)

    def _products_of_score(self) -> float:
        """Of a row and all its heads, for each position that it sees: with the key and with the value."""
        return self.shape.heads * (self.shape.head_dim + (self.shape.latent[1] or self.shape.head_dim))

    def _attend(self, spent: Spent, count: float, rows: int, start: int, window: int) -> None:
        shape, seen = self.shape, _seen(start, rows, window)
        products = seen * self._products_of_score() / self.rates.of("bf16")
        own = (products + seen * shape.heads * self.rates.score_ns) / self._threads
        # A tile's queries are those of a KV head's group, of as many rows as it has room for.
        tile_rows = max(1, TILE_QUERIES // (shape.heads // shape.kv_heads))
        heads = shape.kv_heads * max(1, shape.heads // shape.kv_heads // TILE_QUERIES)
        values = 1 if shape.latent[0] else 2
        read = seen / min(tile_rows, rows) * heads * shape.head_dim * values * KV_BYTES
        spent.add(count, attention=own, cache=read / self._threads / self.rates.cache)
        self._barriers(spent, count * BARRIERS_OF_ATTENTION)
        self._prepare(spent, count, rows * shape.heads * (LATENT_VALUES if shape.latent[0] else shape.head_dim), 0)

    def _mlp(self, spent: Spent, count: float, rows: int) -> None:
        self._prepare(spent, count, rows * self.shape.hidden)
        (columns, depth, unit), down = self._dense()
        self._linear(spent, count, rows, columns, depth, unit)
        self._prepare(spent, count, rows * self.shape.intermediate)
        self._linear(spent, count, rows, *down)

    def _experts(self, spent: Spent, count: float, rows: int) -> None:
        """Threads share the blocks of all experts that have rows: uniformly chosen, and each is read once a pass."""
        (number, chosen, size), hidden = self.shape.experts, self.shape.hidden
        used = max(1, round(number * (1 - (1 - chosen / number) ** rows)))
        each, slots = rows * chosen / used, rows * (chosen + self.shape.shared)
        self._prepare(spent, count, rows * hidden)
        self._linear(spent, count, rows, number, hidden, 1)
        self._barriers(spent, count)  # each row's experts
        self._prepare(spent, count, slots * hidden)
        self._expert_linear(spent, count, rows, used, each, 2 * size, hidden, 2)
        self._prepare(spent, count, slots * size)
        self._expert_linear(spent, count, rows, used, each, hidden, size, 1)
        self._prepare(spent, count, slots * hidden)

    def _expert_linear(
        self, spent: Spent, count: float, rows: int, used: int, each: float, columns: int, depth: int, unit: int
    ) -> None:
        """`each`: rows of an expert. Shared ones have all rows; threads share these evenly."""
        blocks, paper = blocks_of(columns), self.paper
        shares = expert_shares(blocks, used, paper.nodes, unit)
        shared = self.shape.shared * blocks / self._threads
        most = max(shares)
        products = LANES * depth * (most * _padded(each) + shared * _padded(rows)) / self.rates.of(self.precision)
        touched = math.ceil(most / max(1, blocks / paper.sockets)) * each + (rows if shared else 0)
        outputs = 4 * LANES * (most * each + shared * rows)
        inputs = touched * depth * VALUE_BYTES[self.precision]
        reading = paper.read_ns([(share + shared) * self._block(depth) for share in shares], paper.core.memory)
        spent.add(count, products=products, cache=(inputs + outputs) / self.rates.cache, memory=reading)
        self._barriers(spent, count)

    def _linear(self, spent: Spent, count: float, rows: int, columns: int, depth: int, unit: int) -> None:
        """Threads of a part of the rows share all columns; sockets share columns, never rows."""
        parts, paper = self.split.parts, self.paper
        own = _padded(math.ceil(rows / parts))
        shares = linear_shares(blocks_of(columns), self._threads // parts, unit)
        most = max(shares)
        products = own * most * LANES * depth / self.rates.of(self.precision)
        # A part's weights are read from memory by one of those that have them, and by the others from its cache.
        copied = most * self._block(depth) * (parts - 1) / parts
        inputs = min(own, rows) * depth * VALUE_BYTES[self.precision] * self._readings(own, most, depth)
        outputs = 4 * min(own, rows) * most * LANES
        spilled = self._spilled(rows, columns, depth)
        weights = [share * self._block(depth) / parts for share in shares for _ in range(parts)]
        loads = [load + spilled * (inputs + outputs) for load in weights]
        spent.add(
            count,
            products=products,
            cache=(copied + inputs + outputs) / self.rates.cache,
            memory=paper.read_ns(loads, paper.core.memory),
        )
        self._barriers(spent, count)

    def _readings(self, rows: int, blocks: int, depth: int) -> float:
        """How often a thread reads its rows from the last-level cache: once where its own keeps them.

        Sums of many rows may not stay there either: then they come and go with each part of the depth.
        """
        wide = PANEL_BLOCKS[self.precision]
        panels, free = math.ceil(blocks / wide), OWN_CACHE * FREE
        weights = min(blocks, wide) * LANES * min(depth, PANEL_DEPTH)
        size = depth * VALUE_BYTES[self.precision]
        if rows * size + weights <= free:
            return min(panels, 1)
        sums = rows * min(blocks, wide) * LANES * 4
        again = 2 * sums * math.ceil(depth / PANEL_DEPTH) if sums + weights > free else 0
        return panels * (1 + again / (rows * size))

    def _spilled(self, rows: int, columns: int, depth: int) -> float:
        """The share of a phase's inputs and outputs that a socket's caches do not hold."""
        live = rows * (depth * VALUE_BYTES[self.precision] + 4 * columns / self.paper.sockets)
        return max(0.0, 1 - (self.last_level + self.paper.cores * OWN_CACHE * FREE) / live)

    def _prepare(self, spent: Spent, count: float, values: float, barriers: int = 1) -> None:
        """Threads share the values: read as fp32 from where others put them, and written for each socket."""
        sockets, own = self.paper.sockets, values / self._threads
        size = VALUE_BYTES[self.precision]
        crossing = values * (4 * (sockets - 1) / sockets + size * (sockets - 1)) / sockets
        spent.add(
            count,
            norms=own * self.paper.core.value_ns,
            cache=own * (4 + size * sockets) / self.rates.cache,
            link=crossing / self.rates.link,
        )
        self._barriers(spent, count * barriers)

    def _barriers(self, spent: Spent, count: float) -> None:
        spent.add(count, barriers=self.paper.barrier_ns())

    def _read(self, spent: Spent, loads: Sequence[float]) -> None:
        spent.add(1, memory=self.paper.read_ns(loads, self.paper.core.memory))


def parts_of(paper: Paper, rows: int) -> Iterator[int]:
    """Into how many parts the rows of a pass can be cut: with a tile each, and as many threads of a socket."""
    return (parts for parts in (1, 2, 4, 8, 16, 32) if paper.cores % parts == 0 and parts * TILE_ROWS <= rows)


def _padded(rows: float) -> int:
    return math.ceil(rows / TILE_ROWS) * TILE_ROWS


def _seen(start: int, rows: int, window: int) -> float:
    """How many positions rows after `start` others see together."""
    if not window:
        return rows * (start + (rows + 1) / 2)
    return float(sum(min(window, start + row + 1) for row in range(rows)))
