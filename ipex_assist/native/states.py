"""The core's memory of the states of a model's sequences."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.native.blocks import pointer
from ipex_assist.native.model import PackedModel
from ipex_assist.native.structures import PRECISIONS


class StateMemory:
    """Memory of `count` states, of which pages are taken as they are written. Freed with the object."""

    def __init__(self, packed: PackedModel, count: int, kv_precision: str) -> None:
        self.packed, self.count, self.bytes_each = packed, count, packed.state_bytes(kv_precision)
        self.handle = packed.library.ia_states_new(packed.handle, count, PRECISIONS[kv_precision])
        packed.check(0 if self.handle else -1)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.packed.library.ia_states_delete(self.handle)

    def copy(self, source: int, target: int) -> None:
        """Fill one state with what another holds."""
        packed = self.packed
        packed.check(packed.library.ia_states_copy(self.handle, packed.pool.handle, source, target))

    def read(self, state: int) -> bytearray:
        """The bytes of a state, to which no pass writes meanwhile; may be called in any thread."""
        read = bytearray(self.bytes_each)
        self.packed.check(self.packed.library.ia_states_read(self.handle, state, pointer(read)))
        return read

    def write(self, state: int, content: bytearray | memoryview) -> None:
        """Fill a state with what `read` gave, in this process or another. Raises IpexAssistError for another size."""
        if len(content) != self.bytes_each:
            raise IpexAssistError(f"a state has {self.bytes_each:,} bytes, and {len(content):,} are given")
        packed = self.packed
        packed.check(packed.library.ia_states_write(self.handle, packed.pool.handle, state, pointer(content)))

    def discard(self, states: Sequence[int]) -> None:
        """Give the memory of states back that no sequence has; they may be used again."""
        numbers = (ctypes.c_int32 * len(states))(*states)
        packed = self.packed
        packed.check(packed.library.ia_states_discard(self.handle, numbers, len(states)))
