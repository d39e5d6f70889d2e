"""The memory of a native model's blocks and states by its bytes, and what the bits in them depend on."""

from __future__ import annotations

import hashlib
from functools import cache

from ipex_assist.executors.native.packed_cache import LAYOUT_VERSION
from ipex_assist.native.blocks import BlockMemory
from ipex_assist.native.library import PATH, instruction_set
from ipex_assist.native.model import PackedModel
from ipex_assist.native.states import StateMemory

STORE_VERSION = 1  # of the files of engine/prefix_store.py, and of a block's and a state's layout in the core


class NativePrefixMemory:
    """Reads and writes blocks and states; see PrefixMemory in engine/stored_prefixes.py."""

    def __init__(self, packed: PackedModel, blocks: BlockMemory, states: StateMemory | None, kv_precision: str) -> None:
        self._packed, self._blocks, self._states, self._kv_precision = packed, blocks, states, kv_precision

    def key(self) -> str:
        """A hash of all that the bits depend on besides tokens: weights, precisions, the core and its kernels.

        The same model on another machine has it too, if the core is the same file and runs the same instruction set.
        Reads the whole image, unless its checksum is known.
        """
        packed = self._packed
        facts = (
            *(STORE_VERSION, LAYOUT_VERSION, _core(), instruction_set()),
            *(packed.spec, packed.precision, packed.group, self._kv_precision, packed.known_checksum()),
        )
        return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]

    def read_block(self, block: int) -> bytearray:
        """A block's bytes; in any thread."""
        return self._blocks.read(block)

    def write_block(self, block: int, content: bytearray | memoryview) -> None:
        """Fill a block; between passes. Raises IpexAssistError for another number of bytes."""
        self._blocks.write(block, content)

    def read_state(self, slot: int) -> bytearray:
        """A state's bytes; in any thread."""
        assert self._states is not None
        return self._states.read(slot)

    def write_state(self, slot: int, content: bytearray | memoryview) -> None:
        """Fill a state; between passes. Raises IpexAssistError for another number of bytes."""
        assert self._states is not None
        self._states.write(slot, content)


@cache
def _core() -> str:
    return hashlib.sha256(PATH.read_bytes()).hexdigest()
