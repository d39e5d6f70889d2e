"""The prefix cache against its naive twin, over random texts that begin alike."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_assist.engine.prefix_cache import CachedPrefix, PrefixCache, common_tokens, min_shared_tokens
from ipex_assist.executors.blocks import BlockPool

pytestmark = pytest.mark.one_stack

SIZE = 4
TEXTS = st.lists(st.integers(0, 1), min_size=0, max_size=20)
KINDS = (("read", TEXTS), ("give up", st.none()), ("let go", TEXTS))
STEPS = st.lists(st.one_of(*(st.tuples(st.just(kind), given) for kind, given in KINDS)), max_size=40)


class NaivePrefixes:
    """A PrefixCache that compares with every cached prefix."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        # (prefix up to the end of a block's tokens, that block), least recently used first.
        self._known: list[tuple[tuple[int, ...], int]] = []

    def find(self, tokens: Sequence[int]) -> CachedPrefix:
        """Return the longest cached prefix of `tokens`."""
        text, size, least = tuple(tokens), self._pool.size, min_shared_tokens(self._pool)
        blocks: list[int] = []
        length = 0
        while True:
            after = [  # matching tokens of each block that follows the same prefix
                (common_tokens(known, text) - length, i)
                for i, (known, _) in enumerate(self._known)
                if length < len(known) <= length + size and known[:length] == text[:length]
            ]
            common, at = max(after, default=(0, -1))
            if common < least:
                return CachedPrefix(blocks, length)
            blocks.append(self._use(at))
            length += common
            if common < size:
                return CachedPrefix(blocks, length)

    def keep(self, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """Insert blocks."""
        size = self._pool.size
        for index, block in enumerate(blocks):
            beginning = tuple(tokens[: (index + 1) * size])
            start = index * size
            if len(beginning) - start < min_shared_tokens(self._pool):
                return
            same = [
                i
                for i, (known, _) in enumerate(self._known)
                if start < len(known) <= start + size and known[: len(beginning)] == beginning
            ]
            if same:
                self._use(same[-1])
                continue
            for known, other in list(self._known):
                if start < len(known) < len(beginning) and beginning[: len(known)] == known:
                    self._known.remove((known, other))
                    self._pool.release(other)
            self._pool.share(block)
            self._known.append((beginning, block))

    def _use(self, at: int) -> int:
        self._known.append(self._known.pop(at))
        return self._known[-1][1]

    def evict(self) -> bool:
        """Free the least recently used block that no sequence and no longer cached prefix needs."""
        for i, (beginning, block) in enumerate(self._known):
            longer = any(other[: len(beginning)] == beginning != other for other, _ in self._known)
            if not longer and self._pool.references(block) == 1:
                del self._known[i]
                self._pool.release(block)
                return True
        return False

    def discard(self, block: int) -> None:
        """Forget a block that no cached block follows."""
        for known, other in list(self._known):
            longer = any(text[: len(known)] == known != text for text, _ in self._known)
            if other == block and not longer:
                self._known.remove((known, other))
                self._pool.release(other)


def pool() -> BlockPool:
    return BlockPool(64, SIZE)


def read(cache: Any, blocks: BlockPool, contents: dict[int, list[int]], text: list[int]) -> int:
    """A text's way through the cache: what is known is shared, the rest is taken, kept, and given back.

    contents: the tokens of each block. A block that is known in part is copied, as the text goes on in it.
    """
    known, length = cache.find(text)[:2]
    assert [token for block in known for token in contents[block]][:length] == text[:length]
    assert len(known) == -(-length // SIZE)
    whole = known[: length // SIZE]
    for block in whole:
        blocks.share(block)
    table = [*whole, *(blocks.take() for _ in range(-(-len(text) // SIZE) - len(whole)))]
    for place, block in enumerate(table):
        contents[block] = text[place * SIZE : (place + 1) * SIZE]
    cache.keep(text, table)
    for block in table:
        blocks.release(block)
    return length


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_it_knows_what_its_twin_knows(steps: list[tuple[str, Any]]) -> None:
    """The same beginnings are found, as many blocks are held, and giving up frees one of them each time."""
    ours, theirs = pool(), pool()
    held: tuple[dict[int, list[int]], dict[int, list[int]]] = {}, {}
    tree, naive = PrefixCache(ours), NaivePrefixes(theirs)
    for kind, text in steps:
        if kind == "read":
            assert read(tree, ours, held[0], text) == read(naive, theirs, held[1], text)
        elif kind == "let go":
            for cache in (tree, naive):
                found = cache.find(text).blocks
                if found:
                    cache.discard(found[-1])
        else:
            assert tree.evict() == naive.evict()
        assert ours.free == theirs.free == 64 - len(tree)
    while tree.evict():
        pass
    assert ours.free == 64


def test_blocks_in_use_are_not_given_up() -> None:
    """Of a text that runs its blocks stay; others go first, the one not asked for longest before the rest."""
    blocks = pool()
    cache = PrefixCache(blocks)
    for text in ([0] * 8, [1] * 8, [2] * 8):
        read(cache, blocks, {}, text)
    running = cache.find([0] * 8).blocks
    for block in running:
        blocks.share(block)
    while cache.evict():
        pass
    assert cache.find([0] * 8) == CachedPrefix(running, 8)
    assert cache.find([1] * 8) == cache.find([2] * 8) == CachedPrefix([], 0)


def test_the_oldest_goes_first() -> None:
    """A beginning that was asked for again is younger than one that was not."""
    blocks = pool()
    cache = PrefixCache(blocks)
    read(cache, blocks, {}, [0] * 4)
    read(cache, blocks, {}, [1] * 4)
    cache.find([0] * 4)
    assert cache.evict()
    assert cache.find([1] * 4) == CachedPrefix([], 0)
    assert cache.find([0] * 4).length == 4


def test_a_block_that_is_right_in_part() -> None:
    """Its beginning is found; the longer of two texts stays; too little is not worth a copy."""
    blocks = BlockPool(8, 32)  # two tokens at least
    cache = PrefixCache(blocks)
    first = list(range(40))
    table = [blocks.take(), blocks.take()]
    cache.keep(first, table)
    assert cache.find([*first[:10], 99]) == CachedPrefix(table[:1], 10)
    assert cache.find([*first[:36], 99]) == CachedPrefix(table, 36)
    assert cache.find([*first, 99]) == CachedPrefix(table, 40)
    assert cache.find([0, 99]) == CachedPrefix([], 0)
    longer = [*first, 41, 42]
    other = blocks.take()
    cache.keep(longer, [table[0], other])
    assert cache.find([*longer, 99]) == CachedPrefix([table[0], other], 42)
    assert cache.find(first) == CachedPrefix([table[0], other], 40)
    assert (blocks.references(table[0]), blocks.references(table[1]), len(cache)) == (2, 1, 2)
    cache.keep(first, table)
    assert len(cache) == 2, "a beginning of what is known is known"


def test_much_use_takes_no_memory() -> None:
    """What is noted of a use is forgotten, though nothing is ever given up."""
    blocks = pool()
    cache = PrefixCache(blocks)
    read(cache, blocks, {}, [0] * 8)
    for _ in range(1000):
        cache.find([0] * 8)
    assert len(cache._evictable) < 100


def test_a_cache_that_is_gone_holds_no_block() -> None:
    """An engine that nobody keeps gives back what its texts left."""
    blocks = pool()
    cache = PrefixCache(blocks)
    read(cache, blocks, {}, [0] * 8)
    assert blocks.free == 62
    del cache
    gc.collect()
    assert blocks.free == 64
