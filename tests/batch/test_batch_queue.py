"""Who gets which prompt: every one once, lost ones elsewhere, never a third try, and suspects alone."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ipex_assist.batch.prompts import Entry
from ipex_assist.batch.queue import MAX_TRIES, Queue, Task

pytestmark = pytest.mark.one_stack


def schedule(count: int) -> Queue:
    return Queue((Entry(number, number + 1, 0, 0, "") for number in range(count)), count)


def given_to(work: Queue, instance: int, usable: set[int], most: int = 1) -> Task:
    """The next task of `instance`, which must get one."""
    task = work.next_for(instance, usable, most)
    assert task is not None
    return task


def test_a_lost_prompt_goes_elsewhere_first() -> None:
    """The instance that died of it gets another one; the next to be free takes it, before fresh ones."""
    work = schedule(4)
    task = given_to(work, 0, {0, 1})
    other = given_to(work, 1, {0, 1})
    assert work.ended(0, "died") is None
    assert given_to(work, 0, {0, 1}).entry.id == 2
    work.finished(1, other.number)
    assert given_to(work, 1, {0, 1}) is task
    assert work.ended(1, "died too") is task
    assert task.failures == ["died", "died too"]


def test_alone_it_tries_again_itself() -> None:
    """Where there is no other instance, or no other any more, nobody may wait for one."""
    for usable in ({0}, {0, 3}):
        work = schedule(1)
        task = given_to(work, 0, usable)
        work.ended(0, "died")
        if 3 in usable:
            assert work.next_for(0, usable) is None
        assert work.next_for(0, {0}) is task


def test_an_instance_holds_as_many_as_it_may() -> None:
    """And answers in any order; a number stands for one try, so that an answer to an earlier one is nobody's."""
    work = schedule(9)
    tasks = [given_to(work, 0, {0}, 3) for _ in range(3)]
    assert work.next_for(0, {0}, 3) is None
    assert work.in_flight(0) == tasks
    first = tasks[1].number
    assert work.find(0, first) is tasks[1]
    assert work.lost(0, first, "broke") is None
    assert work.find(0, first) is None
    assert given_to(work, 0, {0}, 3) is tasks[1]
    assert tasks[1].number != first
    assert work.in_flight(0) == [tasks[0], tasks[2], tasks[1]]


def test_suspects_are_tried_alone_and_nobody_is_blamed_for_company() -> None:
    """Sixteen in flight, one of them poison: it ends its instance in company, then alone, then fails; 15 live."""
    work, poison = schedule(20), 5
    tasks = [given_to(work, 0, {0}, 16) for _ in range(16)]
    assert work.ended(0, "died") is None
    assert all(task.alone and not task.blamed for task in tasks)
    alone: Counter[int] = Counter()
    failed: Task | None = None
    while failed is None:
        task = given_to(work, 0, {0}, 16)
        if not task.alone:  # the four that are left
            break
        assert work.next_for(0, {0}, 16) is None
        alone[int(task.entry.id)] += 1
        if task.entry.id == poison:
            failed = work.ended(0, "died")
        else:
            work.finished(0, task.number)
    assert failed is tasks[poison]
    assert failed.failures == ["died, with 16 prompts in flight", "died", "died"]
    assert alone == {number: 1 + (number == poison) for number in range(16)}
    assert work.unfinished == 4


def test_a_suspect_waits_for_an_instance_without_company() -> None:
    """The other instance goes on with fresh prompts, and takes suspects when there are none of these left."""
    work = schedule(7)
    for _ in range(3):
        given_to(work, 0, {0, 1}, 3)
    (left, *_) = [given_to(work, 1, {0, 1}, 3) for _ in range(2)]
    work.ended(0, "died")
    assert [given_to(work, 1, {1}, 3).entry.id, work.next_for(1, {1}, 3)] == [5, None]
    work.finished(1, left.number)
    assert given_to(work, 1, {1}, 3).entry.id == 6
    for task in work.in_flight(1):
        assert work.next_for(1, {1}, 3) is None
        work.finished(1, task.number)
    for suspect in range(3):
        task = given_to(work, 1, {1}, 3)
        assert (task.entry.id, task.alone) == (suspect, True)
        assert work.next_for(1, {1}, 3) is None
        work.finished(1, task.number)
    assert work.unfinished == 0


@given(st.integers(0, 12), st.integers(1, 4), st.integers(1, 5), st.data())
def test_every_prompt_ends_once(count: int, instances: int, most: int, data: st.DataObject) -> None:
    """Whatever dies when: each prompt ends once, blamed twice at most, the second time elsewhere if it can be."""
    work, alive = schedule(count), set(range(instances))
    ended: list[int] = []
    for _ in range((MAX_TRIES + 1) * count * (instances + 1)):
        for number in sorted(alive):
            while (task := work.next_for(number, alive, most)) is not None:
                if number in task.blamed:
                    assert alive <= set(task.blamed)
        busy = [number for number in sorted(alive) if work.in_flight(number)]
        if not busy:
            break
        number = data.draw(st.sampled_from(busy))
        tasks = work.in_flight(number)
        assert all(task.tries <= MAX_TRIES + 1 for task in tasks)
        assert len(tasks) == 1 or not any(task.alone for task in tasks)
        fate = data.draw(st.sampled_from(["finished", "lost", "left out", "ended"]))
        task = data.draw(st.sampled_from(tasks))
        if fate == "finished":
            ended.append(int(work.finished(number, task.number).entry.id))
            continue
        given_up = work.lost(number, task.number, fate) if fate == "lost" else work.ended(number, fate)
        if given_up is not None:
            assert len(given_up.blamed) == MAX_TRIES
            ended.append(int(given_up.entry.id))
        if fate == "left out" and len(alive) > 1:
            alive.remove(number)
    assert work.unfinished == 0
    assert sorted(ended) == list(range(count))


COUNT = 30


class Accounting(RuleBasedStateMachine):
    """Any sequence of events: every prompt is queued, in flight, done or failed, and exactly one of these."""

    @initialize(instances=st.integers(1, 3), most=st.sampled_from([1, 2, 16]))
    def begin(self, instances: int, most: int) -> None:
        self.queue, self.most = schedule(COUNT), most
        self.usable = set(range(instances))
        self.in_flight: dict[tuple[int, int], int] = {}  # instance and number of the try → prompt
        self.over: dict[int, str] = {}
        self.company: Counter[int] = Counter()  # ends of an instance that had company, by prompt
        self.blamed: Counter[int] = Counter()

    @precondition(lambda self: self.usable)
    @rule(data=st.data())
    def feed(self, data: st.DataObject) -> None:
        """An instance asks for something to do."""
        instance = data.draw(st.sampled_from(sorted(self.usable)))
        before = sum(place[0] == instance for place in self.in_flight)
        task = self.queue.next_for(instance, self.usable, self.most)
        if task is not None:
            assert before < self.most
            assert (instance, task.number) not in self.in_flight
            assert task.entry.id not in self.over
            assert task.entry.id not in self.in_flight.values()
            self.in_flight[instance, task.number] = int(task.entry.id)
        elif not before:  # an idle one may be refused only what another has still to try
            tried = [own_id for own_id in range(COUNT) if own_id not in self.over and self.blamed[own_id]]
            assert self.queue.waiting <= len(tried)

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), alone=st.booleans(), fate=st.sampled_from(["done", "lost"]))
    def answer(self, data: st.DataObject, alone: bool, fate: str) -> None:
        """A prompt is done, or fails by itself."""
        place = data.draw(st.sampled_from(sorted(self.in_flight)))
        own_id = self.in_flight.pop(place)
        if fate == "done":
            assert self.queue.finished(*place).entry.id == own_id
            self.over[own_id] = "done"
            return
        self.blamed[own_id] += 1
        self._given_up(own_id, self.queue.lost(*place, "lost", alone=alone))

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """An instance dies with all that it is at."""
        instance = data.draw(st.sampled_from(sorted(self.usable)))
        places = [place for place in self.in_flight if place[0] == instance]
        ids = [self.in_flight.pop(place) for place in places]
        given_up = self.queue.ended(instance, "died")
        (self.blamed if len(ids) == 1 else self.company).update(ids)
        if len(ids) == 1:
            self._given_up(ids[0], given_up)
        else:
            assert given_up is None

    @precondition(lambda self: len(self.usable) > 1)
    @rule(data=st.data())
    def leave_out(self, data: st.DataObject) -> None:
        """An instance that died is not started again."""
        instance = data.draw(st.sampled_from(sorted(self.usable)))
        if not any(place[0] == instance for place in self.in_flight):
            self.usable.remove(instance)

    def _given_up(self, own_id: int, task: Task | None) -> None:
        assert (task is not None) == (self.blamed[own_id] == MAX_TRIES)
        if task is not None:
            assert task.entry.id == own_id
            self.over[own_id] = "failed"

    @invariant()
    def each_is_in_one_place(self) -> None:
        if not hasattr(self, "queue"):
            return
        found = {
            (instance, task.number): task.entry.id for instance in range(3) for task in self.queue.in_flight(instance)
        }
        assert found == self.in_flight
        assert not set(self.in_flight.values()) & set(self.over)
        assert self.queue.waiting == COUNT - len(self.in_flight) - len(self.over)
        assert self.queue.unfinished == COUNT - len(self.over)
        # Who shared the end of an instance once is never in company again.
        assert max(self.company.values(), default=0) <= 1


TestAccounting = Accounting.TestCase
