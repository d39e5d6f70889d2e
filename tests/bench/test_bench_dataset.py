"""Records that survive, and intervals that cover."""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pytest

from ipex_assist.bench import dataset
from ipex_assist.bench.dataset import Records, confidence_interval, summaries
from ipex_assist.bench.measure import Contender, Row, Sample
from ipex_assist.env.errors import IpexAssistError, UsageError

pytestmark = pytest.mark.one_stack

SETTINGS = {"model": "m", "seed": 0, "acceptance": [0.8]}


def row(speedup: float, example: str = "1", kind: str = "", contender: Contender | None = None) -> Row:
    """Return an assisted row of one turn."""
    contender = contender or Contender(3)
    sample = Sample(2.0, 0.5, 1.5, 16, drafted=10, accepted=6, rounds=9)
    return Row(example, kind, contender, "int4", "bf16", 12, [sample], [speedup], [speedup * 0.9], True)


def test_records_come_back(tmp_path: Path) -> None:
    """Every figure and every kind of contender is read as it was written."""
    path = tmp_path / "new" / "r.jsonl"
    rows = [row(1.5), row(2.5, contender=Contender("adaptive", 0.8))]
    records = Records(path, SETTINGS, resume=False)
    records.add("a", rows)
    records.close()
    again = Records(path, SETTINGS, resume=True)
    assert again.done == {"a": rows}
    again.add("b", [row(3.0)])
    again.close()
    assert set(Records(path, SETTINGS, resume=True).done) == {"a", "b"}
    assert json.loads(path.read_text().splitlines()[1])["rows"][1]["simulated"] is True


def test_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    """What a kill leaves half written is measured again, and does not run into the next record."""
    path = tmp_path / "r.jsonl"
    records = Records(path, SETTINGS, resume=False)
    records.add("a", [row(1.5)])
    records.add("b", [row(2.5)])
    records.close()
    whole = path.read_bytes()
    for cut in (1, 40):
        path.write_bytes(whole[:-cut])
        again = Records(path, SETTINGS, resume=True)
        assert set(again.done) == {"a"}
        again.add("b", [row(2.5)])
        again.close()
        assert path.read_bytes() == whole
    path.write_bytes(b'{"settin')  # killed in the very first line
    Records(path, SETTINGS, resume=True).close()
    assert json.loads(path.read_text()) == {"settings": SETTINGS}


def test_other_settings_are_refused(tmp_path: Path) -> None:
    """Figures of two seeds or models must not end in one mean."""
    path = tmp_path / "r.jsonl"
    Records(path, SETTINGS, resume=False).close()
    with pytest.raises(UsageError, match=r"other settings \(seed; seed was 0 and is 1\)"):
        Records(path, {**SETTINGS, "seed": 1}, resume=True)
    with pytest.raises(UsageError, match=r"the file exists; --resume"):
        Records(path, SETTINGS, resume=False)


def test_more_samples_are_no_other_settings(tmp_path: Path) -> None:
    """The average gets better with more prompts: what was measured of fewer must not be lost. 0 stands for all."""
    path = tmp_path / "r.jsonl"
    Records(path, {**SETTINGS, "samples": 4}, resume=False).close()
    for samples in (4, 5, 0):
        Records(path, {**SETTINGS, "samples": samples}, resume=True).close()
    with pytest.raises(UsageError, match=r"other settings \(samples; samples was 4 and is 3\)"):
        Records(path, {**SETTINGS, "samples": 3}, resume=True)
    with pytest.raises(UsageError, match=r"other settings \(seed; seed was 0 and is 1\)"):
        Records(path, {**SETTINGS, "samples": 5, "seed": 1}, resume=True)
    every = tmp_path / "all.jsonl"
    Records(every, {**SETTINGS, "samples": 0}, resume=False).close()
    with pytest.raises(UsageError, match="samples was 0 and is 9"):
        Records(every, {**SETTINGS, "samples": 9}, resume=True)


@pytest.mark.parametrize("line", ["nonsense", "{}", '{"key": "a", "rows": [{"example": 1}]}', "[]"])
def test_files_of_others_are_refused(tmp_path: Path, line: str) -> None:
    """Appending to somebody's data would spoil it."""
    path = tmp_path / "r.jsonl"
    first = json.dumps({"settings": SETTINGS})
    path.write_text(f"{first}\n{line}\n")
    with pytest.raises(UsageError, match="line 2 is no record"):
        Records(path, SETTINGS, resume=True)
    path.write_text(line + "\n")
    with pytest.raises(UsageError, match="line 1 is no record"):
        Records(path, SETTINGS, resume=True)


def test_a_folder_that_cannot_be_written() -> None:
    """The error comes before anything is measured."""
    with pytest.raises(IpexAssistError, match="cannot keep records in /proc/none/r"):
        Records(Path("/proc/none/r"), SETTINGS, resume=False)


def test_intervals_cover_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200 sets of 30 skewed values, about 95 % of the intervals must hold the true mean (88 % is 4.5 sigma)."""
    monkeypatch.setattr(dataset, "RESAMPLES", 1000)  # enough for the ends of an interval, in a tenth of the time
    generator = numpy.random.default_rng(1)
    hits = 0
    for seed in range(200):
        values = generator.gamma(4.0, 0.5, 30).tolist()
        interval = confidence_interval(values, seed)
        assert interval is not None
        hits += interval[0] <= 2.0 <= interval[1]
    assert 176 <= hits <= 199


def test_intervals_of_few_values() -> None:
    """One value says nothing about a mean; equal ones leave no doubt; the same seed gives the same interval."""
    assert confidence_interval([2.0], 0) is None
    assert confidence_interval([2.0, 2.0, 2.0], 0) == (2.0, 2.0)
    assert confidence_interval([1.0, 2.0, 4.0], 5) == confidence_interval([1.0, 2.0, 4.0], 5)


def test_summaries_by_hand() -> None:
    """Means of prompts, counts of the slower ones, kinds by themselves, contenders apart; plain rows take no part."""
    rows = [row(1.0, "1", "code"), row(3.0, "2", "code"), row(0.5, "3", "chat")]
    rows += [row(4.0, "1", "code", Contender("adaptive", 0.8)), row(9.0, "1", "code", Contender())]
    first, second = summaries(rows, 0)
    assert first["contender"] == "assisted, k = 3"
    assert (first["prompts"], first["mean_speedup"], first["slower_than_plain"]) == (3, 1.5, 1)
    assert (first["min_speedup"], first["median_speedup"], first["max_speedup"]) == (0.5, 1.0, 3.0)
    assert first["mean_total_speedup"] == pytest.approx(1.35)
    assert first["acceptance_rate"] == pytest.approx(0.6)
    assert first["interval_95"][0] < 1.5 < first["interval_95"][1]
    assert {kind: of["mean_speedup"] for kind, of in first["kinds"].items()} == {"code": 2.0, "chat": 0.5}
    assert (first["simulated"], second["simulated"]) == (False, True)
    assert second["interval_95"] is None
