"""What each thread would get of a pass's work, by the core's own partition; for benchmarks of machines on paper."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.native.library import last_error, library
from ipex_assist.native.structures import PRECISIONS
from ipex_assist.quantization.precision import INT4_GROUP

_i32, _i64 = ctypes.c_int32, ctypes.c_int64


def linear_shares(panels: int, threads: int, granularity: int = 1) -> list[int]:
    """Panels of 16 output columns of a linear for each thread; `granularity` panels stay together (2: gate and up)."""
    out = (_i64 * threads)()
    _check(library().ia_shares_of_linear(panels, granularity, threads, out))
    return list(out)


def expert_shares(panels: int, experts: int, nodes: Sequence[int], granularity: int = 1) -> list[int]:
    """Panels of the linears of as many experts, for each thread of a pass of one row that goes through these.

    nodes: the memory node of each thread, ascending from 0 on.
    """
    out = (_i64 * len(nodes))()
    _check(library().ia_shares_of_experts(panels, granularity, experts, (_i32 * len(nodes))(*nodes), len(nodes), out))
    return list(out)


def attention_shares(
    heads: int, kv_heads: int, head_dim: int, position: int, nodes: Sequence[int], window: int = 0
) -> tuple[list[int], bool]:
    """Blocks of 256 positions of a KV head for each thread, in a pass of one row; whether merging needs no barrier.

    The row is at `position` and sees that and the ones before, or the last `window` of them.
    """
    out = (_i64 * len(nodes))()
    places = (_i32 * len(nodes))(*nodes)
    merged = library().ia_shares_of_attention(heads, kv_heads, head_dim, window, position, places, len(nodes), out)
    return list(out), bool(_check(merged))


class LinearShare(NamedTuple):
    """What a thread does of a linear in a pass: products, and bytes that it reads of weights and of rows."""

    products: int
    weight_bytes: int
    row_bytes: int


def row_shares(
    columns: int,
    depth: int,
    precision: str,
    rows: int,
    nodes: Sequence[int],
    granularity: int = 1,
    group: int = INT4_GROUP,
) -> list[LinearShare]:
    """What each thread does of a linear of so many columns in a pass of many rows of `depth` values."""
    out = (_i64 * (3 * len(nodes)))()
    row_bytes = depth * {"fp32": 4, "bf16": 2}.get(precision, 1)
    shape = columns // 16, granularity, depth, PRECISIONS[precision], group, rows, row_bytes
    _check(library().ia_shares_of_rows(*shape, (_i32 * len(nodes))(*nodes), len(nodes), out))
    return [LinearShare(*out[first : first + 3]) for first in range(0, len(out), 3)]


def tile_shares(
    heads: int, kv_heads: int, head_dim: int, position: int, rows: int, nodes: Sequence[int], window: int = 0
) -> list[int]:
    """When each thread ends that takes query tiles in turns, of `rows` rows of a prompt after `position` others.

    In a unit of its own: the cost that the plan of a pass has for a query and a block of keys.
    """
    out = (_i64 * len(nodes))()
    shape = heads, kv_heads, head_dim, window, position, rows
    _check(library().ia_shares_of_tiles(*shape, (_i32 * len(nodes))(*nodes), len(nodes), out))
    return list(out)


class TextShares(NamedTuple):
    """When threads end that attend to texts, in tile_shares' unit.

    even: all, if they had the same; tiles: the last one, if they took query tiles in turns; chosen: the last one as the
    plan of a pass has it, by tiles or, if splits_kv, by blocks of keys and values.
    """

    even: int
    tiles: int
    chosen: int
    splits_kv: bool


def text_shares(
    heads: int, kv_heads: int, head_dim: int, position: int, rows: int, texts: int, nodes: Sequence[int]
) -> TextShares:
    """Of a pass of more than 16 rows: so many texts, each with `rows` rows after `position` others."""
    out = (_i64 * 3)()
    shape = heads, kv_heads, head_dim, position, rows, texts
    splits = _check(library().ia_shares_of_texts(*shape, (_i32 * len(nodes))(*nodes), len(nodes), out))
    even, tiles, chosen = out
    return TextShares(even, tiles, chosen, bool(splits))


def _check(result: int) -> int:
    if result < 0:
        raise IpexAssistError(f"the native core failed: {last_error()}")
    return result
