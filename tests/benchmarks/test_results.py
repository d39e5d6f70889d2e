"""Results: what a benchmark printed becomes a file, and the files become a page with one current table a question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import charts
import peers_chart
import pytest
import results
import versions

from ipex_assist.bench.measure import Contender
from ipex_assist.bench.report import BenchReport, render
from ipex_assist.bench.throughput import LoadRow, LoadSample, Served

pytestmark = pytest.mark.one_stack

FACTS = {
    "cpu": "Intel(R) Xeon(R) Gold 6430",
    "cpus": 64,
    "isa": ["avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16"],
    "commit": "0123abc",
    "command": "benchmarks/kernels.py --rows 1",
}


def whole(runs: list[dict[str, Any]]) -> str:
    """Return all pages that these runs make."""
    return "\n".join(results.documents(runs).values())


def output(time: str, value: str) -> str:
    """Return what a benchmark prints: its table, and a line of JSON."""
    facts = {"benchmark": "kernels", "time": time, "machine": FACTS, "table": [{"rows": 1, "ms": value}]}
    return f"rows  ms\n1     {value}\n{json.dumps(facts)}\n"


def test_what_a_benchmark_printed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept by machine and commit, with the command that made it."""
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    path = results.keep(output("2026-01-02T03:04:05+00:00", "1.25"), None, "Nothing else ran.")
    assert path.relative_to(tmp_path) == Path("xeon-amx-64c/kernels-0123abc.json")
    (run,) = results.load(tmp_path)
    assert run["machine"] == "Intel Xeon Gold 6430, 64 CPUs, AMX, AVX-512 BF16, VNNI"
    assert (run["columns"], run["rows"]) == (["rows", "ms"], [["1", "1.25"]])
    page = whole([run])
    assert "    python benchmarks/kernels.py --rows 1" in page
    assert "Nothing else ran." in page


def test_a_report_of_throughput_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ipex-assist bench --json` says the same facts under other names."""
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    report = BenchReport("throughput", "ipex-assist bench --task throughput -m t", commit="0123abc")
    served = (Served(40, 0.0, 0.5, 2.5, 1, 5, 3, 4, 2), Served(40, 0.0, 1.5, 3.5, 1, 5, 3, 4, 2))
    samples = [LoadSample(4.0, 5, served, 20.4), LoadSample(5.0, 5, served, 22.6)]
    report.loads = [
        LoadRow(2, Contender(), "int8", "int4", samples),
        LoadRow(2, Contender("adaptive"), "int8", "int4", samples, [1.5, 1.25]),
    ]
    report.environment = {"isa": {"model": FACTS["cpu"], "avx512_vnni": True, "amx_bf16": False}, "cpus": "0-2,5"}
    path = results.keep(render(report, "json"), None, "")
    assert path.relative_to(tmp_path) == Path("xeon-vnni-4c/throughput-0123abc.json")
    (run,) = results.load(tmp_path)
    assert run["commands"] == ["ipex-assist bench --task throughput -m t"]
    plain, assisted = (dict(zip(run["columns"], row, strict=True)) for row in run["rows"])
    assert (plain["draft"], plain["÷ plain"], plain["tokens/s"], plain["spread"]) == ("–", "", "2.2", "2.0 to 2.5")
    assert (assisted["draft"], assisted["÷ plain"], assisted["in the turns"]) == ("int4", "1.38", "1.25 to 1.50")
    assert (assisted["first token s, p50 / p99"], assisted["ms/token, p50 / p99"]) == ("1.00 / 1.50", "500.0 / 500.0")
    assert (assisted["tokens/pass"], assisted["accepted"]) == ("2.00", "50%")
    assert assisted["read GB/s before"] == "20 to 23"


def run_of(question: str, time: str, value: str) -> dict[str, Any]:
    """Return a run as its file has it."""
    return {
        "question": question,
        "machine": "A",
        "commit": time,
        "time": time,
        "commands": [],
        "columns": ["ms"],
        "rows": [[value]],
    }


def test_the_newest_run_is_the_current_one() -> None:
    """What it replaces is on no page; further tables of a question stand beside its first."""
    page = whole([run_of("kernels", "1", "older"), run_of("kernels", "2", "newer"), run_of("kernels_2", "1", "b")])
    assert ("newer" in page, "older" in page, "| b" in page) == (True, False, True)


def test_machines_with_the_same_units_are_one() -> None:
    """A newer run without AMX answers for an older one without; one with AMX stands beside it."""
    machines = (("1", "older", "A, VNNI"), ("2", "newer", "B, VNNI, no AMX"), ("0", "tiles", "C, AMX"))
    runs = [run_of("kernels", time, value) | {"machine": machine} for time, value, machine in machines]
    page = whole(runs)
    assert ("newer" in page, "older" in page, "tiles" in page) == (True, False, True)


def test_each_question_has_one_page() -> None:
    """A question on two pages would be answered twice; the index leads to each page that has runs and to no other."""
    keys = [key for _, questions in results.PAGES.values() for key in questions]
    assert len(keys) == len(set(keys))
    pages = results.documents([run_of("kernels", "1", "1"), run_of("starting", "1", "2")])
    names = {path.name for path in pages}
    assert names == {"RESULTS.md", "passes.md", "costs.md"}
    index = pages[results.DOCUMENT]
    assert all(f"(results/{name})" in index for name in names - {"RESULTS.md"})


def test_a_counted_table_has_no_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instructions are the same wherever they are counted: a second machine's table replaces the first's."""
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    for commit, cpu in (("1", "Intel Xeon"), ("2", "AMD EPYC")):
        text = output(f"2026-01-0{commit}", commit).replace("0123abc", commit).replace(FACTS["cpu"], cpu)
        results.keep(text, "instructions", "")
    (run,) = results.load(tmp_path)
    assert (run["commit"], run["machine"]) == ("2", results.COUNTED["instructions"])


@pytest.mark.parametrize("flaw", ["uncommitted", "disturbed"])
def test_a_run_with_flaws_gives_way_to_a_clean_one(flaw: str) -> None:
    """Also to an older one; alone it is marked. The first table never has it."""
    flawed = run_of("kernels", "2", "bad") | {"flaws": [flaw]}
    page = whole([run_of("kernels", "1", "good"), flawed])
    assert ("good" in page, "bad" in page) == (True, False)
    page = whole([run_of("kernels_2", "1", "good"), flawed])
    assert f"Commit 2, **{flaw}**, 2." in page
    peers = {"question": "peers", "columns": ["peer", "target", "draft", "tokens/s"]}
    rows = [["ipex-assist", "int4", "–", "30.0"], ["llama.cpp", "Q4_K_M", "–", "15.0"]]
    other = {**run_of("peers", "1", ""), **peers, "rows": rows}
    assert "2.00" in results.documents([other])[results.DOCUMENT]
    assert "2.00" not in results.documents([other | {"flaws": [flaw]}])[results.DOCUMENT]


def test_a_commit_may_say_that_a_run_has_a_flaw(tmp_path: Path) -> None:
    """As git describes one with changes; flaws that nobody knows are refused."""
    (tmp_path / "m").mkdir()
    path = tmp_path / "m" / "x.json"
    path.write_text(json.dumps(run_of("kernels", "1", "1") | {"commit": "0123abc-dirty"}))
    assert results.load(tmp_path)[0]["flaws"] == ["uncommitted"]
    path.write_text(json.dumps(run_of("kernels", "1", "1") | {"flaws": ["lucky"]}))
    with pytest.raises(SystemExit, match="lucky: no such flaw"):
        results.load(tmp_path)


def test_a_file_that_answers_no_question_is_refused(tmp_path: Path) -> None:
    """It would be on no page, without a word."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "x.json").write_text(json.dumps(run_of("kernel", "1", "1")))
    with pytest.raises(SystemExit, match="kernel: no such question"):
        results.load(tmp_path)


def test_versions_are_compared_by_turns() -> None:
    """A machine that becomes slower strikes both versions of a turn: the ratio of the medians would be wrong."""
    old, new = [{"a": 10.0}, {"a": 5.0}, {"a": 4.0}], [{"a": 10.0}, {"a": 5.5}, {"a": 4.0}]
    (row,) = versions.compared(old, new)
    assert (row["new ÷ old"], row["spread"]) == ("1.000", "1.000 to 1.100")


def test_the_chart_is_that_of_the_newest_comparison(tmp_path: Path) -> None:
    """A figure that has changed makes the chart an old one; the number compares programs with equal bits."""
    rows = [
        ["ipex-assist", "int4", "–", "30.0"],
        ["ipex-assist", "int4", "int4", "60.0"],
        ["llama.cpp", "Q4_K_M", "–", "15.0"],
        ["vllm", "bf16", "–", "40.0"],
    ]
    run = {"machine": "A", "columns": ["peer", "target", "draft", "tokens/s"], "rows": rows}
    bars = peers_chart.bars_of(run)
    assert peers_chart.headline(bars) == "**60 tokens/s, 4.0 times as many as the best other program**"
    chart = tmp_path / "peers.svg"
    assert not charts.is_current(chart, run)
    charts.draw(chart, run, charts.peers)
    assert charts.is_current(chart, run)
    rows[2][3] = "15.1"
    assert not charts.is_current(chart, run)


def test_charts_name_their_machine_and_tell_ten_lines_apart(tmp_path: Path) -> None:
    """A chart without its machine reads as a promise; ten prompts in eight colours look like eight."""
    looks = [charts.look(number) for number in range(10)]
    assert len({each["color"] for each in looks}) == len({each["marker"] for each in looks}) == 10
    for question, (name, chart) in charts.CHARTS.items():
        run = results.newest(results.load(), question)
        charts.draw(tmp_path / name, run, chart)
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert f"<!-- {run['machine']} -->" in text  # matplotlib says each text before its glyphs
