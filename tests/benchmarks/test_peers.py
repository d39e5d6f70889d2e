"""The benchmark of peers: turns in order, rows that fail, and the command as a whole."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import checkpoint_files
import peers
import peers_known as known
import peers_recipes as recipes
import peers_table as table
import peers_throughput as throughput
import pytest
import results
from conftest import HAS_NATIVE
from peer_cases import A, B, C, answer, load_answer, python_says

from ipex_assist.env.errors import UsageError

pytestmark = pytest.mark.one_stack

CPUS = os.sched_getaffinity(0)

# Turns


def child_named(case: known.Case) -> known.Child:
    return known.Child((case.name,))


def test_turns_are_interleaved() -> None:
    """A machine that slows down for a minute must meet all peers, not one."""
    order: list[str] = []

    def run(child: known.Child) -> dict[str, Any]:
        order.append(child.argv[0])
        return answer(1.0)

    outcomes, interrupted = peers.measure_all([A, B, C], 3, child_named, run)
    assert order == [A.name, B.name, C.name] * 3
    assert all(list(each.turns) == [1, 2, 3] for each in outcomes.values())
    assert not interrupted


def test_a_pair_of_files_is_read_as_it_is(tmp_path: Path) -> None:
    """Nothing is converted: both get the very file, and ours the precision that keeps it."""
    files = [tmp_path / f"{name}.gguf" for name in ("target", "assistant")]
    for file in files:
        file.touch()
    args = peers.parse(["--target", str(files[0]), "--assistant", str(files[1])])
    assert args.peers == [known.OURS, "llama.cpp"]
    assert known.converted("llama.cpp", tmp_path, args.target, known.STORED) is None
    for case in (known.Case(known.OURS, known.STORED, known.STORED), known.Case(known.OURS, known.STORED)):
        assert case in known.FILE_CASES
        assert case in throughput.FILE_CASES
        child = known.child_of(case, tmp_path, (args.target, args.assistant), {"prompt": [1]}, [0, 1])
        told = json.loads(child.argv[-1])
        assert told["target"] == str(files[0])
        assert told["assistant"] == (str(files[1]) if case.draft else None)
        assert (told["precision"], told["draft_precision"]) == ("stored", case.draft)
    rivals = [[case.name for case in known.FILE_CASES if ratio.rival(case)] for ratio in table.FILE_RATIOS]
    assert rivals == [["llama.cpp stored"], ["llama.cpp stored, draft stored"]]


def test_what_fails_stops_nobody_else_and_keeps_its_reason() -> None:
    """One broken peer must neither end the run nor vanish from the table; what it reached before stays."""
    runs: list[str] = []

    def child_of(case: known.Case) -> known.Child:
        if case == A:
            raise recipes.MakingFailed("vllm: no wheel\nfor this machine")
        return child_named(case)

    def run(child: known.Child) -> dict[str, Any]:
        runs.append(child.argv[0])
        if child.argv[0] == B.name and runs.count(B.name) == 2:
            raise peers.TurnFailed("ended with signal SIGILL")
        return answer(2.0)

    outcomes, _ = peers.measure_all([A, B, C], 3, child_of, run)
    assert runs == [B.name, C.name, B.name, C.name, C.name]
    rows = [table.row(each, outcomes) for each in outcomes.values()]
    assert [each["tokens/s"] for each in rows] == ["failed", "2.00", "2.00"]
    assert [each["note"] for each in rows] == [
        "vllm: no wheel / for this machine",
        "turn 2: ended with signal SIGILL",
        "",
    ]


def test_an_interrupt_keeps_what_there_is() -> None:
    def run(child: known.Child) -> dict[str, Any]:
        if child.argv[0] == B.name:
            raise KeyboardInterrupt
        return answer(2.0)

    outcomes, interrupted = peers.measure_all([A, B], 3, child_named, run)
    assert interrupted
    assert (outcomes[A].speed, outcomes[B].speed) == (2.0, None)


def test_a_child_s_last_line_is_its_answer() -> None:
    """Libraries that print to standard output would otherwise spoil it."""
    said = json.dumps(answer(7.5))
    assert peers.run_child(python_says(f"print('loading'); print('''{said}''')"), CPUS, 60, {})["tokens_per_s"] == 7.5


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "import sys; print('a\\nb\\nout of memory', file=sys.stderr); sys.exit(4)",
            r"ended with 4: (.|\n)*out of mem",
        ),
        ("import os; os.kill(os.getpid(), 4)", "signal SIGILL"),
        ("print('done')", "no figures in what it printed: done"),
        ("pass", "no figures"),
        ("print('[]')", "no figures"),
        ("print('{\"tokens_per_s\": 0}')", "no figures"),
        ("print('{\"tokens_per_s\": null}')", "no figures"),
    ],
)
def test_a_child_without_figures_fails_with_its_words(code: str, message: str) -> None:
    with pytest.raises(peers.TurnFailed, match=message):
        peers.run_child(python_says(code), CPUS, 60, {})


def test_a_child_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    """An engine left behind would take cores and memory from every peer after it."""
    pid = tmp_path / "pid"
    engine = f"import os, time; open(r'{pid}', 'w').write(str(os.getpid())); time.sleep(600)"
    code = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {engine!r}]); time.sleep(600)"
    started = time.monotonic()
    with pytest.raises(peers.TurnFailed, match="--timeout"):
        peers.run_child(python_says(code), CPUS, 5, {})
    assert time.monotonic() - started < 60
    state = Path(f"/proc/{pid.read_text()}/stat")
    deadline = time.monotonic() + 30
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


# The command


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text("{}")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--peers", "vllm,ollama"], "ollama is none of ipex-assist, openvino"),
        (["--isa", "avx2", "--peers", "ipex-assist,vllm"], "vllm is none of ipex-assist, llama.cpp"),
        (["--repeats", "0"], "--repeats 0: at least 1"),
        (["--new-tokens", "1"], "--new-tokens 1: at least 8"),
        (["--num-assistant-tokens", "0"], "at least 1"),
        (["--timeout", "0"], "--timeout 0"),
        (["--timeout", "nan"], "--timeout nan"),
        (["--assistant", "/nowhere"], "no config.json there"),
        (["--assistant", "/nowhere.gguf"], "both are .gguf files, or both folders"),
        (["--target", "/no.gguf", "--assistant", "/no.gguf"], "--target /no.gguf: no such file"),
        (["--target", "/no.gguf", "--assistant", "/no.gguf", "--peers", "vllm"], "vllm is none of ipex-assist, llama"),
    ],
)
def test_wrong_arguments_are_named(folder: str, flags: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        peers.parse(["--target", folder, "--assistant", folder, *flags])


def test_environments_live_in_the_cache_folder(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    args = peers.parse(["--target", folder, "--assistant", folder])
    assert args.envs == Path("/cache/ipex-assist/peers")
    assert args.peers == list(known.ENVIRONMENTS)
    assert peers.parse(["--target", folder, "--assistant", folder, "--isa", "avx2"]).peers == [known.OURS, "llama.cpp"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path_factory.mktemp("peers") / "tiny"))


def fake_child(case: known.Case, root: Path, *told: Any) -> known.Child:
    """vLLM cannot be installed, llama.cpp crashes; the others have a speed by their precision, ours five times that."""
    if case.peer == "vllm":
        raise recipes.MakingFailed("vllm: no wheel for this machine")
    if case.peer == "llama.cpp":
        return python_says("import os; os.abort()")
    said = load_answer if "prompts" in told[1] else answer
    speed = {"int4": 30, "int8": 20, "bf16": 10}[case.precision] * (5 if case.peer == known.OURS else 1)
    where = "__import__('os').sched_getaffinity(0)"
    return python_says(f"import json; print(json.dumps({said(speed)!r} | {{'cpus': sorted({where})}}))")


def test_a_whole_run_with_peers_that_fail(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Table, ratios and JSON come although peers are missing, and the exit code says that some were."""
    monkeypatch.setattr(known, "child_of", fake_child)
    monkeypatch.setattr(peers, "memory_speed", lambda cpus: 10.0 * len(cpus))
    file = tmp_path / "figures.json"
    code = peers.main(
        ["--target", model, "--assistant", model, "--envs", str(tmp_path), "--repeats", "2", "--json", str(file)]
    )
    lines = capsys.readouterr().out.splitlines()
    assert code == 1
    assert len([line for line in lines if line.startswith("| ")]) == 1 + len(known.CASES)  # the head
    assert len([line for line in lines if re.search(r"[|] failed +[|]", line)]) == 4
    assert any("signal SIGABRT" in line for line in lines)
    assert any("no wheel for this machine" in line for line in lines)
    found = json.loads(lines[-1])
    assert found == json.loads(file.read_text())
    assert [each["value"] for each in found["ratios"]] == [5.0, None, 5.0, 5.0]
    assert found["machine"]["commit"]
    (cpus,) = {tuple(turn["cpus"]) for case in found["cases"] for turn in case["turns"]}
    assert list(cpus) == found["cpus"]
    assert {turn["read_GB_per_s"] for case in found["cases"] for turn in case["turns"]} == {10.0 * len(cpus)}


def test_a_whole_run_of_many_prompts(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same flags with --throughput: its own cases, table and ratios, and what results.py keeps."""
    monkeypatch.setattr(known, "child_of", fake_child)
    monkeypatch.setattr(peers, "memory_speed", lambda cpus: 10.0)
    flags = ["--target", model, "--assistant", model, "--envs", str(tmp_path), "--repeats", "1", "--throughput"]
    assert peers.main([*flags, "--requests", "3"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("| ")]) == 1 + len(throughput.CASES)
    found = json.loads(lines[-1])
    assert len(found["prompt_tokens"]) == 3
    assert all(30 <= length <= 300 for length in found["prompt_tokens"])
    assert [each["value"] for each in found["ratios"]] == [5.0] * 4 + [None] * 2
    path = tmp_path / "out.txt"
    path.write_text("\n".join(lines))
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    kept = json.loads(results.keep(path.read_text(), None, "").read_text())
    assert (kept["question"], len(kept["rows"])) == ("peers_throughput", len(throughput.CASES))
    with pytest.raises(UsageError, match=r"leave no case of these: ipex-assist int8, "):
        peers.run([*flags, "--peers", "transformers"])


def test_cases_are_chosen_by_parts_of_their_names(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some of them take minutes; a table of one precision need not wait for the others."""
    monkeypatch.setattr(known, "child_of", fake_child)
    monkeypatch.setattr(peers, "memory_speed", lambda cpus: 10.0)
    flags = ["--target", model, "--assistant", model, "--envs", str(tmp_path), "--repeats", "1", "--throughput"]
    flags += ["--requests", "2", "--peers", "ipex-assist,openvino"]
    assert peers.main([*flags, "--cases", "bf16", "int8, draft"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(case["peer"], case["precision"], case["draft"]) for case in found["cases"]] == [
        ("ipex-assist", "int8", "int4"),
        ("openvino", "int8", "int4"),
        ("ipex-assist", "bf16", None),
        ("ipex-assist", "bf16", "int4"),
    ]
    assert peers.main([*flags, "--cases", "int8", "--no-drafts"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {case["draft"] for case in found["cases"]} == {None}


@pytest.mark.skipif(not HAS_NATIVE, reason="the native core is not built here")
def test_the_memory_s_speed_is_measured_on_the_cpus_of_the_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes from a process of its own: a pool of threads in the parent would disturb the turns."""
    speed = peers.memory_speed(sorted(CPUS)[:1])
    assert speed is not None
    assert 0.05 < speed < 2000
    monkeypatch.setattr(known, "RUNNERS", Path("/nowhere"))
    assert peers.memory_speed([0]) is None


def test_installing_alone_measures_nothing(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "child_of", fake_child)
    monkeypatch.setattr(peers, "run_child", lambda *_: pytest.fail("measured"))
    flags = ["--target", model, "--assistant", model, "--envs", str(tmp_path), "--install-only"]
    assert peers.main(flags) == 1  # vLLM
    assert peers.main([*flags, "--peers", "ipex-assist,openvino"]) == 0


def test_the_prompt_reaches_all_peers_in_the_chat_template(model: str) -> None:
    """llama.cpp gets the text, the others the tokens: both must be the same prompt."""
    found = peers.prompt_of(model, "Sort this.")
    assert found["text"].startswith("<|im_start|>user\nSort this.")
    assert found["text"].endswith("<|im_start|>assistant\n")
    assert len(found["prompt"]) > 3
