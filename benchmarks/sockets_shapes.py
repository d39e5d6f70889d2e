"""The models of sockets.py by their published shapes, and what a pass of one row reads of them, phase by phase."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ipex_assist.native.shares import attention_shares, expert_shares, linear_shares

LANES, GROUP, SPAN = 16, 64, 128  # columns of a block, inputs of an int4 scale, inputs of a row's scale
POSITIONS = 256  # of a block of keys and values
ROUTER_BYTES = 4  # of a router's weight
IN_TIME_OF_BARRIER = 128  # values, times threads, that one of them prepares in the time of a barrier: pass_plan.cpp


@dataclass(frozen=True)
class Shape:
    """A model's sizes. `experts`: how many there are, how many a row has, and their intermediate size.

    `dense`: how many layers have an MLP of `intermediate` in place of experts. `latent`: the columns of the projections
    of multi-head latent attention, which is one KV head; see `latent_linears`. `windows`: the share of the layers that
    see the last `window` positions alone.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    experts: tuple[int, int, int] = (0, 0, 0)
    shared: int = 0
    dense: int = 0
    latent: tuple[int, int] = (0, 0)
    window: int = 0
    windows: float = 0.0


SHAPES = (
    Shape("Qwen2.5 0.5B", 896, 24, 14, 2, 64, 4864, 151936),
    Shape("Llama 3.1 8B", 4096, 32, 32, 8, 128, 14336, 128256),
    Shape("Llama 3.1 70B", 8192, 80, 64, 8, 128, 28672, 128256),
    Shape("Qwen3 30B-A3B", 2048, 48, 32, 4, 128, 0, 151936, (128, 8, 768)),
    Shape("gpt-oss 120B", 2880, 36, 64, 8, 64, 0, 201088, (128, 4, 2880), window=128, windows=0.5),
    # Its KV head has 512 latent values and 64 rotated ones.
    Shape("DeepSeek-V3", 7168, 61, 128, 1, 576, 18432, 129280, (256, 8, 2048), 1, 3, (1536, 512)),
)


@dataclass(frozen=True)
class Phase:
    """What threads do between two barriers: bytes that each reads, and values that each prepares."""

    name: str
    loads: Sequence[float]
    prepared: float = 0.0  # of rows that this thread makes the next linear's inputs, or merges
    shared_lines: int = 0  # cache lines that all threads read first, and others have written
    barriers: int = 1


def block_bytes(depth: int) -> float:
    """Bytes of a block of 16 int4 columns, scales included; inputs are padded to whole spans."""
    return -(-depth // SPAN) * SPAN * LANES * (0.5 + 4 / GROUP)


def blocks_of(columns: int) -> int:
    return -(-columns // LANES)


def spans_of(blocks: int) -> int:
    """Spans of columns that share a scale, in so many blocks of 16."""
    return -(-blocks * LANES // SPAN)


def linear(name: str, columns: int, depth: int, threads: int, parts: int, *, unit: int = 1, **more: float) -> Phase:
    """A linear of int4 weights: the blocks of each thread."""
    shares = linear_shares(blocks_of(columns) * parts, threads, unit)
    each = block_bytes(depth) / parts
    return Phase(name, [share * each for share in shares], **more)  # type: ignore[arg-type]


def attention(shape: Shape, context: int, nodes: Sequence[int], window: int) -> Phase:
    """Keys and values in int8 with their scales; for latent attention one row of both."""
    shares, in_place = attention_shares(shape.heads, shape.kv_heads, shape.head_dim, context, nodes, window)
    rows = 1 if shape.latent[0] else 2
    unit = POSITIONS * (shape.head_dim + 4) * rows
    barriers = 1 if in_place else 2
    values = shape.heads * shape.head_dim / len(nodes)
    return Phase("attention", [share * unit for share in shares], prepared=values, barriers=barriers)


def latent_linears(shape: Shape, threads: int, parts: int) -> Iterator[Phase]:
    """DeepSeek-V3's projections around its one KV head, in the absorbed form (arXiv:2405.04434, section 2.1)."""
    queries, latent = shape.latent
    rotated, plain = shape.head_dim - latent, 128
    yield linear("down", queries + shape.head_dim, shape.hidden, threads, parts, **before(shape))
    yield linear("queries", shape.heads * (plain + rotated), queries, threads, parts)
    yield linear("absorbed keys", shape.heads * latent, plain, threads, parts)


def before(shape: Shape) -> dict[str, float]:
    """What every thread does before a linear that reads the residual stream: adds, norms, and quantizes the row."""
    return {"prepared": shape.hidden, "shared_lines": shape.hidden * 4 // 64}


def mlp(shape: Shape, nodes: Sequence[int], parts: int) -> Iterator[Phase]:
    threads, size = len(nodes), shape.intermediate
    yield linear("up", 2 * size, shape.hidden, threads, parts, unit=2, **before(shape))
    yield linear("down", shape.hidden, size, threads, parts)


def experts(shape: Shape, nodes: Sequence[int], parts: int) -> Iterator[Phase]:
    """The router and the experts of one row; experts.cpp has the same phases."""
    number, chosen, size = shape.experts
    count, threads = chosen + shape.shared, len(nodes)
    router = [share * LANES * ROUTER_BYTES * shape.hidden for share in linear_shares(blocks_of(number), threads)]
    # Whoever has the last logits routes the row.
    yield Phase("router", router, prepared=shape.hidden + number, shared_lines=shape.hidden * 4 // 64)
    up = expert_shares(2 * blocks_of(size) * parts, count, nodes, 2)
    # A thread prepares the row for each expert whose columns it has, and the spans of activated ones that it ends.
    prepared = shape.hidden * (-(-count // threads) + 1) + count * size / min(threads, count * -(-size // SPAN))
    yield Phase("up", [share * block_bytes(shape.hidden) / parts for share in up], prepared=prepared)
    down, blocks = expert_shares(blocks_of(shape.hidden) * parts, count, nodes), blocks_of(shape.hidden)
    loads = [share * block_bytes(size) / parts for share in down]
    spans = min(spans_of(blocks), spans_of(-(-blocks * count // threads)) + 1)  # that a thread may end
    if spans * SPAN * count <= IN_TIME_OF_BARRIER * threads:
        yield Phase("down, and add", loads, prepared=spans * SPAN * count)
    else:
        yield Phase("down", loads)
        yield Phase("add", [0.0], prepared=count * SPAN)


def layer(shape: Shape, context: int, nodes: Sequence[int], parts: int, window: int, dense: bool) -> list[Phase]:
    """The phases of a layer in a pass of one row after `context` others."""
    threads = len(nodes)
    phases: list[Phase] = []
    if shape.latent[0]:
        phases += latent_linears(shape, threads, parts)
        phases.append(attention(shape, context, nodes, window))
        values = 128
        phases.append(linear("absorbed values", shape.heads * values, shape.latent[1], threads, parts))
        phases.append(linear("output", shape.hidden, shape.heads * values, threads, parts))
    else:
        columns = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        phases.append(linear("qkv", columns, shape.hidden, threads, parts, **before(shape)))
        phases.append(attention(shape, context, nodes, window))
        phases.append(linear("output", shape.hidden, shape.heads * shape.head_dim, threads, parts))
    phases += mlp(shape, nodes, parts) if dense else experts(shape, nodes, parts)
    return phases


def decode_pass(shape: Shape, context: int, nodes: Sequence[int], parts: int = 1) -> list[tuple[float, list[Phase]]]:
    """Phases of the layers of each kind, and of the head, with how many of them there are."""
    total, dense = shape.layers, shape.layers if not shape.experts[0] else shape.dense
    kinds = [(dense, 0, True), ((total - dense) * (1 - shape.windows), 0, False)]
    kinds.append(((total - dense) * shape.windows, shape.window, False))
    found = [(n, layer(shape, context, nodes, parts, window, dense)) for n, window, dense in kinds if n]
    head = linear("head", shape.vocabulary, shape.hidden, len(nodes), parts, **before(shape))
    # Of chunks of 2,048 tokens.
    argmax = Phase("arg-max", [0.0], prepared=2048.0 * -(-shape.vocabulary // 2048 // len(nodes)))
    return [*found, (1, [head, argmax])]
