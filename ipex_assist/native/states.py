"""The core's memory of the states of a model's recurrent layers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from ipex_assist.native.model import PackedModel


class StateMemory:
    """Memory of `count` slots, of which pages are taken as they are written. Freed with the object."""

    def __init__(self, packed: PackedModel, count: int) -> None:
        self.packed, self.count = packed, count
        self.handle = packed.library.ia_states_new(packed.handle, count)
        packed.check(0 if self.handle else -1)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.packed.library.ia_states_delete(self.handle)

    def copy(self, source: int, target: int) -> None:
        """Fill one slot with what another holds."""
        packed = self.packed
        packed.check(packed.library.ia_states_copy(self.handle, packed.pool.handle, source, target))

    def discard(self, slots: Sequence[int]) -> None:
        """Give the memory of slots back that no sequence has; they may be used again."""
        numbers = (ctypes.c_int32 * len(slots))(*slots)
        packed = self.packed
        packed.check(packed.library.ia_states_discard(self.handle, numbers, len(slots)))
