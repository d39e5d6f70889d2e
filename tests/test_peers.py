"""The benchmark of peers: environments with stamps, turns in order, failed rows, ratios, what each peer is told."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import checkpoints
import pytest
from conftest import HAS_NATIVE

from ipex_assist.env.errors import UsageError

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import peers  # noqa: E402
import peers_known as known  # noqa: E402
import peers_recipes as recipes  # noqa: E402
import peers_table as table  # noqa: E402

pytestmark = pytest.mark.one_stack

CPUS = os.sched_getaffinity(0)


def runner(name: str) -> Any:
    """A module of benchmarks/peers, by its path: their names must not be importable beside the peers' own."""
    sys.path.insert(0, str(BENCHMARKS / "peers"))
    try:
        spec = importlib.util.spec_from_file_location(f"peers_{name}", BENCHMARKS / "peers" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(BENCHMARKS / "peers"))


def python_says(code: str) -> known.Child:
    return known.Child((sys.executable, "-c", code))


# Folders made by recipes


def count_and_write(marker: Path, then: str = "pass") -> tuple[str, ...]:
    """A step that counts its runs in `marker`, and puts a file into the folder."""
    code = f"import sys; open(r'{marker}', 'a').write('x'); open(sys.argv[1] + '/file', 'w').write('made'); {then}"
    return (sys.executable, "-c", code, "{folder}")


def test_a_made_folder_is_reused_and_a_half_made_one_is_made_anew(tmp_path: Path) -> None:
    """A killed installation must not be taken for an environment, and a good one must not be installed twice."""
    marker = tmp_path / "runs"
    recipe = recipes.Recipe("some", (count_and_write(marker),), {"pin": 1})
    half = recipe.folder(tmp_path)
    half.mkdir()
    (half / "left over").touch()
    assert not recipe.ready(tmp_path)
    folder = recipe.make(tmp_path)
    assert (folder, (folder / "file").read_text(), (folder / "left over").exists()) == (half, "made", False)
    assert recipe.make(tmp_path) == folder
    assert marker.read_text() == "x"
    (folder / recipes.STAMP).unlink()
    recipe.make(tmp_path)
    assert marker.read_text() == "xx"


def test_every_pin_fact_and_variable_is_part_of_the_key() -> None:
    """Else a changed pin would be measured in the old environment."""
    base = recipes.environment("peer", ["a==1", "b==2"])
    others = [
        recipes.environment("peer", ["a==1", "b==3"]),
        recipes.environment("peer", ["a==1", "b==2"], ("true",)),
        recipes.environment("peer", ["a==1", "b==2"], environ={"CC": "gcc"}),
        recipes.Recipe("peer", base.steps, {**base.facts, "python": "3.9.1"}),
    ]
    keys = [each.key for each in (base, *others)]
    assert len(set(keys)) == len(keys)
    assert recipes.environment("peer", ["a==1", "b==2"]).key == base.key
    assert base.folder(Path("/x")).name == f"peer-{base.key}"


def test_a_step_that_fails_is_told_with_its_last_lines_and_leaves_no_stamp(tmp_path: Path) -> None:
    """The row of a peer that cannot be installed must say why, not just that."""
    says = "print('no such distribution'); sys.exit(3)"
    recipe = recipes.Recipe("some", (count_and_write(tmp_path / "runs", says), ("never", "run")))
    with pytest.raises(recipes.MakingFailed, match=r"ended with 3(.|\n)*no such distribution"):
        recipe.make(tmp_path)
    assert not recipe.ready(tmp_path)
    with pytest.raises(recipes.MakingFailed, match="no-such-program cannot be started"):
        recipes.Recipe("some", (("no-such-program",),)).make(tmp_path)


def test_nothing_is_installed_onto_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment of some GB would take the last room of a machine that others use."""
    monkeypatch.setattr(recipes, "HEADROOM", 1 << 62)
    with pytest.raises(recipes.MakingFailed, match="--envs"):
        recipes.Recipe("some", (count_and_write(tmp_path / "runs"),)).make(tmp_path)
    assert not (tmp_path / "runs").exists()


def test_steps_do_not_inherit_the_packages_of_this_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONPATH would let pip find packages installed that the environment does not have."""
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    says = "import os; open(sys.argv[1] + '/path', 'w').write(str(os.environ.get('PYTHONPATH')))"
    folder = recipes.Recipe("some", (count_and_write(tmp_path / "runs", says),)).make(tmp_path)
    assert (folder / "path").read_text() == "None"


def test_a_conversion_depends_on_the_state_of_the_checkpoint(tmp_path: Path) -> None:
    """Else another model in the same folder would be measured by its predecessor's conversion."""
    (tmp_path / "config.json").write_text("{}")
    home = Path("/env")
    before = [known.converted(peer, home, str(tmp_path), "int4") for peer in ("openvino", "llama.cpp")]
    (tmp_path / "model.safetensors").write_text("weights")
    after = [known.converted(peer, home, str(tmp_path), "int4") for peer in ("openvino", "llama.cpp")]
    for old, new in zip(before, after, strict=True):
        assert old is not None
        assert new is not None
        assert old.key != new.key
    assert known.converted("vllm", home, str(tmp_path), "bf16") is None


# Turns

A, B, C = known.Case("vllm", "bf16"), known.Case("vllm", "bf16", "bf16"), known.Case(known.OURS, "int4", "int4")


def answer(speed: float, **more: Any) -> dict[str, Any]:
    return {"tokens": 128, "passes": 128, "tokens_per_s": speed, "first_token_s": 0.5, "output": "o", **more}


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


# Figures


def outcomes_of(speeds: dict[known.Case, dict[int, float]]) -> dict[known.Case, table.Outcome]:
    return {
        case: table.Outcome(case, {turn: answer(speed) for turn, speed in by_turn.items()})
        for case, by_turn in speeds.items()
    }


def test_a_ratio_is_of_medians_against_the_fastest_peer_with_the_spread_of_the_turns() -> None:
    """Another rival for each turn would flatter nobody and mean nothing; our own rows are no rivals."""
    openvino, vllm = known.Case("openvino", "int4", "int4"), known.Case("vllm", "bf16")
    found = table.ratio(
        table.RATIOS[0],
        outcomes_of(
            {
                C: {1: 30.0, 2: 40.0, 3: 80.0},
                known.Case(known.OURS, "bf16"): {1: 500.0},
                openvino: {1: 10.0, 2: 16.0, 3: 20.0},
                vllm: {1: 1.0, 2: 15.0, 3: 90.0},
            }
        ),
    )
    assert (found["value"], found["min"], found["max"]) == (2.5, 2.5, 4.0)
    assert (found["rival"], found["met"]) == (openvino.name, True)
    assert "2.50, 2.50 to 4.00 in the single turns" in table.ratio_line(found)


def test_the_asked_ratios_compare_what_they_name() -> None:
    ours = known.Case(known.OURS, "bf16", "int4")
    vllm, transformers = known.Case("vllm", "bf16", "bf16"), known.Case("transformers", "bf16", "bf16")
    outcomes = outcomes_of({ours: {1: 18.0}, vllm: {1: 10.0}, vllm.plain: {1: 17.0}, transformers: {1: 6.0}})
    found = [table.ratio(each, outcomes) for each in table.RATIOS]
    assert [each["rival"] for each in found] == [vllm.plain.name, vllm.name, transformers.name]
    assert [each["value"] for each in found] == [None, 1.8, 3.0]
    assert [each["asked"] for each in found] == [2.5, 1.8, 4.0]
    assert "25 % short" in table.ratio_line(found[2])
    assert f"{known.OURS} int4, draft int4 has no figure" in table.ratio_line(found[0])


def test_a_row_compares_with_its_own_plain_row() -> None:
    """Speed-up and equality of output are of the same peer and precision."""
    outcomes = outcomes_of({A: {1: 4.0, 2: 5.0, 3: 9.0}, B: {1: 10.0}})
    outcomes[B].turns[1] |= {"passes": 64}
    first, second = (table.row(outcomes[case], outcomes) for case in (A, B))
    assert (first["tokens/s"], first["spread"], first["÷ plain"], first["= plain"]) == ("5.00", "4.00 to 9.00", "", "")
    assert (second["÷ plain"], second["= plain"], second["tokens/pass"]) == ("2.00", "yes", "2.00")
    outcomes[B].turns[1] |= {"output": "other"}
    assert table.row(outcomes[B], outcomes)["= plain"] == "no"
    del outcomes[B].turns[1]["output"]
    assert table.row(outcomes[B], outcomes)["= plain"] == ""
    assert second["read GB/s before"] == ""
    outcomes[A].turns[1] |= {"read_GB_per_s": None}
    for turn, speed in ((2, 20.4), (3, 37.2)):
        outcomes[A].turns[turn] |= {"read_GB_per_s": speed}
    assert table.row(outcomes[A], outcomes)["read GB/s before"] == "20 to 37"
    lines = table.markdown([first, {**second, "note": "a|b"}]).splitlines()
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1


# What the peers are told


def test_every_peer_is_measured_with_and_without_a_draft_by_a_runner_that_exists() -> None:
    for peer in known.ENVIRONMENTS:
        cases = [case for case in known.CASES if case.peer == peer]
        assert {case.plain for case in cases} == {case for case in cases if case.draft is None}
        assert {case.plain for case in cases if case.draft} == {case for case in cases if case.draft is None}
    assert len(set(known.CASES)) == len(known.CASES) == 16


def test_a_child_is_told_its_models_threads_and_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Converted models for those that convert, the checkpoint for the others, no assistant for a plain turn."""
    monkeypatch.setattr(recipes.Recipe, "make", recipes.Recipe.folder)
    for name in ("target", "assistant"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(name)
    pair = (str(tmp_path / "target"), str(tmp_path / "assistant"))
    told = {}
    for case in known.CASES:
        child = known.child_of(case, tmp_path, pair, {"prompt": [1, 2]}, [4, 6])
        assert Path(child.argv[-2]).is_file()
        told[case] = json.loads(child.argv[-1])
        assert (told[case]["prompt"], told[case]["threads"]) == ([1, 2], 2)
        assert (told[case]["assistant"] is None) == (case.draft is None)
        if case.peer == known.OURS:
            assert child.argv[:3] == (sys.executable, "-m", "ipex_assist.launch")
        else:
            assert child.argv[0].startswith(str(tmp_path))
            assert child.environ["OMP_NUM_THREADS"] == "2"
        if case.peer == "vllm":
            assert child.environ["VLLM_CPU_OMP_THREADS_BIND"] == "4,6"
    assert told[known.Case("vllm", "bf16", "bf16")]["assistant"] == pair[1]
    mixed = told[known.Case("openvino", "int8", "int4")]
    assert "openvino-int8" in mixed["target"]
    assert "openvino-int4" in mixed["assistant"]
    assert mixed["assistant"] != told[known.Case("openvino", "int4")]["target"]


def test_the_clock_leaves_out_all_of_the_first_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    """Assisted decoding delivers several tokens at first; counting them without their time would flatter it."""
    turn = runner("turn")
    times = iter([10.0, 12.0, 13.0, 14.0])
    monkeypatch.setattr(turn.time, "perf_counter", lambda: next(times))
    clock = turn.Clock()
    clock.add([1, 2, 3])
    clock.add([])
    clock.add([4])
    clock.add([5, 6, 7])
    found = clock.figures()
    assert (found["tokens"], found["passes"], found["first_token_s"], found["seconds"]) == (7, 3, 2.0, 4.0)
    assert found["tokens_per_s"] == 2.0
    with pytest.raises(ValueError, match="no speed"):
        turn.Clock.figures(type("One", (), {"deliveries": [(1.0, 4)], "tokens": [1, 2, 3, 4]})())


def test_a_runner_keeps_standard_output_for_its_answer(tmp_path: Path) -> None:
    """A fake peer that prints while it loads: its answer is the only line on standard output."""
    fake = tmp_path / "run_fake.py"
    fake.write_text(
        "import os, sys, time\n"
        f"sys.path.insert(0, {str(BENCHMARKS / 'peers')!r})\n"
        "import turn\n"
        "def load(settings):\n"
        "    print('loading'); os.system('echo from below')\n"
        "    def generate(new_tokens, clock):\n"
        "        for token in range(new_tokens):\n"
        "            time.sleep(0.001); clock.add([token])\n"
        "    return generate\n"
        "turn.main(load, ('pytest', 'no-such-package'))\n"
    )
    settings = json.dumps({"warm_up_tokens": 2, "new_tokens": 16})
    done = subprocess.run([sys.executable, str(fake), settings], capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert (found["tokens"], found["passes"], list(found["versions"])) == (16, 16, ["pytest"])
    assert found["tokens_per_s"] > 0
    assert "from below" in done.stderr


PLAIN_TIMES = """
common_perf_print: prompt eval time =    400.00 ms /    37 tokens (   10.81 ms per token,    92.50 tokens per second)
common_perf_print:        eval time =   6350.00 ms /   127 runs   (   50.00 ms per token,    20.00 tokens per second)
"""
ASSISTED_TIMES = """
encoded   37 tokens in    0.500 seconds, speed:   74.000 t/s
decoded  130 tokens in    5.000 seconds, speed:   26.000 t/s
n_drafted = 100
n_accept  = 90
"""


def test_llama_cpp_s_times_are_read_and_its_prompt_is_checked() -> None:
    """Its plain time has two lines of the same shape, and a prompt that it read otherwise is another measurement."""
    llama = runner("run_llama_cpp")
    plain = llama.figures(PLAIN_TIMES, False, 37)
    assert (plain["tokens"], plain["tokens_per_s"], plain["first_token_s"]) == (128, 20.0, 0.4)
    assisted = llama.figures(ASSISTED_TIMES, True, 37)
    assert (assisted["tokens"], assisted["passes"], assisted["tokens_per_s"]) == (130, 40, 26.0)
    with pytest.raises(ValueError, match="read 37 tokens"):
        llama.figures(PLAIN_TIMES, False, 38)
    with pytest.raises(ValueError, match="no times"):
        llama.figures("killed", False, 37)


# The command


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text("{}")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--peers", "vllm,ollama"], "ollama is none of ipex-assist, openvino"),
        (["--repeats", "0"], "--repeats 0: at least 1"),
        (["--new-tokens", "1"], "--new-tokens 1: at least 8"),
        (["--num-assistant-tokens", "0"], "at least 1"),
        (["--timeout", "0"], "--timeout 0"),
        (["--timeout", "nan"], "--timeout nan"),
        (["--assistant", "/nowhere"], "no config.json there"),
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


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(checkpoints.save(checkpoints.tiny_model("llama"), tmp_path_factory.mktemp("peers") / "tiny"))


def fake_child(case: known.Case, root: Path, *_: Any) -> known.Child:
    """vLLM cannot be installed, llama.cpp crashes; the others have a speed by their precision, ours five times that."""
    if case.peer == "vllm":
        raise recipes.MakingFailed("vllm: no wheel for this machine")
    if case.peer == "llama.cpp":
        return python_says("import os; os.abort()")
    speed = {"int4": 30, "int8": 20, "bf16": 10}[case.precision] * (5 if case.peer == known.OURS else 1)
    where = "__import__('os').sched_getaffinity(0)"
    return python_says(f"import json; print(json.dumps({answer(speed)!r} | {{'cpus': sorted({where})}}))")


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
    assert len([line for line in lines if line.startswith("| ")]) == 2 + len(known.CASES)
    assert len([line for line in lines if "| failed |" in line]) == 4
    assert any("signal SIGABRT" in line for line in lines)
    assert any("no wheel for this machine" in line for line in lines)
    found = json.loads(lines[-1])
    assert found == json.loads(file.read_text())
    assert [each["value"] for each in found["ratios"]] == [5.0, None, 5.0]
    assert found["machine"]["commit"]
    (cpus,) = {tuple(turn["cpus"]) for case in found["cases"] for turn in case["turns"]}
    assert list(cpus) == found["cpus"]
    assert {turn["read_GB_per_s"] for case in found["cases"] for turn in case["turns"]} == {10.0 * len(cpus)}


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
