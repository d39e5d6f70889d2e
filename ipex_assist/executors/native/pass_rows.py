"""How many rows a pass of prompts has room for: what pays for this model on this machine, within its memory."""

from __future__ import annotations

import functools
import time
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
_UP = 2  # the linear's number in the core


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
    useful = useful_rows(packed.spec, largest.threads, balance(packed))
    return planned(fitting_rows(useful, largest.context, fits))


def balance(packed: PackedModel) -> float:
    """Rows that the model's threads multiply with weights of its precision in the time of reading these from memory.

    Measured: where the model is large enough, by reading a part of it, which takes no memory.
    """
    pool = packed.pool
    least = max(_LEAST_BYTES, _MEASURED_BYTES * pool.threads)
    read = _linear_bandwidth(packed, least) or _bandwidth(pool, least)
    return _products(pool, packed.precision) * LINEAR_BYTES[packed.precision] / (read * 1e9)


@functools.lru_cache
def _products(pool: Pool, precision: str) -> float:
    """A second, of all threads. Takes some hundredths of a second."""
    return peak(pool, precision, _PEAK_SECONDS, _REPEATS)


@functools.lru_cache
def _bandwidth(pool: Pool, size: int) -> float:
    """GB/s. Takes up to half a second, in which the kernel clears memory of this size."""
    return read_bandwidth(pool, size, _REPEATS)


def _linear_bandwidth(packed: PackedModel, least: int) -> float | None:
    """GB/s at which the threads read the first linears of the MLPs; None where these are too small, or in a file."""
    best, done = 0.0, 0
    while not packed.mapped and done < _REPEATS * least:
        started = time.perf_counter()
        size = int(packed.library.ia_read_linears(packed.handle, packed.pool.handle, _UP, 0))
        if size < least:  # or -1: there are none, or experts
            return None
        best, done = max(best, size / (time.perf_counter() - started) / 1e9), done + size
    return best or None
