"""Reports: the published columns, the same figures in every form, and simulations that cannot be overlooked."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import subprocess
from pathlib import Path

import pytest

from ipex_assist.bench import plots
from ipex_assist.bench import report as report_module
from ipex_assist.bench.measure import Contender, Row, Sample
from ipex_assist.bench.report import COLUMNS, BenchReport, render

pytestmark = pytest.mark.one_stack

PUBLISHED = (
    "Example#, Prompt Length (tokens), New Tokens Generated, Total Time (s), Prefill Phase (ms), Time/Token (ms), "
    "Tokens/Sec"
)
SAMPLES = [
    Sample(2.5, 0.5, 2.0, 21, 30, 12, 8, 0.4, 1.5, 0.1, 20.0),
    Sample(3.5, 0.5, 3.0, 21, 30, 12, 8, 0.4, 2.5, 0.1, 22.0),
    Sample(1.5, 0.5, 1.0, 21, 30, 12, 8, 0.4, 0.5, 0.1, 24.0),
]
PLAIN = [Sample(4.5, 0.5, 4.0, 21, verify_s=3.9, read_gb_per_s=25.0)] * 3


def rows(contender: Contender, example: str = "1", prompt: int = 256, kind: str = "") -> list[Row]:
    """A plain row and an assisted one, three turns each."""
    assisted = Row(example, kind, contender, "int4", "bf16", prompt, SAMPLES, [2.0, 4 / 3, 4.0], [1.8, 1.3, 3.0], True)
    return [Row(example, kind, Contender(), "int4", "bf16", prompt, PLAIN), assisted]


def report(*members: Row, task: str = "benchmark", target: str = "t") -> BenchReport:
    """Return the report of a pair."""
    made = BenchReport(task, "ipex-assist bench -m t", list(members), target=target, assistant="a", executor="native")
    made.machine_gb_per_s = 30.0
    made.environment = {"isa": {"model": "Xeon"}, "threads": 2, "cpus": "0-1", "versions": {"torch": "2.13"}}
    return made


def table(text: str, heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    lines = text[text.index(heading) :].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    end = next((i for i, line in enumerate(lines[start:], start) if not line.startswith("|")), len(lines))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:end]]


def repository(place: Path, setup: str | None, package: str) -> Path:
    """A repository with one commit, and in it the folder of the package with a module; returns that."""
    module = place / package / "ipex_assist" / "bench" / "report.py"
    module.parent.mkdir(parents=True)
    module.touch()
    if setup is not None:
        (place / package / "setup.py").write_text(setup)
    git = ["git", "-C", str(place), "-c", "user.name=x", "-c", "user.email=x@x"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    return module


@pytest.mark.parametrize(
    ("setup", "package", "ours"),
    [
        ('setup(name="ipex-assist")', ".", True),
        (None, ".venv/lib/python3.11/site-packages", False),
        ('setup(name="theirs")', ".", False),
        ('setup(name="ipex-assist")', "unpacked", False),
    ],
)
def test_the_commit_is_this_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setup: str | None, package: str, ours: bool
) -> None:
    """Catches the commit of a repository of somebody else's, in which the package is installed or unpacked."""
    monkeypatch.setattr(report_module, "__file__", str(repository(tmp_path, setup, package)))
    head = ["git", "-C", str(tmp_path), "describe", "--always"]
    commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    assert BenchReport("decode", "bench").commit == (commit if ours else None)


def test_models_have_short_names_in_tables_and_whole_ones_in_json() -> None:
    """A path of 80 characters led the table; whoever reads JSON needs it."""
    path = "/home/somebody/models/Qwen2.5-7B-Instruct"
    made = report(*rows(Contender(4)), target=path)
    made.assistant = "lookup+Qwen/Qwen2.5-0.5B-Instruct"
    line = "Target Qwen2.5-7B-Instruct, assistant lookup+Qwen2.5-0.5B-Instruct, native."
    assert line in render(made, "markdown").splitlines()
    assert path in render(made, "json")


def test_markdown_has_the_published_columns_first() -> None:
    """Their names and order are the published ones, and the medians those computed by hand."""
    text = render(report(*rows(Contender(4)), *rows(Contender(4), "2", 512)), "markdown")
    assert ", ".join(COLUMNS) == PUBLISHED
    cells = table(text, "## int4 target, bf16 draft: assisted, k = 4")
    assert cells[0][:7] == list(COLUMNS)
    assert cells[2][:7] == ["1", "256", "21", "2.500", "500.0", "100.00", "10.00"]
    assert cells[2][7:] == ["6.67–20.00", "2.00", "1.33–4.00", "40%", "2.50", "22.0", "yes"]
    assert [line[1] for line in cells[2:]] == ["256", "512"]
    plain = table(text, "## int4 target, beside bf16 draft: plain")
    assert plain[2] == ["1", "256", "21", "4.500", "500.0", "200.00", "5.00", "5.00–5.00", "25.0"]
    assert "Mean ratio: 2.00" in text
    assert "2 threads on CPUs 0-1 that read 30.0 GB/s" in text
    assert "    ipex-assist bench -m t\n" in text


def test_csv_has_the_same_figures() -> None:
    """One table that a spreadsheet reads, whatever the task."""
    lines = list(csv.DictReader(io.StringIO(render(report(*rows(Contender(4))), "csv"))))
    assert list(lines[0])[:7] == list(COLUMNS)
    plain, assisted = lines
    assert (plain["Mode"], plain["Ratio"], plain["Equals Plain"]) == ("plain", "", "")
    assert (assisted["Mode"], assisted["Tokens/Sec"], assisted["Ratio"]) == ("assisted, k = 4", "10.00", "2.0000")
    assert (assisted["Ratio Min"], assisted["Ratio Max"], assisted["Repeats"]) == ("1.3333", "4.0000", "3")
    assert (assisted["Simulated Acceptance"], assisted["Random Weights"]) == ("", "no")


def test_csv_cells_without_a_figure_are_empty() -> None:
    """A dash is text, which turns a column of numbers into one of words."""
    short = Row("1", "", Contender(4), "int4", "bf16", 8, [Sample(0.5, 0.5, 0.0, 1)])  # one token: no speed
    text = render(report(short), "csv")
    assert "–" not in text
    (line,) = csv.DictReader(io.StringIO(text))
    names = ("Time/Token (ms)", "Tokens/Sec", "Tokens/Sec Min", "Ratio", "Total Ratio", "Accepted", "Read GB/s")
    assert {line[name] for name in names} == {""}
    assert line["Total Time (s)"] == "0.500"
    assert "| – " in render(report(short), "markdown")


def test_json_has_every_sample() -> None:
    """The JSON is one line, with medians beside the samples."""
    text = render(report(*rows(Contender(4))), "json")
    assert "\n" not in text
    content = json.loads(text)
    assisted = content["rows"][1]
    assert [sample["decode_s"] for sample in assisted["samples"]] == [2.0, 3.0, 1.0]
    assert assisted["median"] == {"total_s": 2.5, "prefill_s": 0.5, "token_s": 0.1, "speedup": 2.0}
    assert (assisted["acceptance_rate"], assisted["tokens_per_pass"]) == (0.4, 2.5)
    assert (content["simulated"], content["random_weights"], content["warnings"]) == (False, False, [])


@pytest.mark.parametrize("task", ["benchmark", "dataset"])
def test_a_simulation_is_called_one_in_every_form(task: str) -> None:
    """Figures of a simulation must never pass for measured acceptance, nor random weights for a model."""
    simulated = report(*rows(Contender("adaptive", 0.8)), task=task, target="t (random weights)")
    text = render(simulated, "markdown")
    assert "**Note:** the acceptance is simulated" in text
    assert "**Note:** random weights" in text
    assert "assisted, adaptive k, simulated acceptance 0.8" in text
    content = json.loads(render(simulated, "json"))
    assert content["simulated"] is content["random_weights"] is content["rows"][1]["simulated"] is True
    assert "simulated acceptance 0.8" in content["rows"][1]["label"]
    line = list(csv.DictReader(io.StringIO(render(simulated, "csv"))))[1]
    assert (line["Simulated Acceptance"], line["Random Weights"]) == ("0.8", "yes")
    assert "simulated acceptance" in line["Mode"]
    assert "simulated acceptance" in plots.title(simulated)
    assert "random weights" in plots.title(simulated)


def test_a_difference_is_loud() -> None:
    """A text that differs says NO, and a drawn one is not called equal."""
    members = rows(Contender(4))
    members[1].equals_plain = False
    assert table(render(report(*members), "markdown"), "k = 4")[2][-1] == "NO"
    members[1].equals_plain = None
    assert table(render(report(*members), "markdown"), "k = 4")[2][-1] == "drawn"


def test_dataset_tables() -> None:
    """Means with intervals, and by kind where there are several."""
    members = [*rows(Contender(4), "a", kind="code"), *rows(Contender(4), "b", kind="chat")]
    members[3].speedup = [1.0, 1.0, 1.0]
    text = render(report(*members, task="dataset"), "markdown")
    summary = table(text, "# ipex-assist bench, task dataset")[2]
    assert summary[:5] == ["assisted, k = 4", "int4", "bf16", "2", "1.50"]
    assert summary[5] == "1.00–2.00"
    kinds = table(text, "By kind of prompt")
    assert [line[0] for line in kinds[2:]] == ["code", "chat"]
    assert json.loads(render(report(*members, task="dataset"), "json"))["summaries"][0]["mean_speedup"] == 1.5


def test_plain_runs_alone() -> None:
    """--no-assisted: speeds, no ratios, and no failure on what is not there."""
    alone = [rows(Contender(4))[0]]
    alone[0].assistant_precision = None
    assert "## int4 target: plain" in render(report(*alone), "markdown")
    assert "1 plain runs" not in render(report(*alone), "markdown")
    assert "3 plain runs: 5.00 tokens/s (5.00–5.00)." in render(report(*alone, task="dataset"), "markdown")
    assert "Ratio" not in table(render(report(*alone), "markdown"), "plain")[0]


def test_an_interrupted_run_without_rows() -> None:
    """Ctrl-C while loading: every form still renders."""
    empty = BenchReport("benchmark", "c")
    assert "Nothing was loaded." in render(empty, "markdown")
    assert json.loads(render(empty, "json"))["rows"] == []
    assert render(empty, "csv").startswith("Example#")


def varied() -> list[Row]:
    """Rows over lengths and draft lengths."""
    return [row for k in (1, 4) for prompt in (256, 512) for row in rows(Contender(k), "1", prompt)]


def test_axes_are_what_varies() -> None:
    """A panel for what is the same everywhere would be a dot; measured acceptance is a result, no setting."""
    assisted = [row for row in varied() if row.speedup]
    assert [name for name, _ in plots.varying(assisted)] == ["drafted tokens a round, k", "prompt length (tokens)"]
    simulated = [row for a in (0.5, 0.8) for row in rows(Contender("adaptive", a)) if row.speedup]
    assert [name for name, _ in plots.varying(simulated)] == ["acceptance"]
    assert [name for name, _ in plots.varying(rows(Contender(4))[1:])] == ["new tokens"]


def test_the_adaptive_length_is_in_the_plot_over_fixed_ones() -> None:
    """It has no k, and was left out of the one panel where it is compared: there it is a level across all k."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    from matplotlib.figure import Figure

    adaptive = rows(Contender("adaptive"))
    adaptive[1].speedup = [2.5, 2.6, 2.7]
    members = [row for k in (1, 4) for row in rows(Contender(k))] + adaptive
    assisted = [row for row in members if row.speedup]
    (axis,) = plots.varying(assisted)
    place = Figure().subplots()
    plots._panel(place, assisted, axis, [axis], scattered=False)
    assert [text.get_text() for text in place.get_legend().get_texts()] == [
        "int4 target, bf16 draft, adaptive",
        "int4 target, bf16 draft",
    ]
    level = next(line for line in place.get_lines() if "adaptive" in str(line.get_label()))
    assert set(level.get_ydata()) == {2.6}


@pytest.mark.parametrize("task", ["benchmark", "dataset"])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plots_are_drawn(tmp_path: Path, task: str, suffix: str) -> None:
    """A file with the curves' names in it; without a display, and leaving matplotlib's state alone."""
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    path = tmp_path / f"p.{suffix}"
    plots.draw(report(*varied(), task=task), path)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    assert len(content) > 5000


def test_a_draft_head_and_acceptance_by_position() -> None:
    """The header names the kind, where the assistant's name does not; positions are summed over samples."""
    members = rows(Contender(4))
    members[1].samples = [
        dataclasses.replace(SAMPLES[0], drafted_by_position=[4, 2], accepted_by_position=[3, 1]),
        dataclasses.replace(SAMPLES[1], drafted_by_position=[6], accepted_by_position=[3]),
    ]
    made = report(*members)
    made.draft_head = "dflash"
    text = render(made, "markdown")
    assert ", assistant a (dflash head), native." in text
    assert "Accepted by position: 1: 60%, 2: 50%" in text
    assert json.loads(render(made, "json"))["draft_head"] == "dflash"
