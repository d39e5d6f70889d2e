"""What is kept of a pair: found again, measured anew where it must be, and acceptance from one process to the next."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoints
import pytest

import ipex_assist
from ipex_assist import calibration, pair_cache
from ipex_assist.acceptance import EDGES, Acceptance
from ipex_assist.adaptive import Adaptive
from ipex_assist.checkpoint import open_checkpoint
from ipex_assist.pair_cache import PairCache, pair_facts
from ipex_assist.schedule import Costs, Situation

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
        assert PairCache({"threads": 2}).costs(measure) == COSTS
    assert measure.calls == 1
    PairCache({"threads": 4}).costs(measure)
    PairCache({"threads": 2}, anew=True).costs(measure)
    assert measure.calls == 3
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace("0.011", "-1.0"),
        lambda text: text.replace('"threads": 2', '"threads": 3'),
        lambda text: json.dumps({"facts": {"threads": 2}, "costs": {"verify": []}}),
    ],
)
def test_a_damaged_file_is_measured_again(cache: Path, damage: Callable[[str], str]) -> None:
    """Cut off, of another kind, with impossible numbers, of another pair: replaced without a word."""
    measure = Measure()
    PairCache({"threads": 2}).costs(measure)
    (file,) = cache.iterdir()
    file.write_text(damage(file.read_text()))
    assert PairCache({"threads": 2}).costs(measure) == COSTS
    assert PairCache({"threads": 2}).costs(measure) == COSTS
    assert measure.calls == 2


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found out is used all the same. A file stands where the folder should be, which stops root, too."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert PairCache({}).costs(Measure()) == COSTS


def test_facts_change_with_the_checkpoint(tmp_path: Path) -> None:
    """Another file under the same name is another model."""
    folder = checkpoints.save(checkpoints.tiny_model("llama"), tmp_path / "model")

    def facts() -> dict[str, Any]:
        checkpoint = open_checkpoint(str(folder))
        return pair_facts(checkpoint, "bf16", None, None, executor="torch", threads=2)

    before = facts()
    assert before == facts()
    file = next(folder.glob("*.safetensors"))
    file.write_bytes(file.read_bytes() + b"\0")
    assert facts() != before


def learnt(right: int, rounds: int = 30) -> Acceptance:
    """Of a pair that has `right` of two drafted tokens accepted every round."""
    acceptance = Acceptance()
    for _ in range(rounds):
        acceptance.observe([0.9, 0.9], 2, right)
    return acceptance


def test_acceptance_goes_to_the_next_process(cache: Path) -> None:
    """All counts, by confidence; a pair with other facts, and one whose costs were never kept, know nothing of it."""
    first = PairCache({"threads": 2})
    first.costs(Measure())
    first.keep_acceptance(learnt(2), learnt(0))
    second = PairCache({"threads": 2})
    assert second.models.as_counts() == learnt(2).as_counts()
    assert second.copies.as_counts() == learnt(0).as_counts()
    assert second.models.seen > 16
    assert PairCache({"threads": 4}).models.seen == 0
    assert PairCache({"threads": 2}, anew=True).models.seen == 0
    PairCache({"threads": 8}).keep_acceptance(learnt(2), learnt(2))
    assert len(list(cache.iterdir())) == 1


def test_texts_in_a_row_write_now_and_then(cache: Path) -> None:
    """A batch of short texts in a home folder on the network must not wait for it a thousand times."""
    now = [0.0]
    kept = PairCache({}, clock=lambda: now[0])
    kept.costs(Measure())
    for rounds, written in ((10, 10), (20, 10), (30, 30)):
        kept.keep_acceptance(learnt(2, rounds), Acceptance())
        assert PairCache({}).models.as_counts() == learnt(2, written).as_counts()
        now[0] += 0.6 * pair_cache.WRITE_EVERY


@pytest.mark.parametrize(
    "counts",
    [
        None,
        {"first": {"drafted": [1.0], "accepted": [1.0]}},
        {key: {"drafted": [1.0] * len(EDGES), "accepted": [2.0] * len(EDGES)} for key in ("first", "later")},
        {key: {"drafted": [float("nan")] * len(EDGES), "accepted": [0.0] * len(EDGES)} for key in ("first", "later")},
        {key: {"drafted": ["x"] * len(EDGES), "accepted": [0.0] * len(EDGES)} for key in ("first", "later")},
        {key: {"drafted": [1.0, 2.0], "accepted": [1.0, 2.0]} for key in ("first", "later")},
    ],
)
def test_damaged_counts_are_no_counts(cache: Path, counts: Any) -> None:
    """A file of another version, or edited by hand: the pair is unknown, its costs are not."""
    kept = PairCache({})
    kept.costs(Measure())
    kept.keep_acceptance(learnt(2), learnt(2))
    content = json.loads(kept.path.read_text())
    kept.path.write_text(json.dumps(content | {"models": counts}))
    again, measure = PairCache({}), Measure()
    assert again.costs(measure) == COSTS
    assert measure.calls == 0
    assert again.models.seen == 0
    assert again.copies.seen > 16


def test_a_known_pair_starts_trusted_and_one_that_was_wrong_does_not() -> None:
    """Without this every process would begin with short drafts from the end of the prompt."""
    costs = Costs(tuple(0.05 + 0.001 * rows for rows in range(1, 17)), 0.005, tuple([0.006] * 16), 0.002)
    plans = {}
    for right in (0, 2):
        known = Acceptance.from_counts(learnt(right).as_counts())
        known.next_text()
        plans[right] = Adaptive(costs, 128, models=known).plan(pair_situation())
    assert plans[2].context is None
    assert plans[2].k >= 3
    assert plans[0].k <= 1
    assert plans[0].context is not None


def pair_situation() -> Situation:
    """Behind the first token of a text with a prompt of 250."""
    return Situation(251, 127, 251)


@pytest.mark.parametrize("ended", ["at its limit", "by its reader", "interrupted"])
def test_a_generation_hands_on_what_it_learnt(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, ended: str
) -> None:
    """However the text ends, and only where the adaptive schedule drafted."""
    cheap = Costs((1e-3,) * 16, 1e-6, (1e-6,) * 16, 1e-7)
    monkeypatch.setattr(calibration, "calibrate", lambda *_, **__: cheap)
    folder = checkpoints.save(checkpoints.tiny_model("llama"), tmp_path / "model")

    def load() -> Any:
        return ipex_assist.load(str(folder), str(folder), executor="torch", precision="fp32")

    model = load()
    model.generate("the cat", max_new_tokens=24, num_assistant_tokens=3)
    model.generate("the cat", max_new_tokens=24, assisted=False)
    assert load().drafting.models.seen == 0
    generation = model.stream("the cat", max_new_tokens=24)
    for number, _ in enumerate(generation):
        if number == 6 and ended == "interrupted":
            generation.interrupt()
        if number == 6 and ended == "by its reader":
            break
    del generation
    assert load().drafting.models.as_counts() == model.drafting.models.as_counts()
    assert model.drafting.models.seen > 0
