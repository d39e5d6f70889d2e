"""What each thread would get of a pass's work, by the core's own partition; for benchmarks of machines on paper."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.native.library import last_error, library

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


def _check(result: int) -> int:
    if result < 0:
        raise IpexAssistError(f"the native core failed: {last_error()}")
    return result
