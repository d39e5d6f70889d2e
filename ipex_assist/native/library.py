"""Loads the compiled core, says why where it cannot be used, and keeps its one pool of threads."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.native.structures import Batch, Spec

PATH = Path(__file__).with_name("_core.so")
ISA_VARIABLE = "IPEX_ASSIST_ISA"

_p, _i32, _i64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ia_last_error": (ctypes.c_char_p, ()),
    "ia_kernels": (_p, (ctypes.c_char_p,)),
    "ia_kernels_name": (ctypes.c_char_p, (_p,)),
    "ia_pool_new": (_p, (_i32, ctypes.POINTER(_i32))),
    "ia_pool_delete": (None, (_p,)),
    "ia_checksum": (ctypes.c_uint64, (_p, _p, _i64)),
    "ia_model_new": (_p, (_p, ctypes.POINTER(Spec), ctypes.POINTER(_i32))),
    "ia_model_delete": (None, (_p,)),
    "ia_model_bytes": (_i64, (_p,)),
    "ia_model_image": (_p, (_p,)),
    "ia_model_allocate": (_i32, (_p,)),
    "ia_model_share_table": (_i32, (_p, _p)),
    "ia_model_adopt": (_i32, (_p, _p, _i32, _i64, _i32)),
    "ia_model_pack": (_i32, (_p, _p, _i32, _i32, _i32, _i32, _p, _i64, _i64)),
    "ia_model_pack_int4": (_i32, (_p, _p, _i32, _i32, _p, _p, _p, _i64, _i64)),
    "ia_model_set_order": (_i32, (_p, _i32, _i32, _p, _i64)),
    "ia_cache_new": (_p, (_p, _i64)),
    "ia_cache_delete": (None, (_p,)),
    "ia_forward": (_i32, (_p, _p, ctypes.POINTER(Batch))),
    "ia_draft": (
        _i32,
        (
            _p,
            _p,
            ctypes.POINTER(Batch),
            _i32,
            _i32,
            ctypes.c_float,
            ctypes.POINTER(_i32),
            ctypes.POINTER(ctypes.c_float),
        ),
    ),
    "ia_linears": (_i32, (_p, _p, _i32, _p, _i64, _p, _i64)),
    "ia_read_bandwidth": (ctypes.c_double, (_p, _p, _i64, _i32)),
    "ia_timing": (None, (_p, ctypes.POINTER(ctypes.c_uint64))),
}


@functools.cache
def library() -> ctypes.CDLL:
    """The compiled core. Raises IpexAssistError where it was not built."""
    if not PATH.exists():
        raise IpexAssistError(
            "the native core was not built when ipex-assist was installed. It needs g++ 11 or newer "
            "(Debian, Ubuntu: apt install g++); then install ipex-assist again (pip install -v shows what is missing)"
        )
    try:
        loaded = ctypes.CDLL(str(PATH))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise IpexAssistError(f"the native core cannot be loaded ({error}): install ipex-assist again") from error
    return loaded


def kernels() -> int:
    """The core's kernels for this processor; IPEX_ASSIST_ISA may forbid the better ones. Raises IpexAssistError."""
    limit = os.environ.get(ISA_VARIABLE, "")
    found = library().ia_kernels(limit.encode())
    if not found:
        raise IpexAssistError(f"the native core cannot run here: {last_error()}")
    return int(found)


def instruction_set() -> str:
    """The name of the instruction set that `kernels` uses, such as "avx512_bf16". Raises IpexAssistError."""
    return str(library().ia_kernels_name(kernels()).decode())


def unavailable() -> str | None:
    """Why the core cannot be used here, or None where it can."""
    try:
        kernels()
    except IpexAssistError as error:
        return str(error)
    return None


def last_error() -> str:
    """Return the message of the core's last failed call in this thread."""
    return str(library().ia_last_error().decode())


class Pool:
    """The core's threads. Each is bound to its CPU; without `cpus` the kernel places them."""

    def __init__(self, threads: int, cpus: Sequence[int] | None = None) -> None:
        self.threads, self.cpus = threads, tuple(cpus) if cpus is not None else None
        assert cpus is None or len(cpus) == threads, f"{threads} threads on {cpus}"
        self._library = library()
        self.handle = self._library.ia_pool_new(threads, (_i32 * threads)(*cpus) if cpus is not None else None)
        if not self.handle:
            raise IpexAssistError(f"cannot start {threads} threads: {last_error()}")

    def close(self) -> None:
        """End the pool's threads."""
        if self.handle:
            self._library.ia_pool_delete(self.handle)
            self.handle = None


def read_bandwidth(pool: Pool, size: int = 1 << 30, repeats: int = 5) -> float:
    """GB/s at which the pool's threads read `size` bytes of memory that each of them wrote; the best of `repeats`."""
    measured = library().ia_read_bandwidth(kernels(), pool.handle, size, repeats)
    if measured < 0:
        raise IpexAssistError(f"cannot measure the memory's speed: {last_error()}")
    return float(measured) / 1e9


def pool_threads() -> int | None:
    """Threads of the largest pool of this process; None where the core has not been used."""
    return max((pool.threads for pool in _pools.values()), default=None)


_pools: dict[tuple[int, tuple[int, ...] | None], Pool] = {}


def shared_pool(threads: int, cpus: Sequence[int] | None) -> Pool:
    """Return the one pool of a placement, so that a target and its assistant never compete. It lives to the end."""
    key = (threads, tuple(cpus) if cpus is not None else None)
    if key not in _pools:
        _pools[key] = Pool(threads, cpus)
    return _pools[key]
