"""Who gets which prompt: every one once, lost ones elsewhere, and never a third try."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipex_assist.batch.prompts import Entry
from ipex_assist.batch.queue import MAX_TRIES, Queue

pytestmark = pytest.mark.one_stack


def schedule(count: int) -> Queue:
    return Queue((Entry(number, number + 1, 0, 0, "") for number in range(count)), count)


def test_a_lost_prompt_goes_elsewhere_first() -> None:
    """The instance that died of it gets another one; the next to be free takes it, before fresh ones."""
    work = schedule(4)
    task = work.next_for(0, {0, 1})
    other = work.next_for(1, {0, 1})
    assert task is not None
    assert other is not None
    assert work.lost(0, "died") is None
    fresh = work.next_for(0, {0, 1})
    assert fresh is not None
    assert fresh.entry.id == 2
    work.finished(1)
    again = work.next_for(1, {0, 1})
    assert again is task
    assert work.lost(1, "died too") is task
    assert task.failures == ["died", "died too"]


def test_alone_it_tries_again_itself() -> None:
    """Where there is no other instance, or no other any more, nobody may wait for one."""
    for usable in ({0}, {0, 3}):
        work = schedule(1)
        task = work.next_for(0, usable)
        work.lost(0, "died")
        if 3 in usable:
            assert work.next_for(0, usable) is None
        assert work.next_for(0, {0}) is task


@given(st.integers(0, 12), st.integers(1, 4), st.data())
def test_every_prompt_ends_once(count: int, instances: int, data: st.DataObject) -> None:
    """Whatever dies when: each prompt ends once, after two tries at most, the second elsewhere if it can be."""
    work, alive = schedule(count), set(range(instances))
    ended: list[int] = []
    for _ in range(MAX_TRIES * count * (instances + 1)):
        for number in sorted(alive):
            if work.running(number) is None:
                work.next_for(number, alive)
        busy = [number for number in sorted(alive) if (task := work.running(number)) is not None]
        if not busy:
            break
        number = data.draw(st.sampled_from(busy))
        task = work.running(number)
        assert task is not None
        assert task.tries <= MAX_TRIES
        if task.tries == 2 and task.instances[0] == number:
            assert alive == {number}
        fate = data.draw(st.sampled_from(["finished", "lost", "left out"]))
        if fate == "finished":
            ended.append(int(work.finished(number).entry.id))
            continue
        given_up = work.lost(number, fate)
        if given_up is not None:
            assert given_up.tries == MAX_TRIES
            ended.append(int(given_up.entry.id))
        if fate == "left out" and len(alive) > 1:
            alive.remove(number)
    assert work.unfinished == 0
    assert sorted(ended) == list(range(count))
