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
from ipex_assist.executors.kv_memory import KvMemory, room_in, spare_beside

pytestmark = pytest.mark.one_stack

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
    for limit, workspace, fits in ((3 << 30, 0, True), ((3 << 30) + 1, 0, False), (2 << 30, 1 << 30, True)):
        memory = KvMemory(limit)
        memory.join(1 << 20, 4096, workspace)
        if fits:
            assert memory.blocks() == limit >> 20
            continue
        with pytest.raises(IpexAssistError, match=r"--kv-memory is 3,072\.0 MiB, and 3,072\.0 MiB are available"):
            memory.blocks()
    large = KvMemory(2 << 30)
    large.join(1 << 20, 4096, (1 << 30) + 1)
    with pytest.raises(IpexAssistError, match=r"is 2,048\.0 MiB, and passes need 1,024\.0 MiB, and 3,072\.0 MiB are"):
        large.blocks()


def test_memory_that_nobody_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left when it is first used, but never more than many long texts take."""
    monkeypatch.setattr("ipex_assist.executors.kv_memory.read_memory", lambda: Available(8 << 30))
    monkeypatch.setattr("ipex_assist.executors.kv_memory._planned_share", lambda: 1.0)
    for block, context, workspace, expected in (
        (1 << 20, 1 << 20, 0, 7 << 10),
        (1 << 20, 1 << 20, 3 << 30, 5 << 10),  # passes need more than is left for others anyway
        (1 << 20, 2048, 0, 64 * 8),
        (7 << 30, 2048, 0, 1),
    ):
        memory = KvMemory()
        memory.join(block, context, workspace)
        assert memory.blocks() == expected
    monkeypatch.setattr("ipex_assist.executors.kv_memory.read_memory", lambda: Available(1 << 30))
    assert memory.blocks() == 1, "decided once"
    memory = KvMemory()
    memory.join((7 << 30) + 1, 2048)
    with pytest.raises(
        IpexAssistError, match=r"256 tokens, the least there is, take 7,168\.0 MiB.*1,024\.0 MiB are left"
    ):
        memory.blocks()


def test_neighbours_have_their_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of four processes of 3 GiB, whether it is the first to ask or the last one, has a quarter less its own."""
    monkeypatch.setattr("ipex_assist.executors.kv_memory.resident_bytes", lambda **_: 3 << 30)
    monkeypatch.setattr("ipex_assist.executors.kv_memory._planned_share", lambda: 0.25)
    for loaded in (1, 4):
        available = Available((48 - 3 * loaded) << 30, 48 << 30)
        monkeypatch.setattr("ipex_assist.executors.kv_memory.read_memory", lambda available=available: available)
        for memory in (KvMemory(), KvMemory(share=0.25)):
            memory.join(1 << 20, 1 << 30)
            assert memory.blocks() == 8 << 10  # a quarter of 48 less 3, and 1 is left for others
    alone = KvMemory(share=1)
    alone.join(1 << 20, 1 << 30)
    assert alone.blocks() == 35 << 10


@given(st.integers(1, 1 << 40), st.integers(0, 1 << 34))
def test_what_is_planned_for_is_given(kv: int, workspace: int) -> None:
    """With the least that a plan asks for, the pool has room for all of it; with one byte less it has not."""
    left = kv + spare_beside(kv, workspace)
    assert room_in(left, workspace) >= kv
    assert room_in(left - 1, workspace) < kv


class Available:
    """Stands for env.memory.MemoryInfo."""

    def __init__(self, available: int, total: int = 64 << 30) -> None:
        self.available, self.total = available, total
