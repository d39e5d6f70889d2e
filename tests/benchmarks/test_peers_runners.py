"""What each peer is told, how its tokens are timed, and how its answer is read."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import peers_known as known
import peers_recipes as recipes
import pytest

pytestmark = pytest.mark.one_stack


def runner(name: str) -> Any:
    """A module of benchmarks/peers, by its path: their names must not be importable beside the peers' own."""
    sys.path.insert(0, str(known.RUNNERS))
    try:
        spec = importlib.util.spec_from_file_location(f"peers_{name}", known.RUNNERS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(known.RUNNERS))


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
        f"sys.path.insert(0, {str(known.RUNNERS)!r})\n"
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
