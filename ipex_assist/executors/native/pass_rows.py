"""How many rows a pass of prompts has room for: what pays for this model on this machine, within its memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.native.library import Pool, peak, read_bandwidth
from ipex_assist.native.model import PackedModel
from ipex_assist.native.rows import PASS_ROWS
from ipex_assist.native.sizes import PlannedPasses, workspace_bytes
from ipex_assist.quantization.precision import LINEAR_BYTES

MOST_ROWS = 4096
READINGS = 4  # times as long as a weight is read may rows be multiplied with it: more of them gain less than a fifth
TILE_QUERIES = 64  # native/operations/pass_plan.cpp
TILES = 4  # query tiles that each thread should have, so that all end at about the same time
_MEASURED_BYTES, _LEAST_BYTES = 8 << 20, 256 << 20  # of each thread, several times its caches; of all
_PEAK_SECONDS, _REPEATS = 0.005, 3


def useful_rows(spec: DecoderSpec, threads: int, balance: float) -> int:
    """Rows of a pass beyond which more gain little: a power of two from PASS_ROWS to MOST_ROWS.

    balance: rows that all threads multiply with weights in the time of reading these from memory. Each weight should
    have READINGS times as many: of an expert these are few of a pass's rows. And attention should have tiles enough.
    """
    rows = READINGS * balance
    for experts in spec.expert_layers[:1]:
        rows *= experts.count / experts.per_token
    for heads, kv_heads in {(each.heads, each.kv_heads) for each in spec.attentions}:
        queries = heads // kv_heads  # of a row that share its keys
        rows = max(rows, TILES * threads / kv_heads * max(1, TILE_QUERIES // queries))
    return min(MOST_ROWS, 1 << max(PASS_ROWS - 1, int(rows) - 1).bit_length())


def fitting_rows(useful: int, context: int, fits: Callable[[int], bool]) -> int:
    """As many of the useful rows as a text of `context` tokens has and as fit the memory; PASS_ROWS at least."""
    rows = min(useful, 1 << max(PASS_ROWS - 1, context - 1).bit_length())
    while rows > PASS_ROWS and not fits(rows):
        rows //= 2
    return rows


def with_rows(packed: PackedModel, largest: PlannedPasses, memory: KvMemory) -> PlannedPasses:
    """The passes that this model has room for on these threads, beside keys and values."""
    room = memory.room_for_passes()

    def planned(rows: int) -> PlannedPasses:
        return replace(largest, rows=rows)

    def fits(rows: int) -> bool:
        return workspace_bytes(packed.handle, packed.spec, planned(rows)) <= room

    if largest.context <= PASS_ROWS or not fits(2 * PASS_ROWS):  # nothing is worth being measured
        return largest
    useful = useful_rows(packed.spec, largest.threads, balance(packed.pool, packed.precision))
    return planned(fitting_rows(useful, largest.context, fits))


@functools.lru_cache
def balance(pool: Pool, precision: str) -> float:
    """Rows that the pool's threads multiply with weights of a precision in the time of reading these from memory.

    Measured, in about a tenth of a second.
    """
    products = peak(pool, precision, _PEAK_SECONDS, _REPEATS)
    read = read_bandwidth(pool, max(_LEAST_BYTES, _MEASURED_BYTES * pool.threads), _REPEATS)
    return products * LINEAR_BYTES[precision] / (read * 1e9)
