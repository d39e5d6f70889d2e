"""The pool of blocks against a naive twin, and how large it is."""

from __future__ import annotations

import gc
import threading
from collections import Counter, abc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.blocks import BlockPool, NoBlocksError
from ipex_assist.executors.kv_memory import KvMemory

# ---- bookkeeping


@settings(max_examples=300, deadline=None)
@given(count=st.integers(1, 12), data=st.data())
def test_a_pool_counts_as_its_twin_does(count: int, data: st.DataObject) -> None:
    """Blocks that two texts get at once, that are lost, or free too early; or that are given back while in use."""
    held: Counter[int] = Counter()
    discarded: list[int] = []

    def discard(blocks: abc.Sequence[int]) -> None:
        assert not set(blocks) & set(held), "memory of a block that is in use"
        discarded.extend(blocks)

    pool = BlockPool(count, discard=discard)
    for _ in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(["take", "take", "share", "release", "soon"]))
        some = data.draw(st.integers(0, count + 1))
        if step == "take":
            if some > count - len(held):
                with pytest.raises(NoBlocksError) as caught:
                    pool.take_many(some)
                assert (caught.value.wanted, caught.value.free, caught.value.count) == (some, pool.free, count)
            else:
                taken = pool.take_many(some)
                assert len(set(taken)) == some
                assert not set(taken) & set(held)
                held.update(taken)
        elif held:
            block = data.draw(st.sampled_from(sorted(held)))
            if step == "share":
                pool.share(block)
                held[block] += 1
            else:
                held[block] -= 1
                held = +held
                (pool.release if step == "release" else lambda one: pool.release_soon([one]))(block)
        assert pool.free == count - len(held)
        assert all(pool.references(block) == held[block] for block in range(count))


def test_what_was_freed_last_is_taken_first() -> None:
    """Its pages are there, and may be in a cache; and only then what nobody ever wrote to."""
    pool = BlockPool(6)
    first = pool.take_many(3)
    assert first == [0, 1, 2]
    pool.release_many(first)
    assert pool.take_many(4) == [0, 1, 2, 3]
    pool.release(2)
    assert [pool.take(), pool.take()] == [2, 4]


def test_a_full_pool_says_what_it_has() -> None:
    pool = BlockPool(3)
    pool.take_many(2)
    with pytest.raises(
        NoBlocksError, match=r"2 more blocks of 256 tokens are needed, and 1 of 3 are free\..*--kv-memory"
    ):
        pool.take_many(2)
    assert pool.free == 1


def test_sequences_are_freed_in_any_thread_at_any_moment() -> None:
    """Garbage is collected in the midst of the pool's own work: a lock that a destructor waits for would be held."""
    pool = BlockPool(4000)

    class Text:
        def __init__(self) -> None:
            self.blocks, self.cycle = pool.take_many(3), self

        def __del__(self) -> None:
            pool.release_soon(self.blocks)

    done = []

    def burst() -> None:
        for _ in range(300):
            Text()
        done.append(True)

    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        threads = [threading.Thread(target=burst) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        gc.collect()
    finally:
        gc.set_threshold(*before)
    assert len(done) == 4
    assert pool.free == 4000


# ---- memory


def test_memory_is_shared_by_the_bytes_of_a_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target and its assistant hold the same texts: a pool that is larger than the other's is memory lost."""
    memory = KvMemory(1000)
    memory.join(100, 4096)
    memory.join(25, 1024)
    assert memory.blocks() == 8
    small = KvMemory(99)
    small.join(100, 4096)
    with pytest.raises(IpexAssistError, match=r"--kv-memory is 0\.0 MiB, and 256 tokens"):
        small.blocks()
    monkeypatch.setattr("ipex_assist.executors.kv_memory.read_memory", lambda: Available(3 << 30))
    large = KvMemory(4 << 30)
    large.join(1 << 20, 4096)
    with pytest.raises(IpexAssistError, match=r"--kv-memory is 4\.0 GiB, and 3\.0 GiB are available"):
        large.blocks()


def test_memory_that_nobody_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left when it is first used, but never more than many long texts take, and never nothing."""
    monkeypatch.setattr("ipex_assist.executors.kv_memory.read_memory", lambda: Available(8 << 30))
    monkeypatch.setattr("ipex_assist.executors.kv_memory._share_of_machine", lambda: 1.0)
    for block, context, expected in ((1 << 20, 1 << 20, 7 << 10), (1 << 20, 2048, 64 * 8), (1 << 40, 2048, 1)):
        memory = KvMemory()
        memory.join(block, context)
        assert memory.blocks() == expected
    monkeypatch.setattr("ipex_assist.executors.kv_memory._share_of_machine", lambda: 0.25)
    assert memory.blocks() == 1, "decided once"
    memory = KvMemory()
    memory.join(1 << 20, 1 << 20)
    assert memory.blocks() == 7 << 8


class Available:
    """Stands for env.memory.Memory."""

    def __init__(self, available: int) -> None:
        self.available = available
