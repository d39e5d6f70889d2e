"""What each peer is told, how its tokens are timed, and how its answer is read."""

from __future__ import annotations

import http.server
import importlib.util
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, ClassVar

import checkpoint_files
import peers_known as known
import peers_recipes as recipes
import peers_throughput as throughput
import pytest
from conftest import HAS_NATIVE

from ipex_assist.executors.native.model import NativeModel

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


def test_for_another_instruction_set_ours_is_told_and_llama_cpp_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipes.Recipe, "make", recipes.Recipe.folder)
    children = [
        known.child_of(known.Case(peer, precision), tmp_path, ("/t", "/a"), {"prompt": [1]}, [0], "avx2_vnni")
        for peer, precision in ((known.OURS, "int4"), ("llama.cpp", "Q4_K_M"))
    ]
    assert children[0].environ["IPEX_ASSIST_ISA"] == "avx2_vnni"
    programs = Path(json.loads(children[1].argv[-1])["programs"])
    home = known.LLAMA_CPP.folder(tmp_path)
    recipe = known.llama_cpp_for("avx2_vnni", home)
    assert programs == recipe.folder(tmp_path) / "build/bin"
    configure = recipe.steps[0]
    assert configure[configure.index("-S") + 1].startswith(str(home))
    assert {"-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_AVX_VNNI=ON"} <= set(configure)
    assert "-DGGML_NATIVE=ON" not in configure


def test_vllm_gets_the_libraries_that_it_asks_for_and_no_process_that_spins(tmp_path: Path) -> None:
    """Without Intel's OpenMP it is slower by its own words, and a spinning process takes the cores of its passes."""
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "libiomp5.so"
    library.write_bytes(Path("/proc/self/exe").read_bytes()[:64])
    environ = known.vllm_environ(tmp_path, [4, 6])
    assert str(library) in environ["LD_PRELOAD"].split(":")
    assert environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert environ["KMP_AFFINITY"].endswith("proclist=[4,6]")


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


# Many prompts at once


def test_a_load_is_timed_from_its_beginning_and_has_percentiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tokens ÷ all seconds; a token's time leaves out all of a prompt's first delivery."""
    turn = runner("turn")
    times = iter([10.0, 12.0, 12.0, 13.0, 16.0])
    monkeypatch.setattr(turn.time, "perf_counter", lambda: next(times))
    load = turn.Load()
    load.add(0, [1])
    load.add(1, [2, 3])
    load.add(0, [])
    load.add(0, [4, 5])
    load.add(1, [6])
    found = load.figures()
    assert (found["requests"], found["tokens"], found["seconds"], found["tokens_per_s"]) == (2, 6, 6.0, 1.0)
    assert found["first_token_s"] == {"p50": 2.0, "p99": 2.0}
    assert found["token_s"] == {"p50": 2.25, "p99": pytest.approx(0.5 + 0.99 * 3.5)}
    assert found["outputs"] == [turn.digest([1, 4, 5]), turn.digest([2, 3, 6])]
    assert turn.percentiles([]) is None
    assert turn.percentiles([3.0]) == {"p50": 3.0, "p99": 3.0}
    assert turn.percentiles(list(range(101))) == {"p50": 50.0, "p99": 99.0}


def test_settings_with_prompts_are_served_together(tmp_path: Path) -> None:
    """The warm-up's tokens are not counted, and the loader of one prompt is not asked."""
    fake = tmp_path / "run_fake.py"
    fake.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(known.RUNNERS)!r})\n"
        "import turn\n"
        "def load(settings): raise SystemExit('one prompt')\n"
        "def load_many(settings):\n"
        "    def serve(new_tokens, load):\n"
        "        for token in range(new_tokens):\n"
        "            for number, _ in enumerate(settings['prompts']):\n"
        "                load.add(number, [token])\n"
        "        load.passes = new_tokens\n"
        "    return serve\n"
        "turn.main(load, ('pytest',), load_many)\n"
    )
    settings = json.dumps({"warm_up_tokens": 2, "new_tokens": 16, "prompts": [[1], [2], [3]]})
    done = subprocess.run([sys.executable, str(fake), settings], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert (found["requests"], found["tokens"], found["passes"], list(found["versions"])) == (3, 48, 16, ["pytest"])


def test_children_of_many_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every case has a runner that exists, and is told all prompts; llama.cpp's is another one."""
    monkeypatch.setattr(recipes.Recipe, "make", recipes.Recipe.folder)
    (tmp_path / "config.json").write_text("{}")
    pair = (str(tmp_path), str(tmp_path))
    for case in throughput.CASES:
        child = known.child_of(case, tmp_path, pair, {"prompts": [[1, 2], [3]]}, [4, 6])
        assert Path(child.argv[-2]).is_file()
        told = json.loads(child.argv[-1])
        assert (told["prompts"], told["threads"], told["program"]) == ([[1, 2], [3]], 2, case.program)
        assert Path(child.argv[-2]).name.endswith("_many.py") == (case.peer == "llama.cpp")
    assert len(set(throughput.CASES)) == len(throughput.CASES)


@pytest.mark.skipif(not HAS_NATIVE, reason="the native core is not built here")
def test_our_engine_serves_all_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tokens of all prompts, the same ones in a second turn, by names that the engine has."""
    ours, turn = runner("run_ours"), runner("turn")
    monkeypatch.setattr(ours, "leave_cores_to_native", lambda: None)  # these are the other tests' cores too
    model = str(checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path / "tiny"))
    settings = {"target": model, "assistant": model, "precision": "int8", "draft_precision": "int8"}
    serve = ours.load_many({**settings, "prompts": [[1, 2, 3], [4, 5, 6, 7, 8]]})
    outputs = []
    for _ in range(2):
        load = turn.Load()
        serve(12, load)
        assert {number: len(tokens) for number, tokens in load.tokens.items()} == {0: 12, 1: 12}
        assert 0 < load.passes < 24  # shared by both
        outputs.append(load.figures()["outputs"])
    assert outputs[0] == outputs[1]


@pytest.mark.skipif(not HAS_NATIVE, reason="the native core is not built here")
def test_each_of_our_turns_reads_the_prompt_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The warm-up has the same prompt: a first token from what the engine kept of it would cost nothing."""
    ours, turn = runner("run_ours"), runner("turn")
    monkeypatch.setattr(ours, "leave_cores_to_native", lambda: None)
    passes: list[int] = []
    sample = NativeModel.sample
    monkeypatch.setattr(
        NativeModel,
        "sample",
        lambda model, rows, choices: (
            passes.append(sum(len(each.tokens) for each in rows)) or sample(model, rows, choices)
        ),
    )
    model = str(checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path / "tiny"))
    settings = {"target": model, "assistant": None, "precision": "int8", "draft_precision": None}
    generate = ours.load({**settings, "prompt": list(range(1, 41))})
    rows = []
    for _ in range(2):
        clock = turn.Clock()
        generate(8, clock)
        rows.append(sum(passes))
        assert len(clock.tokens) == 8
        passes.clear()
    assert rows == [47, 47]


LLAMA_SETTINGS = {
    "programs": "/p",
    "target": "t.gguf",
    "assistant": None,
    "prompts": [[1] * 30, [2] * 300],
    "new_tokens": 128,
    "threads": 2,
    "num_assistant_tokens": 3,
}


def test_llama_server_has_a_slot_and_room_for_each_prompt_and_forgets_them() -> None:
    """Its context is shared by the slots; prompts that it kept of the warm-up would cost it nothing later."""
    llama = runner("run_llama_cpp_many")
    command = llama.server_command(LLAMA_SETTINGS, 8081)
    assert command[:3] == ["/p/llama-server", "-m", "t.gguf"]
    context = int(command[command.index("-c") + 1])
    assert context >= 2 * (300 + 128)
    assert command[command.index("-np") + 1] == "2"
    assert int(command[command.index("--threads-http") + 1]) >= 2  # fewer would keep prompts waiting for a thread
    assert "--no-cache-prompt" in command
    assert "-md" not in command
    assisted = llama.server_command({**LLAMA_SETTINGS, "assistant": "a.gguf"}, 8081)
    assert assisted[assisted.index("-md") + 1] == "a.gguf"
    bench = llama.bench_command(LLAMA_SETTINGS)
    assert [bench[bench.index(flag) + 1] for flag in ("-npp", "-ntg", "-npl", "-c")] == ["165", "128", "2", "1024"]
    assert "--kv-unified" not in bench  # else each sequence attends to the keys of all


class LlamaServer(http.server.BaseHTTPRequestHandler):
    """Answers as llama-server does; a prompt that begins with 9 ends too early."""

    asked: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        times = {"prompt_n": len(body["prompt"]), "predicted_n": body["n_predict"] - (body["prompt"][0] == 9)}
        times |= {"prompt_ms": 1.0, "predicted_ms": 160.0, "predicted_per_token_ms": 40.0}
        answer = json.dumps({"tokens": body["prompt"], "timings": times}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


def test_llama_server_s_answers_are_read_and_checked() -> None:
    """Fewer tokens than asked for, or another prompt, would be another measurement."""
    llama = runner("run_llama_cpp_many")
    with http.server.HTTPServer(("127.0.0.1", 0), LlamaServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        answers = [llama.complete(server.server_port, prompt, 5) for prompt in ([1, 2], [3, 4, 5, 6])]
        with pytest.raises(ValueError, match="wrote 4, and was asked for 1 and 5"):
            llama.complete(server.server_port, [9], 5)
        server.shutdown()
    asked = LlamaServer.asked[0]
    assert (asked["samplers"], asked["top_k"]) == (["top_k"], 1)
    assert (asked["ignore_eos"], asked["cache_prompt"]) == (True, False)
    assert all(0 < each["seconds"] < 60 for each in answers)
    # A prompt's own time leaves out what it waited for others.
    found = llama.figures(
        [{**each, "seconds": seconds} for each, seconds in zip(answers, (0.66, 1.16), strict=True)], 2.0
    )
    assert (found["tokens"], found["tokens_per_s"], found["requests"]) == (10, 5.0, 2)
    assert found["first_token_s"] == {"p50": pytest.approx(0.75), "p99": pytest.approx(0.995)}
    assert found["token_s"] == {"p50": 0.04, "p99": 0.04}


def test_llama_batched_bench_s_speed_is_of_new_tokens() -> None:
    """Its own "speed" counts the prompts' tokens as well."""
    llama = runner("run_llama_cpp_many")
    line = {"pp": 165, "tg": 128, "pl": 16, "t_pp": 4.0, "t_tg": 12.8, "t": 16.8, "speed": 279.0}
    found = llama.bench_figures(f"loading\n{json.dumps(line)}\n\n")
    assert found["tokens_per_s"] == pytest.approx(16 * 128 / 16.8)
    assert (found["first_token_s"]["p50"], found["token_s"]["p99"]) == (4.0, 0.1)
    with pytest.raises(ValueError, match="no line of JSON"):
        llama.bench_figures("killed")
