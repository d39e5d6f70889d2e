"""How many threads run a draft's passes: chosen on models whose times are given, and without a trace in any token."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import checkpoint_files
import pytest
from conftest import HAS_NATIVE

import ipex_assist
from ipex_assist.env.errors import UsageError
from ipex_assist.executors.blocks import NoBlocksError
from ipex_assist.executors.interface import ALL_THREADS, PassThreads
from ipex_assist.speculative.costs.calibration import describe
from ipex_assist.speculative.costs.draft_threads import LONG_STEP, choose_threads
from ipex_assist.speculative.costs.live_costs import LiveCosts
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.costs.stored_costs import StoredCosts
from ipex_assist.speculative.drafting import Drafting

pytestmark = pytest.mark.one_stack


class Timed:
    """A model of 56 threads: `seconds` of a pass by its threads and rows."""

    def __init__(self, seconds: Callable[[int, int], float], choices: tuple[int, ...] = (56, 28, 14, 7, 3, 1)) -> None:
        self.seconds, self.thread_choices, self.pass_threads = seconds, choices, ALL_THREADS
        self.spec: Any = None
        self.spent, self.tried = 0.0, set[int]()

    def use_threads(self, number: int) -> None:
        self.pass_threads, self.thread_choices = PassThreads(number, 16), (number,)

    def run(self, rows: int = 1) -> float:
        threads = self.pass_threads.of(rows) or self.thread_choices[0]
        self.tried.add(threads)
        seconds = self.seconds(threads, rows)
        self.spent += seconds
        return seconds

    def choose(self) -> PassThreads:
        found = choose_threads(self, self.run, self.run, 16)
        assert found == self.pass_threads
        return found


def waiting(threads: int, rows: int) -> float:
    """Seconds of a small model's pass: what is computed is shared, what threads wait for each other grows with them."""
    return 2e-3 * (1 + 0.3 * rows) / min(threads, 40) + 0.6e-3 * threads / 56


def test_the_fastest_number_is_kept() -> None:
    """Down to where it becomes slower again and no further, and for no more rows than that it is faster for."""
    model = Timed(waiting)
    assert min((waiting(threads, 1), threads) for threads in (56, 28, 14, 7, 3, 1))[1] == 14
    assert model.choose().threads == 14
    assert model.tried == {56, 28, 14, 7}
    rows = model.pass_threads.rows
    assert rows in (2, 4, 8)
    assert waiting(14, rows) < waiting(56, rows)
    assert waiting(14, 2 * rows) > waiting(56, 2 * rows)


def test_many_rows_have_all_threads() -> None:
    """The number for one row would make a pass of many rows, as a prompt's, several times as slow."""
    threads = PassThreads(14, 4)
    assert [threads.of(rows) for rows in (1, 4, 5, 500)] == [14, 14, 0, 0]
    assert ALL_THREADS.of(1) == 0


def test_one_node_is_tried() -> None:
    """Half of the threads of three nodes are on two of them; a third waits for nobody across."""
    model = Timed(lambda threads, rows: 1e-3 if threads <= 16 else 1.5e-3, (48, 24, 16, 12, 6, 3, 1))
    assert model.choose() == PassThreads(16, 16)


@pytest.mark.parametrize("gain", [0.0, 0.02, -0.1])
def test_all_are_kept_unless_fewer_are_clearly_faster(gain: float) -> None:
    """2 % less is no reason; each number that is as fast as the one before leads to the next."""
    model = Timed(lambda threads, rows: 1e-3 * (1 - gain if threads == 28 else 1.0 if threads == 56 else 1.1))
    assert model.choose() == ALL_THREADS
    assert 1 not in model.tried


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_reason(seed: int) -> None:
    """Passes of one length that others on the machine slow down at random, up to three times as long."""
    generator = random.Random(seed)

    def noisy(threads: int, rows: int) -> float:
        return 1e-3 * (generator.uniform(1, 3) if generator.random() < 0.2 else generator.uniform(1, 1.04))

    assert Timed(noisy).choose() == ALL_THREADS


def test_a_clear_gain_is_seen_through_noise() -> None:
    """A pass in five is disturbed: the medians tell."""
    generator = random.Random(3)
    model = Timed(lambda threads, rows: waiting(threads, rows) * (2.0 if generator.random() < 0.2 else 1.0))
    assert model.choose().threads in (14, 28)


def test_large_models_are_not_measured() -> None:
    """Several numbers of threads for passes of a second each would make calibration take a minute."""
    large = Timed(lambda threads, rows: 4 * LONG_STEP)
    assert large.choose() == ALL_THREADS
    assert large.spent <= 8 * LONG_STEP
    small = Timed(lambda threads, rows: 0.9 * LONG_STEP / (1 + (threads < 20)))
    assert small.choose().threads == 14
    assert small.spent < 0.5


def test_a_given_number_stays() -> None:
    """--draft-threads is not measured away, nor replaced by what costs were once kept with."""
    model = Timed(waiting)
    model.use_threads(3)
    assert model.choose() == PassThreads(3, 16)
    assert model.spent == 0
    drafting = Drafting(100, lambda: Costs((1.0,), threads=PassThreads(14, 4)), model)  # type: ignore[arg-type]
    assert drafting.costs.threads == PassThreads(14, 4)
    assert model.pass_threads == PassThreads(3, 16)


class File:
    def __init__(self) -> None:
        self.content: Any = None

    def read(self) -> Any:
        return self.content

    def write(self, content: Any) -> None:
        self.content = content


def test_kept_for_later_processes() -> None:
    """A process that finds costs measures nothing: its assistant must run as they were measured."""
    costs, file = Costs((0.1, 0.2), 0.01, (0.01,), 0.01, threads=PassThreads(14, 4)), File()
    clock = itertools.count().__next__  # as if measuring took a second
    StoredCosts(file, clock).costs(lambda: costs)
    file.content["threads"] = list(file.content["threads"])  # as JSON has it
    assert StoredCosts(file, clock).costs(pytest.fail) == costs
    model = Timed(waiting)
    drafting = Drafting(100, lambda: StoredCosts(file, clock).costs(pytest.fail), model)  # type: ignore[arg-type]
    assert drafting.costs == costs
    assert model.pass_threads == PassThreads(14, 4)
    assert LiveCosts(costs).costs.threads == PassThreads(14, 4)
    assert describe(costs).endswith("a draft step 10.0 ms by 14 threads")
    for wrong in ([-1, 4], [14], [14, 4, 4], "fourteen", None, [1 << 20, 4]):
        file.content = asdict(costs) | {"threads": wrong}
        assert StoredCosts(file, clock).costs(lambda: Costs((9.0,))).verify == (9.0,)


def test_a_calibration_that_ends_early_leaves_the_costs_and_their_threads() -> None:
    """Memory is gone in the middle of it: the number that was being tried is not the one to go on with."""
    costs, model = Costs((0.1, 0.2), 0.01, (0.01,), 0.01, threads=PassThreads(14, 4)), Timed(waiting)
    file = File()
    file.content = asdict(costs) | {"took_s": 0.0, "doubt_s": 1.0}

    def measure() -> Costs:
        model.pass_threads = PassThreads(1, 1)
        raise NoBlocksError(1, 0, 10)

    kept = StoredCosts(file, lambda: 0.0)
    drafting = Drafting(100, lambda: kept.costs(measure), model)  # type: ignore[arg-type]
    assert drafting.costs == costs
    assert model.pass_threads == costs.threads


@pytest.mark.skipif(not HAS_NATIVE, reason="the native core's threads")
def test_no_token_depends_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny pair with each number of threads of a pool of three, and with what calibration finds."""
    from native_models import pool

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("ipex_assist.executors.native.loading.planned_pool", lambda: pool(3))
    folder = str(checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path / "model"))
    texts = []
    for number in (None, 1, 2, 3):
        model: Any = ipex_assist.load(folder, "self", executor="native", precision="fp32", draft_threads=number)
        if number is not None:
            assert (model.assistant.pass_threads, model.draft_threads) == (PassThreads(number, 16), number)
        else:
            assert model.drafting.costs.threads == model.assistant.pass_threads
            assert model.draft_threads in (1, 3)
        texts.append(model.generate("the cat", max_new_tokens=24, num_assistant_tokens=3))
    assert all(text.tokens == texts[0].tokens and text.draft.drafted for text in texts)
    with pytest.raises(UsageError, match="--draft-threads 4: there are 3 threads"):
        ipex_assist.load(folder, "self", executor="native", draft_threads=4)


def test_costs_may_lack_them() -> None:
    """Costs of a source without a model, and those that tests and tools write, are of all threads."""
    assert replace(Costs((1.0,)), draft=1.0).threads == ALL_THREADS
