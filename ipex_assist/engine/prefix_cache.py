"""Prefix caching: KV blocks of earlier requests, found by their tokens. No torch here."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ipex_assist.executors.blocks import BlockPool
from ipex_assist.executors.recurrent_states import RecurrentState

# A partly matching block is copied before it is written to; at least 1/16 of its positions must match to be worth it.
MIN_SHARED_FRACTION = 16
_FIRST_COMPARED = 64  # tokens


class CachedPrefix(NamedTuple):
    """Blocks whose first `length` positions match; later positions of the last block may be another request's.

    state: of a model whose layers keep one, to be copied. branch: how many tokens an earlier request had as well, where
    the state after them is not known, and worth keeping; else 0.
    """

    blocks: list[int]
    length: int
    state: RecurrentState | None = None
    branch: int = 0


class Prefixes(Protocol):
    """Remembers blocks by their tokens, and finds the longest prefix of a new request."""

    def find(self, tokens: Sequence[int], adapter: Hashable = None) -> CachedPrefix:
        """Return the longest cached prefix of `tokens`, computed with this adapter (None: with none)."""
        ...

    def wants(self, tokens: Sequence[int], adapter: Hashable = None) -> bool:
        """Whether `keep` needs the state after these tokens."""
        ...

    def keep(
        self,
        tokens: Sequence[int],
        blocks: Sequence[int],
        state: RecurrentState | None = None,
        adapter: Hashable = None,
    ) -> None:
        """Insert blocks; block i holds `tokens[i * size : (i + 1) * size]`, the last one possibly fewer.

        state: the one after `tokens`, where it is wanted; from now on the cache's own.
        """
        ...

    def evict(self) -> bool:
        """Free the least recently used block that no sequence holds. Returns False if there is none."""
        ...

    def discard(self, block: int) -> None:
        """Forget a block that no cached block follows, so that its one sequence can write to it without a copy."""
        ...


class NoPrefixes:
    """No prefix caching: every prompt is read whole."""

    def find(self, tokens: Sequence[int], adapter: Hashable = None) -> CachedPrefix:
        return CachedPrefix([], 0)

    def wants(self, tokens: Sequence[int], adapter: Hashable = None) -> bool:
        return False

    def keep(
        self,
        tokens: Sequence[int],
        blocks: Sequence[int],
        state: RecurrentState | None = None,
        adapter: Hashable = None,
    ) -> None:
        pass

    def evict(self) -> bool:
        return False

    def discard(self, block: int) -> None:
        pass


@dataclass(eq=False)
class _Node:
    """A block that follows its parents' blocks; a partly filled one has no children.

    children: by their tokens. similar: the same children by their first `min_shared_tokens` tokens.
    """

    block: int
    tokens: tuple[int, ...]
    parent: _Node | None
    used: int = 0
    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)
    similar: dict[tuple[int, ...], list[_Node]] = field(default_factory=dict)


class PrefixCache:
    """A radix tree whose edges are the tokens of a block: exact, since blocks are compared token by token, not by hash.

    It holds a reference to each of its blocks. Only leaves are evicted, so that what is found is always a prefix.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._min_tokens = min_shared_tokens(pool)
        self._roots: dict[Hashable, _Node] = {}  # by adapter: its blocks are of use to nobody else
        self._clock = 0
        self._nodes: set[_Node] = set()
        # Heap of leaves by last use: (clock, tie breaker, node); entries may be stale.
        self._evictable: list[tuple[int, int, _Node]] = []
        self._entries = itertools.count()

    def __len__(self) -> int:
        return len(self._nodes)

    def __del__(self) -> None:
        if nodes := getattr(self, "_nodes", None):
            self._pool.release_soon([node.block for node in nodes])

    def find(self, tokens: Sequence[int], adapter: Hashable = None) -> CachedPrefix:
        """Return the longest cached prefix of `tokens` with this adapter."""
        self._clock += 1
        node, blocks, size, start = self._root(adapter), list[int](), self._pool.size, 0
        while child := node.children.get(tuple(tokens[start : start + size])):
            self._use(child)
            blocks.append(child.block)
            node, start = child, start + len(child.tokens)
        rest = tuple(tokens[start : start + size])
        found = [(common_tokens(each.tokens, rest), each.used, each) for each in self._similar(node, rest)]
        if found:
            common, _, child = max(found, key=lambda each: each[:2])
            self._use(child)
            blocks.append(child.block)
            start += common
        return CachedPrefix(blocks, start)

    def wants(self, tokens: Sequence[int], adapter: Hashable = None) -> bool:
        """No: this one is for models whose layers are all attention."""
        return False

    def keep(
        self,
        tokens: Sequence[int],
        blocks: Sequence[int],
        state: RecurrentState | None = None,
        adapter: Hashable = None,
    ) -> None:
        """Insert blocks; a prefix that is cached already keeps its block."""
        self._clock += 1
        node, size = self._root(adapter), self._pool.size
        for index, block in enumerate(blocks):
            key = tuple(tokens[index * size : (index + 1) * size])
            if len(key) < self._min_tokens:
                return
            child = node.children.get(key)
            if child is None and len(key) < size:
                longer = [each for each in self._similar(node, key) if each.tokens[: len(key)] == key]
                child = max(longer, key=lambda each: each.used, default=None)
            if child is None:
                child = self._add(node, key, block)
            self._use(child)
            node = child

    def evict(self) -> bool:
        """Free the least recently used leaf that no sequence holds."""
        in_use = []
        found = None
        while self._evictable and found is None:
            entry = heapq.heappop(self._evictable)
            used, _, node = entry
            if node not in self._nodes or node.children or node.used != used:
                continue
            if self._pool.references(node.block) == 1:
                found = node
            else:
                in_use.append(entry)
        for entry in in_use:
            heapq.heappush(self._evictable, entry)
        if found is None:
            return False
        self._remove(found)
        return True

    def discard(self, block: int) -> None:
        """Forget a block that no cached block follows."""
        for node in [node for node in self._nodes if node.block == block and not node.children]:
            self._remove(node)

    def _root(self, adapter: Hashable) -> _Node:
        return self._roots.setdefault(adapter, _Node(-1, (), None))

    def _similar(self, node: _Node, tokens: tuple[int, ...]) -> Iterable[_Node]:
        """Children of a node that share the first `min_shared_tokens` tokens."""
        return node.similar.get(tokens[: self._min_tokens], ())

    def _use(self, node: _Node) -> None:
        node.used = self._clock
        if not node.children:
            self._push_evictable(node)

    def _push_evictable(self, leaf: _Node) -> None:
        if len(self._evictable) > 2 * len(self._nodes) + 64:
            self._evictable = [
                entry for entry in self._evictable if entry[2] in self._nodes and entry[0] == entry[2].used
            ]
            heapq.heapify(self._evictable)
        heapq.heappush(self._evictable, (leaf.used, next(self._entries), leaf))

    def _add(self, parent: _Node, key: tuple[int, ...], block: int) -> _Node:
        # A shorter block with the same first tokens is superseded.
        for shorter in [each for each in self._similar(parent, key) if each.tokens == key[: len(each.tokens)]]:
            self._remove(shorter)
        self._pool.share(block)
        child = _Node(block, key, parent)
        parent.children[key] = child
        parent.similar.setdefault(key[: self._min_tokens], []).append(child)
        self._nodes.add(child)
        return child

    def _remove(self, leaf: _Node) -> None:
        parent, head = leaf.parent, leaf.tokens[: self._min_tokens]
        assert parent is not None
        del parent.children[leaf.tokens]
        parent.similar[head].remove(leaf)
        if not parent.similar[head]:
            del parent.similar[head]
        self._nodes.discard(leaf)
        self._pool.release(leaf.block)
        if not parent.children and parent.parent is not None:
            self._push_evictable(parent)


def min_shared_tokens(pool: BlockPool) -> int:
    """How many tokens of a block must match for it to be shared in part."""
    return max(1, pool.size // MIN_SHARED_FRACTION)


def common_tokens(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Length of the common prefix; most have none, and are told from it by their first tokens."""
    start, size, most = 0, _FIRST_COMPARED, min(len(one), len(other))
    while start < most and one[start : start + size] == other[start : start + size]:
        start, size = start + size, 2 * size
    low, high = min(start, most), min(start + size, most)
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
