"""The prefix cache against its naive twin, over random texts that begin alike."""

from __future__ import annotations

import gc
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_assist.engine.prefix_cache import NaivePrefixes, PrefixCache
from ipex_assist.executors.blocks import BlockPool

SIZE = 4
TEXTS = st.lists(st.integers(0, 1), min_size=0, max_size=20)
STEPS = st.lists(st.one_of(st.tuples(st.just("read"), TEXTS), st.tuples(st.just("give up"), st.none())), max_size=40)


def pool() -> BlockPool:
    return BlockPool(64, SIZE)


def read(cache: Any, blocks: BlockPool, text: list[int]) -> int:
    """A text's way through the cache: what is known is shared, the rest is taken, kept, and given back."""
    known = cache.find(text)
    for block in known:
        blocks.share(block)
    table = [*known, *(blocks.take() for _ in range(len(text) // SIZE - len(known)))]
    cache.keep(text, table)
    for block in table:
        blocks.release(block)
    return len(known)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_it_knows_what_its_twin_knows(steps: list[tuple[str, Any]]) -> None:
    """The same beginnings are found, as many blocks are held, and giving up frees one of them each time."""
    ours, theirs = pool(), pool()
    tree, naive = PrefixCache(ours), NaivePrefixes(theirs)
    for kind, text in steps:
        if kind == "read":
            assert read(tree, ours, text) == read(naive, theirs, text)
        else:
            assert tree.give_up() == naive.give_up()
        assert ours.free == theirs.free == 64 - len(tree)
    while tree.give_up():
        pass
    assert ours.free == 64


def test_blocks_in_use_are_not_given_up() -> None:
    """Of a text that runs its blocks stay; others go first, the one not asked for longest before the rest."""
    blocks = pool()
    cache = PrefixCache(blocks)
    for text in ([0] * 8, [1] * 8, [2] * 8):
        read(cache, blocks, text)
    running = cache.find([0] * 8)
    for block in running:
        blocks.share(block)
    while cache.give_up():
        pass
    assert cache.find([0] * 8) == running
    assert cache.find([1] * 8) == cache.find([2] * 8) == []


def test_the_oldest_goes_first() -> None:
    """A beginning that was asked for again is younger than one that was not."""
    blocks = pool()
    cache = PrefixCache(blocks)
    read(cache, blocks, [0] * 4)
    read(cache, blocks, [1] * 4)
    cache.find([0] * 4)
    assert cache.give_up()
    assert cache.find([1] * 4) == []
    assert len(cache.find([0] * 4)) == 1


def test_a_cache_that_is_gone_holds_no_block() -> None:
    """An engine that nobody keeps gives back what its texts left."""
    blocks = pool()
    cache = PrefixCache(blocks)
    read(cache, blocks, [0] * 8)
    assert blocks.free == 62
    del cache
    gc.collect()
    assert blocks.free == 64
