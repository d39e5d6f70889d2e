"""The prefix cache against its naive twin, over random texts that begin alike."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_assist.engine.prefix_cache import NaivePrefixes, PrefixCache
from ipex_assist.executors.blocks import BlockPool

pytestmark = pytest.mark.one_stack

SIZE = 4
TEXTS = st.lists(st.integers(0, 1), min_size=0, max_size=20)
KINDS = (("read", TEXTS), ("give up", st.none()), ("let go", TEXTS))
STEPS = st.lists(st.one_of(*(st.tuples(st.just(kind), given) for kind, given in KINDS)), max_size=40)


def pool() -> BlockPool:
    return BlockPool(64, SIZE)


def read(cache: Any, blocks: BlockPool, contents: dict[int, list[int]], text: list[int]) -> int:
    """A text's way through the cache: what is known is shared, the rest is taken, kept, and given back.

    contents: the tokens of each block. A block that is known in part is copied, as the text goes on in it.
    """
    known, length = cache.find(text)
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
    assert cache.find([0] * 8) == (running, 8)
    assert cache.find([1] * 8) == cache.find([2] * 8) == ([], 0)


def test_the_oldest_goes_first() -> None:
    """A beginning that was asked for again is younger than one that was not."""
    blocks = pool()
    cache = PrefixCache(blocks)
    read(cache, blocks, {}, [0] * 4)
    read(cache, blocks, {}, [1] * 4)
    cache.find([0] * 4)
    assert cache.evict()
    assert cache.find([1] * 4) == ([], 0)
    assert cache.find([0] * 4).length == 4


def test_a_block_that_is_right_in_part() -> None:
    """Its beginning is found; the longer of two texts stays; too little is not worth a copy."""
    blocks = BlockPool(8, 32)  # two tokens at least
    cache = PrefixCache(blocks)
    first = list(range(40))
    table = [blocks.take(), blocks.take()]
    cache.keep(first, table)
    assert cache.find([*first[:10], 99]) == (table[:1], 10)
    assert cache.find([*first[:36], 99]) == (table, 36)
    assert cache.find([*first, 99]) == (table, 40)
    assert cache.find([0, 99]) == ([], 0)
    longer = [*first, 41, 42]
    other = blocks.take()
    cache.keep(longer, [table[0], other])
    assert cache.find([*longer, 99]) == ([table[0], other], 42)
    assert cache.find(first) == ([table[0], other], 40)
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
