"""Blocks of keys and values that are found again by their tokens. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ipex_assist.executors.blocks import BlockPool


class Prefixes(Protocol):
    """Remembers the whole blocks of texts that were read, and gives those by which another text begins."""

    def find(self, tokens: Sequence[int]) -> list[int]:
        """Return the blocks of the longest known beginning of `tokens`, whole blocks only."""
        ...

    def keep(self, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """Remember the blocks of a text; block i holds `tokens[i * size : (i + 1) * size]`."""
        ...

    def give_up(self) -> bool:
        """Free one block that no sequence uses, the one that was not asked for longest; False where there is none."""
        ...


@dataclass(eq=False)
class _Node:
    """A block behind those of its parents."""

    block: int
    tokens: tuple[int, ...]
    parent: _Node | None
    used: int = 0
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)


class PrefixCache:
    """A tree whose edges are the tokens of a block: exact, since blocks are compared token by token.

    It has a reference to each of its blocks. Leaves are given up first, so that what is found is always a beginning.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._root = _Node(-1, (), None)
        self._clock = 0
        self._nodes: set[_Node] = set()

    def __len__(self) -> int:
        return len(self._nodes)

    def __del__(self) -> None:
        if nodes := getattr(self, "_nodes", None):
            self._pool.release_soon([node.block for node in nodes])

    def find(self, tokens: Sequence[int]) -> list[int]:
        """Return the blocks of the longest known beginning of `tokens`."""
        self._clock += 1
        node, blocks, size = self._root, [], self._pool.size
        for start in range(0, len(tokens) - size + 1, size):
            child = node.children.get(tuple(tokens[start : start + size]))
            if child is None:
                break
            child.used = self._clock
            blocks.append(child.block)
            node = child
        return blocks

    def keep(self, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """Remember the blocks of a text. What is known already keeps the block that it has."""
        self._clock += 1
        node, size = self._root, self._pool.size
        for index, block in enumerate(blocks):
            key = tuple(tokens[index * size : (index + 1) * size])
            if len(key) < size:
                return
            child = node.children.get(key)
            if child is None:
                self._pool.share(block)
                child = _Node(block, key, node)
                node.children[key] = child
                self._nodes.add(child)
            child.used = self._clock
            node = child

    def give_up(self) -> bool:
        """Free the leaf that was not asked for longest, of those that no sequence uses."""
        idle = [node for node in self._nodes if not node.children and self._pool.references(node.block) == 1]
        if not idle:
            return False
        oldest = min(idle, key=lambda node: node.used)
        assert oldest.parent is not None
        del oldest.parent.children[oldest.tokens]
        self._nodes.discard(oldest)
        self._pool.release(oldest.block)
        return True


class NaivePrefixes:
    """The same by comparing every text that was kept: a reference for tests, and too slow for anything else."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._known: list[tuple[tuple[int, ...], int]] = []  # a beginning up to a block's end, and that block

    def find(self, tokens: Sequence[int]) -> list[int]:
        """Return the blocks of the longest known beginning of `tokens`."""
        blocks = []
        for end in range(self._pool.size, len(tokens) + 1, self._pool.size):
            at = next((i for i, (known, _) in enumerate(self._known) if known == tuple(tokens[:end])), None)
            if at is None:
                break
            self._known.append(self._known.pop(at))
            blocks.append(self._known[-1][1])
        return blocks

    def keep(self, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """Remember the blocks of a text."""
        for index, block in enumerate(blocks):
            beginning = tuple(tokens[: (index + 1) * self._pool.size])
            at = next((i for i, (known, _) in enumerate(self._known) if known == beginning), None)
            if at is None:
                self._pool.share(block)
                self._known.append((beginning, block))
            else:
                self._known.append(self._known.pop(at))

    def give_up(self) -> bool:
        """Free a block that no sequence uses and no longer beginning needs, the one not asked for longest."""
        for i, (beginning, block) in enumerate(self._known):
            longer = any(other[: len(beginning)] == beginning != other for other, _ in self._known)
            if not longer and self._pool.references(block) == 1:
                del self._known[i]
                self._pool.release(block)
                return True
        return False
