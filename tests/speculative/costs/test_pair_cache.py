"""What is kept of a pair: found again, measured anew where it must be, and acceptance from one process to the next."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_files
import pytest
from planned import PlannedText, state_of

import ipex_assist
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.speculative.account import KEPT_PASSES
from ipex_assist.speculative.costs import calibration, pair_cache, stored_costs
from ipex_assist.speculative.costs.acceptance import EDGES, Acceptance
from ipex_assist.speculative.costs.pair_cache import PairCache, pair_facts
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.planned_assistant import KnownAssistant
from ipex_assist.speculative.planner import Planner
from ipex_assist.speculative.schedule import ALL_UNREAD, RoundState

PAIR = {"target": "large", "assistant": "small"}
COSTS = Costs((0.01, 0.011), 0.002, (0.002, 0.0021), 0.0005)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where calibrations are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ipex-assist" / "calibration"


class Measure:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Costs:
        self.calls += 1
        return COSTS


def test_kept_and_found_again(cache: Path) -> None:
    """The second load measures nothing, unless told to; other facts do."""
    measure = Measure()
    for _ in range(3):
        assert PairCache(PAIR, {"threads": 2}).costs(measure) == COSTS
    assert measure.calls == 1
    PairCache(PAIR, {"threads": 4}).costs(measure)
    PairCache(PAIR, {"threads": 2}, refresh=True).costs(measure)
    assert measure.calls == 3
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace("0.011", "-1.0"),
        lambda text: text.replace("0.011", "1" * 400),
        lambda text: text.replace("0.0021", "NaN"),
        lambda text: text.replace("0.0005", "-0.1"),
        lambda text: "[" * 100_000,
        lambda text: text.replace('"threads": 2', '"threads": 3'),
        lambda text: json.dumps(json.loads(text) | {"costs": {"verify": [], "rows": [], "draft": 0, "read": 0}}),
    ],
)
def test_a_damaged_file_is_measured_again(cache: Path, damage: Callable[[str], str]) -> None:
    """Cut off, of another kind, with impossible numbers, of another pair: replaced without a word."""
    measure = Measure()
    PairCache(PAIR, {"threads": 2}).costs(measure)
    (file,) = cache.iterdir()
    file.write_text(damage(file.read_text()))
    assert PairCache(PAIR, {"threads": 2}).costs(measure) == COSTS
    assert PairCache(PAIR, {"threads": 2}).costs(measure) == COSTS
    assert measure.calls == 2


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found out is used all the same. A file stands where the folder should be, which stops root, too."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert PairCache(PAIR, {}).costs(Measure()) == COSTS


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a number for a user: nothing is kept, and nothing fails."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    kept = PairCache(PAIR, {}, refresh=True)
    assert kept.costs(Measure()) == COSTS
    kept.keep_acceptance(learnt(2), learnt(2))
    assert PairCache(PAIR, {}).model_acceptance.seen == 0


def test_a_kill_leaves_no_half_written_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while it is written: what was kept before is still whole, and nothing lies beside it."""
    PairCache(PAIR, {}).keep_acceptance(learnt(2), learnt(2))

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pair_cache.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        PairCache(PAIR, {}).keep_acceptance(learnt(0), learnt(0))
    assert len(list(cache.iterdir())) == 1
    assert PairCache(PAIR, {}).model_acceptance.as_counts() == learnt(2).as_counts()


def test_facts_change_with_the_checkpoint(tmp_path: Path) -> None:
    """Another file under the same name is another model."""
    folder = checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path / "model")

    def facts() -> dict[str, Any]:
        checkpoint = open_checkpoint(str(folder))
        return pair_facts(checkpoint, "bf16", None, None, executor="torch", threads=2)

    before = facts()
    assert before == facts()
    file = next(folder.glob("*.safetensors"))
    file.write_bytes(file.read_bytes() + b"\0")
    assert facts() != before


def learnt(right: int, rounds: int = 30) -> Acceptance:
    """Return the acceptance of a pair that has `right` of two drafted tokens accepted every round."""
    acceptance = Acceptance()
    for _ in range(rounds):
        acceptance.observe([0.9, 0.9], 2, right)
    return acceptance


def test_acceptance_goes_to_the_next_process(cache: Path) -> None:
    """All counts, by confidence, to any machine and number of threads; another pair knows nothing of it."""
    PairCache(PAIR, {"threads": 2}).keep_acceptance(learnt(2), learnt(0))
    for threads in (2, 4):
        known = PairCache(PAIR, {"threads": threads})
        assert known.model_acceptance.as_counts() == learnt(2).as_counts()
        assert known.lookup_acceptance.as_counts() == learnt(0).as_counts()
    assert PairCache({**PAIR, "assistant": "other"}, {"threads": 2}).model_acceptance.seen == 0
    assert len(list(cache.iterdir())) == 1


def test_a_new_beginning_lasts(cache: Path) -> None:
    """Whoever asked for it, later processes find nothing either, though this one measured nothing."""
    kept = PairCache(PAIR, {"threads": 2})
    kept.costs(Measure())
    kept.keep_acceptance(learnt(2), learnt(2))
    assert PairCache(PAIR, {"threads": 2}, refresh=True).model_acceptance.seen == 0
    assert list(cache.iterdir()) == []


def test_texts_in_a_row_write_now_and_then(cache: Path) -> None:
    """A batch of short texts in a home folder on the network must not wait for it a thousand times."""
    now = [0.0]
    kept = PairCache(PAIR, {}, clock=lambda: now[0])
    for rounds, written in ((10, 10), (20, 10), (30, 30)):
        kept.keep_acceptance(learnt(2, rounds), Acceptance())
        assert PairCache(PAIR, {}).model_acceptance.as_counts() == learnt(2, written).as_counts()
        now[0] += 0.6 * stored_costs.WRITE_EVERY


@pytest.mark.parametrize(
    "counts",
    [
        None,
        {"first": {"drafted": [1.0], "accepted": [1.0]}},
        {key: {"drafted": [1.0] * len(EDGES), "accepted": [2.0] * len(EDGES)} for key in ("first", "later")},
        {key: {"drafted": [float("nan")] * len(EDGES), "accepted": [0.0] * len(EDGES)} for key in ("first", "later")},
        {key: {"drafted": [1e308] * len(EDGES), "accepted": [1e308] * len(EDGES)} for key in ("first", "later")},
        {key: {"drafted": [10**400] * len(EDGES), "accepted": [0.0] * len(EDGES)} for key in ("first", "later")},
        {key: {"drafted": ["x"] * len(EDGES), "accepted": [0.0] * len(EDGES)} for key in ("first", "later")},
        {key: {"drafted": [1.0, 2.0], "accepted": [1.0, 2.0]} for key in ("first", "later")},
    ],
)
def test_damaged_counts_are_no_counts(cache: Path, counts: Any) -> None:
    """A file of another version, or edited by hand: what it says of models is unknown, of copies it is known."""
    PairCache(PAIR, {}).keep_acceptance(learnt(2), learnt(2))
    (file,) = cache.iterdir()
    content = json.loads(file.read_text())
    content["acceptance"]["models"] = counts
    file.write_text(json.dumps(content))
    again = PairCache(PAIR, {})
    assert again.model_acceptance.seen == 0
    assert again.lookup_acceptance.seen > 16


def test_a_known_pair_starts_trusted_and_one_that_was_wrong_does_not() -> None:
    """Without this every process would begin with short drafts from the end of the prompt."""
    costs = Costs(tuple(0.05 + 0.001 * rows for rows in range(1, 17)), 0.005, tuple([0.006] * 16), 0.002)
    plans = {}
    for right in (0, 2):
        known = Acceptance.from_counts(learnt(right).as_counts())
        planner = Planner([KnownAssistant(costs, known)], gained_passes=KEPT_PASSES if right else 0.0)
        plans[right] = PlannedText(costs, 128, planner=planner).plan(pair_situation())
    assert plans[2].context == ALL_UNREAD
    assert plans[2].k >= 1
    assert plans[0].k <= 1
    assert plans[0].context != ALL_UNREAD


def pair_situation() -> RoundState:
    """Behind the first token of a text with a prompt of 200."""
    return state_of(201, 127, 201)


@pytest.mark.parametrize("ended", ["at its limit", "by its reader", "interrupted"])
def test_a_generation_hands_on_what_it_learnt(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    """However the text ends, and only where the adaptive schedule drafted."""
    cheap = Costs((1e-6,) * 16, 1e-9, (1e-9,) * 16, 1e-10)
    monkeypatch.setattr(calibration, "calibrate", lambda *_, **__: cheap)
    folder = checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path / "model")

    def load(**options: Any) -> Any:
        return ipex_assist.load(str(folder), str(folder), executor="torch", precision="fp32", **options)

    model = load()
    model.generate("the cat", max_new_tokens=24, num_assistant_tokens=3)
    model.generate("the cat", max_new_tokens=24, assisted=False)
    assert load().drafting.model_acceptance.seen == 0
    generation = model.stream("the cat", max_new_tokens=24)
    for number, _ in enumerate(generation):
        if number == 6 and ended == "interrupted":
            generation.interrupt()
        if number == 6 and ended == "by its reader":
            break
    if ended == "by its reader":
        del generation
    assert load().drafting.model_acceptance.as_counts() == model.drafting.model_acceptance.as_counts()
    assert model.drafting.model_acceptance.seen > 0
    assert load().drafting.costs == model.drafting.costs != cheap
    load(calibrate=False, recalibrate=True)
    assert load().drafting.model_acceptance.seen == 0


def test_interrupting_a_round_that_runs(tmp_path: Path) -> None:
    """From a signal's handler, in the middle of a pass: the rounds cannot be ended there, and that is no error."""
    folder = checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path / "model")
    model: Any = ipex_assist.load(str(folder), None, executor="torch", precision="fp32")
    generation = model.stream("the cat", max_new_tokens=24)
    forward = model.target.forward

    def interrupted(*args: Any, **options: Any) -> Any:
        generation.interrupt()
        return forward(*args, **options)

    model.target.forward = interrupted
    assert list(generation) == []
    assert generation.result().stop_reason == "interrupted"


@pytest.mark.parametrize("repeats", [1100, 1e6])
def test_more_calibrations_than_a_float_can_count(cache: Path, repeats: float) -> None:
    """2 to their number is the price of the next one; a file of somebody's hand made it an OverflowError."""
    PairCache(PAIR, {}).costs(Measure())
    file = next(cache.rglob("*.costs.json"))
    content = json.loads(file.read_text())
    content["costs"]["repeats"] = repeats
    file.write_text(json.dumps(content))
    assert PairCache(PAIR, {}).costs(Measure()) == COSTS


@pytest.mark.parametrize("below", ["", "ipex-assist"])
def test_a_cache_folder_that_is_a_file(
    below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is kept, which is said, and nothing fails."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "cache" / below
    file.parent.mkdir(exist_ok=True)
    file.write_text("")
    cache = PairCache({"pair": 1}, {"machine": 1}, refresh=True)
    assert cache.costs(lambda: Costs((0.1,))) == Costs((0.1,))
    cache.keep_acceptance(Acceptance(), Acceptance())
    assert "costs of this pair are not kept" in caplog.text
    assert "XDG_CACHE_HOME must be a folder" in caplog.text
