"""The core's memory of a model's blocks of keys and values."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.native.model import PackedModel
from ipex_assist.native.structures import PRECISIONS


class BlockMemory:
    """Memory of `count` blocks, of which pages are taken as they are written. Freed with the object."""

    def __init__(self, packed: PackedModel, count: int, kv_precision: str) -> None:
        self.packed, self.count, self.bytes_each = packed, count, packed.block_bytes(kv_precision)
        self.handle = packed.library.ia_blocks_new(packed.handle, count, PRECISIONS[kv_precision])
        packed.check(0 if self.handle else -1)

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.packed.library.ia_blocks_delete(self.handle)

    def copy(self, source: int, target: int) -> None:
        """Fill one block with what another holds."""
        packed = self.packed
        packed.check(packed.library.ia_blocks_copy(self.handle, packed.pool.handle, source, target))

    def read(self, block: int) -> bytearray:
        """The bytes of a block, to which no pass writes meanwhile; may be called in any thread."""
        read = bytearray(self.bytes_each)
        if read:  # a model without attention has none
            self.packed.check(self.packed.library.ia_blocks_read(self.handle, block, pointer(read)))
        return read

    def write(self, block: int, content: bytearray | memoryview) -> None:
        """Fill a block with what `read` gave, in this process or another. Raises IpexAssistError for another size."""
        if len(content) != self.bytes_each:
            raise IpexAssistError(f"a block has {self.bytes_each:,} bytes, and {len(content):,} are given")
        packed = self.packed
        if content:
            packed.check(packed.library.ia_blocks_write(self.handle, packed.pool.handle, block, pointer(content)))

    def discard(self, blocks: Sequence[int]) -> None:
        """Give the memory of blocks back that no sequence has; they may be used again."""
        ids = (ctypes.c_int32 * len(blocks))(*blocks)
        packed = self.packed
        packed.check(packed.library.ia_blocks_discard(self.handle, ids, len(blocks)))


def pointer(content: bytearray | memoryview) -> ctypes.Array[ctypes.c_char]:
    """The memory of writable bytes, for the core."""
    return (ctypes.c_char * len(content)).from_buffer(content)


def reserve_blocks(packed: PackedModel, count: int, kv_precision: str) -> BlockMemory:
    """Memory of `count` blocks, or of half, a quarter, … of them where the system gives no more address space.

    Raises IpexAssistError where there is none for one block.
    """
    while True:
        try:
            return BlockMemory(packed, count, kv_precision)
        except IpexAssistError:
            if count == 1:
                raise
            count //= 2
