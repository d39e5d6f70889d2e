"""Loads the compiled core, says why where it cannot be used, and keeps its one pool of threads."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import shlex
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.native.batch_structures import Batch, DraftRequest, Segment, TopTokens
from ipex_assist.native.build import INSTRUCTION_SETS, interface_number
from ipex_assist.native.rows import BLOCK, DECODE_ROWS, PENDING_ROWS
from ipex_assist.native.structures import PRECISIONS, LayerStructure, ModelStructure

PATH = Path(__file__).with_name("_core.so")
ISA_VARIABLE = "IPEX_ASSIST_ISA"
LEVELS = ("none", *INSTRUCTION_SETS)  # what that may be

log = logging.getLogger("ipex_assist")

_p, _i32, _i64, _name = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_char_p
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ia_abi": (_i32, (ctypes.POINTER(_i32), ctypes.POINTER(_i32))),
    "ia_last_error": (ctypes.c_char_p, ()),
    "ia_kernels": (_p, (ctypes.c_char_p,)),
    "ia_kernels_name": (ctypes.c_char_p, (_p,)),
    "ia_pool_new": (_p, (_i32, ctypes.POINTER(_i32))),
    "ia_pool_delete": (None, (_p,)),
    "ia_pool_first_node": (_i32, (_p,)),
    "ia_group_by_node": (_i32, (ctypes.POINTER(_i32), _i32, ctypes.c_char_p, ctypes.POINTER(_i32))),
    "ia_shares_of_linear": (_i32, (_i64, _i64, _i32, ctypes.POINTER(_i64))),
    "ia_shares_of_experts": (_i32, (_i64, _i64, _i32, ctypes.POINTER(_i32), _i32, ctypes.POINTER(_i64))),
    "ia_shares_of_attention": (_i32, (*[_i32] * 5, ctypes.POINTER(_i32), _i32, ctypes.POINTER(_i64))),
    "ia_shares_of_rows": (
        _i32,
        (*[_i64] * 3, _i32, _i32, _i64, _i64, ctypes.POINTER(_i32), _i32, ctypes.POINTER(_i64)),
    ),
    "ia_shares_of_tiles": (_i32, (*[_i32] * 6, ctypes.POINTER(_i32), _i32, ctypes.POINTER(_i64))),
    "ia_shares_of_texts": (_i32, (*[_i32] * 6, ctypes.POINTER(_i32), _i32, ctypes.POINTER(_i64))),
    "ia_pool_statistics": (_i32, (_p, ctypes.POINTER(ctypes.c_uint64))),
    "ia_barrier_seconds": (ctypes.c_double, (_p, _i64)),
    "ia_checksum": (_i32, (_p, _p, ctypes.POINTER(ctypes.c_uint64))),
    "ia_model_new": (_p, (_p, ctypes.POINTER(ModelStructure), ctypes.POINTER(LayerStructure), _p, _p, _i64, _i64)),
    "ia_model_delete": (None, (_p,)),
    "ia_model_bytes": (_i64, (_p,)),
    "ia_model_resident_bytes": (_i64, (_p,)),
    "ia_workspace_bytes": (_i64, (_p, *[_i32] * 5)),
    "ia_model_image": (_p, (_p, _i64, _i64, _p)),
    "ia_model_allocate": (_i32, (_p, _p)),
    "ia_nodes_refused": (_i32, (_p,)),
    "ia_model_join_pages": (_i32, (_p, ctypes.c_double)),
    "ia_model_share_table": (_i32, (_p, _p)),
    "ia_model_share_head": (_i32, (_p, _p)),
    "ia_model_adopt": (_i32, (_p, _p, _i32, _i64, _i32)),
    "ia_model_settle": (_i32, (_p, _p, _i64)),
    "ia_model_pack": (_i32, (_p, _p, _name, _i32, _p, _i64, _i64)),
    "ia_model_pack_rows": (_i32, (_p, _p, _name, _i32, _p, _i64, _i64, _i64)),
    "ia_model_pack_file": (_i32, (_p, _p, _name, _i32, _i32, _i64, _i64, _i64)),
    "ia_model_pack_stored": (_i32, (_p, _p, _name, _p, _p, _p, _i64, _i64, _i64)),
    "ia_model_format": (_i32, (_p, _name)),
    "ia_model_pack_blocks": (_i32, (_p, _p, _name, _i32, _p, _i64, _i64, _p)),
    "ia_model_set_order": (_i32, (_p, _name, _p, _i64)),
    "ia_adapter_new": (_p, (_p,)),
    "ia_adapter_delete": (None, (_p,)),
    "ia_adapter_bytes": (_i64, (_p,)),
    "ia_adapter_pack": (_i32, (_p, _p, _name, _p, _p, _i64, _i64, _i64, ctypes.c_float)),
    "ia_block_bytes": (_i64, (_p, _i32)),
    "ia_state_bytes": (ctypes.c_int64, (_p, _i32)),
    "ia_states_new": (_p, (_p, _i64, _i32)),
    "ia_states_delete": (None, (_p,)),
    "ia_states_copy": (_i32, (_p, _p, _i32, _i32)),
    "ia_states_read": (_i32, (_p, _i32, _p)),
    "ia_states_write": (_i32, (_p, _p, _i32, _p)),
    "ia_states_discard": (_i32, (_p, ctypes.POINTER(_i32), _i64)),
    "ia_blocks_new": (_p, (_p, _i64, _i32)),
    "ia_blocks_delete": (None, (_p,)),
    "ia_blocks_copy": (_i32, (_p, _p, _i32, _i32)),
    "ia_blocks_read": (_i32, (_p, _i32, _p)),
    "ia_blocks_write": (_i32, (_p, _p, _i32, _p)),
    "ia_blocks_discard": (_i32, (_p, ctypes.POINTER(_i32), _i64)),
    "ia_index_new": (_p, (_i64,)),
    "ia_index_delete": (None, (_p,)),
    "ia_index_bytes": (_i64, (_p,)),
    "ia_index_append": (_i32, (_p, _p, _i64)),
    "ia_index_draft": (_i32, (_p, _i32, _i32, _p, _p)),
    "ia_forward": (_i32, (_p, _p, ctypes.POINTER(Batch))),
    "ia_top_tokens": (_i32, (_p, _p, ctypes.POINTER(Batch), ctypes.POINTER(TopTokens))),
    "ia_sample": (_i32, (_p, _p, ctypes.POINTER(Batch), _p, _p)),  # (choices, tokens): CRowChoice and int32
    "ia_begin_sample": (_i32, (_p, _p, ctypes.POINTER(Batch), _p, _p)),  # as ia_sample
    "ia_sample_is_done": (_i32, (_p,)),
    "ia_end_sample": (_i32, (_p,)),
    "ia_draft": (_i32, (_p, _p, ctypes.POINTER(Batch), ctypes.POINTER(DraftRequest))),
    "ia_linears": (_i32, (_p, _p, _i32, _p, _i64, _p, _i64)),
    "ia_read_linears": (_i64, (_p, _p, _i32, _i64)),
    "ia_row_seconds": (ctypes.c_double, (_p, _i64, _i64)),
    "ia_read_bandwidth": (ctypes.c_double, (_p, _p, _i64, _i32)),
    "ia_peak": (ctypes.c_double, (_p, _p, _i32, _i64, _i32)),
    "ia_watch": (None, (_p, _p)),  # native/watch.py: COperationWatch
    "ia_experts_read": (ctypes.c_int64, (_p,)),
    "ia_expert_reads": (None, (_p, ctypes.POINTER(ctypes.c_int64))),
    "ia_timing": (None, (_p, ctypes.POINTER(ctypes.c_uint64))),
}


def is_built() -> bool:
    """Whether there is a compiled core."""
    return PATH.exists()


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled core. Raises IpexAssistError where it was not built."""
    if not is_built():
        raise IpexAssistError(
            "the native core was not built when ipex-assist was installed, since it needs g++ 11 or newer (Debian, "
            f"Ubuntu: apt install g++); then {_install_again()} (-v shows what is missing)"
        )
    try:
        loaded = ctypes.CDLL(str(PATH))
        _check_interface(loaded)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise IpexAssistError(f"the native core cannot be loaded ({error}): {_install_again()}") from error
    return loaded


def _check_interface(loaded: ctypes.CDLL) -> None:
    """IpexAssistError where the library was built from other sources than the Python beside it belongs to."""
    sizes, rows = (_i32 * 4)(), (_i32 * 3)()
    loaded.ia_abi.restype, loaded.ia_abi.argtypes = _SIGNATURES["ia_abi"]
    found = (loaded.ia_abi(sizes, rows), *sizes)
    expected = (interface_number(), *(ctypes.sizeof(each) for each in (ModelStructure, LayerStructure, Segment, Batch)))
    if found != expected or tuple(rows) != (DECODE_ROWS, PENDING_ROWS, BLOCK):
        raise IpexAssistError(
            "the native core belongs to another version of ipex-assist (its interface is {} with structures of {}, {}, "
            "{} and {} bytes, it should be {} with {}, {}, {} and {}): {}".format(*found, *expected, _install_again())
        )


def _install_again() -> str:
    """What to type where the library does not belong to this package: in a checkout, that is installed from there."""
    checkout = PATH.parents[2]
    if (checkout / "setup.py").exists():
        return f"build it again: pip install --no-deps -e {shlex.quote(str(checkout))}"
    return "install ipex-assist again: pip install --force-reinstall --no-deps and the clone or wheel it came from"


def kernels() -> int:
    """The core's kernels for this processor; IPEX_ASSIST_ISA may forbid the better ones.

    Raises UsageError for a value of that variable that is no instruction set, IpexAssistError where the core cannot
    run. Says once, as a warning, where a better instruction set of this processor cannot be used.
    """
    found, remark = _choose_kernels()
    if remark:
        _warn_once(remark)
    return found


def _choose_kernels() -> tuple[int, str]:
    """The kernels, and why they are not those one would expect, if they are not."""
    limit = os.environ.get(ISA_VARIABLE, "")
    if limit and limit not in LEVELS:
        raise UsageError(f"{ISA_VARIABLE}={limit} is no instruction set: it may be {', '.join(LEVELS)}, or unset")
    found, remark = library().ia_kernels(limit.encode()), last_error()
    if not found:
        raise IpexAssistError(f"the native core cannot run here: {remark}")
    if remark:
        remark = f"the native core runs on {library().ia_kernels_name(found).decode()}: {remark}"
    return int(found), remark


@functools.cache
def _warn_once(message: str) -> None:
    log.warning("%s", message)


def instruction_set() -> str:
    """The name of the instruction set that `kernels` uses, such as "avx512_bf16". Raises as `kernels` does."""
    return str(library().ia_kernels_name(kernels()).decode())


def unavailable() -> str | None:
    """Why the core cannot be used here, or None where it can. Raises UsageError as `kernels` does."""
    try:
        kernels()
    except UsageError:
        raise
    except IpexAssistError as error:
        return str(error)
    return None


@dataclass(frozen=True)
class CoreState:
    """Whether the core works here: on which instruction set (None: it does not), and what there is to say of that."""

    instruction_set: str | None
    remark: str | None

    def __str__(self) -> str:
        works = f"works, on {self.instruction_set}" if self.instruction_set else "does not work"
        return f"native core {works}" + (f" ({self.remark})" if self.remark else "")


def core_state() -> CoreState:
    """Of the core in this installation, on this processor, with this environment; for reports, and never raises."""
    try:
        found, remark = _choose_kernels()
    except IpexAssistError as error:
        return CoreState(None, str(error))
    return CoreState(str(library().ia_kernels_name(found).decode()), remark or None)


def last_error() -> str:
    """Return the message of the core's last failed call in this thread."""
    return str(library().ia_last_error().decode())


@dataclass(frozen=True)
class PoolStatistics:
    """What a pool's threads have done: runs, barriers of these, and waits and parks of all threads at the barriers."""

    runs: int
    barriers: int
    waits: int
    parks: int

    def __sub__(self, earlier: PoolStatistics) -> PoolStatistics:
        """What happened since `earlier`."""
        return PoolStatistics(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))


def memory_nodes(cpus: Sequence[int] | None) -> int:
    """How many memory nodes these CPUs are on; 1 without CPUs, as such threads have no place."""
    return max(group_by_node(cpus)[1]) + 1 if cpus else 1


def group_by_node(
    cpus: Sequence[int], folder: str = "/sys/devices/system/node"
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return `cpus` in the order in which a pool's threads have them, and the memory node of each, from 0 on.

    folder: where the system describes its nodes; all CPUs are on node 0 where it does not.
    """
    grouped, nodes = (_i32 * len(cpus))(*cpus), (_i32 * len(cpus))()
    if library().ia_group_by_node(grouped, len(cpus), folder.encode(), nodes) < 0:
        raise IpexAssistError(f"the native core failed: {last_error()}")
    return tuple(grouped), tuple(nodes)


class Pool:
    """The core's threads. Each is bound to its CPU; without `cpus` the kernel places them."""

    def __init__(self, threads: int, cpus: Sequence[int] | None = None) -> None:
        self.threads, self.cpus = threads, tuple(cpus) if cpus is not None else None
        if threads < 1 or (cpus is not None and len(cpus) != threads):
            raise IpexAssistError(f"{threads} threads cannot run on the processors {cpus}")
        self._library = library()
        self.handle = self._library.ia_pool_new(threads, (_i32 * threads)(*cpus) if cpus is not None else None)
        if not self.handle:
            raise IpexAssistError(f"cannot start {threads} threads: {last_error()}")

    @property
    def first_node(self) -> int:
        """How many threads are on the first one's memory node: all, where there is one node or nobody knows."""
        return int(self._library.ia_pool_first_node(self.handle))

    def fewer(self) -> tuple[int, ...]:
        """Numbers of threads that a pass may be fastest with: all, halves of that down to 1, and the first node's."""
        halves = (self.threads >> shift for shift in range(self.threads.bit_length()))
        return tuple(sorted({*halves, self.first_node}, reverse=True))

    def statistics(self) -> PoolStatistics:
        """Return what the threads did since they were started; waits where a pass is running."""
        values = (ctypes.c_uint64 * 4)()
        if self._library.ia_pool_statistics(self.handle, values) < 0:
            raise IpexAssistError(f"the native core failed: {last_error()}")
        return PoolStatistics(*values)

    def barrier_seconds(self, count: int = 10_000) -> float:
        """Return the seconds that a barrier takes where all threads come at the same time, as the mean of `count`."""
        measured = self._library.ia_barrier_seconds(self.handle, count)
        if measured < 0:
            raise IpexAssistError(f"the native core failed: {last_error()}")
        return float(measured) / count

    def close(self) -> None:
        """End the pool's threads."""
        if self.handle:
            self._library.ia_pool_delete(self.handle)
            self.handle = None


def read_bandwidth(pool: Pool, size: int = 1 << 30, repeats: int = 5) -> float:
    """Return the GB/s at which the pool's threads read `size` bytes that each wrote; the best of `repeats`.

    Raises IpexAssistError where it cannot be measured.
    """
    measured = library().ia_read_bandwidth(kernels(), pool.handle, size, repeats)
    if measured < 0:
        raise IpexAssistError(f"cannot measure the memory's speed: {last_error()}")
    return float(measured) / 1e9


def row_seconds(values: int, count: int = 2000) -> float:
    """Return the seconds in which one thread adds, norms and quantizes a row of so many values; mean of `count`."""
    measured = library().ia_row_seconds(kernels(), values, count)
    if measured < 0:
        raise IpexAssistError(f"cannot measure rows: {last_error()}")
    return float(measured) / count


def peak(pool: Pool, precision: str, seconds: float = 0.05, repeats: int = 5) -> float:
    """Return the products a second that the pool's threads can add up in a precision, with nothing to read.

    The best of `repeats` of about `seconds` each. Raises IpexAssistError where it cannot be measured.
    """

    def measured(steps: int, times: int) -> float:
        found = float(library().ia_peak(kernels(), pool.handle, PRECISIONS[precision], steps, times))
        if found < 0:
            raise IpexAssistError(f"cannot measure what the cores multiply: {last_error()}")
        return found

    steps = 1000
    started = time.perf_counter()
    measured(steps, 10)
    return measured(max(steps, int(steps * seconds * 10 / (time.perf_counter() - started))), repeats)


def pool_threads() -> int | None:
    """Threads of the largest pool of this process; None where the core has not been used."""
    return max((pool.threads for pool in list(_pools.values())), default=None)


_pools: dict[tuple[int, tuple[int, ...] | None], Pool] = {}
_pools_lock = threading.Lock()


def shared_pool(threads: int, cpus: Sequence[int] | None) -> Pool:
    """Return the one pool of a placement, so that a target and its assistant never compete. It lives to the end."""
    key = (threads, tuple(cpus) if cpus is not None else None)
    with _pools_lock:  # two threads may load at the same time
        if key not in _pools:
            _pools[key] = Pool(threads, cpus)
        return _pools[key]
