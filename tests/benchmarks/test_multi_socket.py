"""The benchmark of several instances: the common start, failing instances, whole runs."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import checkpoint_files
import multi_socket
import pytest
from conftest import HAS_NATIVE
from multi_socket_cases import answer, small

from ipex_assist.env.errors import UsageError
from ipex_assist.env.libraries import find_libraries
from ipex_assist.env.topology import read_topology
from ipex_assist.launch.abilities import Abilities
from ipex_assist.launch.placement import Placement
from ipex_assist.launch.process import Surroundings
from ipex_assist.launch.spawn import read_processes

pytestmark = [pytest.mark.alone, pytest.mark.one_stack]

PLAINLY = Surroundings(find_libraries({}), Abilities(numactl=False, mempolicy=False, taskset=False))
CPU = read_topology().allowed[0]
CORES = len(read_topology().default_cores())

# The processes

FAKE = """
import json, os, sys, time
index = int(os.environ["IPEX_INSTANCE"])
settings = json.loads(sys.stdin.readline())
say = lambda reply: print(json.dumps(reply), flush=True)
time.sleep(settings["load_s"][index])
if settings.get("refuse") == index:
    say({"type": "refused", "message": "no such model", "exit_code": 2})
    sys.exit()
loaded = time.monotonic()
for line in sys.stdin:
    request = json.loads(line)
    time.sleep(max(0, request["at"] - time.monotonic()))
    started = time.monotonic()
    if request["do"] == "die" and index == 1:
        print("a last word", file=sys.stderr, flush=True)
        os.kill(os.getpid(), 9)
    if request["do"] == "hang" and index == 1:
        time.sleep(1000)
    if request["do"] == "fail" and index == 1:
        say({"type": "answer", "id": 0, "error": "out of luck"})
    elif request["do"] == "facts":
        say({"type": "answer", "id": 0, "result": {"loaded": loaded}})
    else:
        say({"type": "answer", "id": 0, "result": {"index": index, "started": started}})
"""


def fakes(tmp_path: Path, timeout: float = 30, **settings: Any) -> multi_socket.Instances:
    program = tmp_path / "fake.py"
    program.write_text(FAKE)
    places = [Placement((CPU,), 1, index=index, count=3) for index in range(3)]
    return multi_socket.Instances(
        places,
        {"load_s": [0, 0, 0]} | settings,
        PLAINLY,
        timeout=timeout,
        program=[sys.executable, "-S", str(program)],
    )


def test_nobody_begins_before_all_are_ready_and_all_begin_together(tmp_path: Path) -> None:
    """Instances that begin as they come would run alone for a while, and the sum would be too good to be true."""
    with fakes(tmp_path, load_s=[0, 0.5, 0.1]) as instances:
        for _ in range(3):
            answers = instances.ask(do="work")
            started = [each["started"] for each in answers]
            assert [each["index"] for each in answers] == [0, 1, 2]
            assert min(started) >= max(facts["loaded"] for facts in instances.facts)
            # Three processes of one CPU begin within its scheduler's time slices; one after the other took 0.1 s.
            assert max(started) - min(started) < 0.1


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ("die", r"instance 1 .*was killed by SIGKILL(?s:.*)a last word"),
        ("fail", "instance 1: out of luck"),
        ("hang", "no answer within 1 s from instance 1 of 3"),
    ],
)
def test_a_failing_instance_ends_the_layout_and_leaves_nothing_behind(
    tmp_path: Path, request_: str, words: str
) -> None:
    """Otherwise the benchmark waits for ever, or the others go on and disturb the next layout."""
    with (
        fakes(tmp_path, timeout=1 if request_ == "hang" else 30) as instances,
        pytest.raises(multi_socket.InstanceFailed, match=words),
    ):
        instances.ask(do=request_)
    marker = str(tmp_path / "fake.py").encode()
    for pid in read_processes():
        try:
            assert marker not in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue


def test_a_refusal_is_said_in_its_own_words(tmp_path: Path) -> None:
    """A wrong path is worth the loader's message, not "ended with exit code 0"."""
    with pytest.raises(multi_socket.InstanceFailed, match=r"^no such model$"), fakes(tmp_path, refuse=2):
        pass


# Whole runs


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path_factory.mktemp("multi") / "tiny"))


def benchmark(*arguments: str) -> tuple[int, list[str], str]:
    process = subprocess.run(
        [sys.executable, multi_socket.__file__, "--offline", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "Traceback" not in process.stderr, process.stderr
    return process.returncode, process.stdout.splitlines(), process.stderr


@pytest.mark.skipif(CORES < 2, reason="two instances need two cores")
def test_a_run_measures_plain_and_assisted_on_every_layout(tiny: str) -> None:
    """Everything together on real models: pinned apart, begun together, the same text everywhere, all samples kept."""
    code, lines, err = benchmark(
        *("--target", tiny, "--assistant", tiny, "--num-assistant-tokens", "3", "--precisions", "fp32"),
        *("--layouts", "1x1,2x1,999x1", "--repeats", "2", "--starts", "1", "--max-new-tokens", "12"),
        *("--prompt", "the quick brown fox"),
    )
    assert code == 0, err
    result = json.loads(lines[-1])
    assert [(each["layout"], each["assisted"]) for each in result["cases"]] == [
        *(("1x1", False), ("1x1", True)),
        *(("2x1", False), ("2x1", True)),
    ]
    for each in result["cases"]:
        assert len(each["together"]["tokens_per_s"]["samples"]) == 2
        assert each["same_tokens"]
        assert each["new_tokens"] == 12
        rates = [one["acceptance_rate"] for one in each["each"]]
        # A target that drafts for itself is always right.
        assert all(rate["min"] == 1.0 for rate in rates) if each["assisted"] else rates == [None] * len(rates)
    pair = result["cases"][2]
    assert pair["each"][0]["cpus"] != pair["each"][1]["cpus"]
    assert pair["start_spread_ms"] < 1000
    assert pair["times"] == pytest.approx(
        pair["together"]["tokens_per_s"]["median"] / result["cases"][0]["together"]["tokens_per_s"]["median"]
    )
    assert [each["layout"] for each in result["left_out"]] == ["999x1"]
    assert any("999x1" in line and "fit into" in line for line in lines)
    assert lines[0].startswith("precision")
    if HAS_NATIVE:
        assert pair["read_GB_per_s"]["min"] > 0
        assert pair["together"]["GB_per_s"]["min"] > 0


def test_a_run_of_which_nothing_can_be_measured_says_why(tiny: str, tmp_path: Path) -> None:
    """Exit code 1 and the loader's reason; an empty table would look like success."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text(Path(tiny, "config.json").read_text())
    code, lines, err = benchmark("--target", str(broken), "--layouts", "1x1", "--precisions", "fp32")
    assert code == 1, err
    assert lines == []
    code, _, err = benchmark("--target", tiny, "--layouts", "1x1", "--precisions", "fp32", "--prompt-tokens", "5000")
    assert code == 1, err
    assert "nothing could be measured" in err
    assert "shorten the prompt" in err


class FakeInstances:
    """Instances of which 2x1 ends as it is asked, and that note what was started."""

    started: list[tuple[str, int]]

    def __init__(self, placements: Any, settings: Any, *_: Any, **__: Any) -> None:
        self.count, self.commands = len(placements), []
        self.facts: list[dict[str, Any]] = [{"deviations": []}] * self.count
        type(self).started.append((settings["load"]["precision"], self.count))

    def __enter__(self) -> FakeInstances:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, do: str, **_: Any) -> list[dict[str, Any]]:
        if self.count == 2:
            raise multi_socket.InstanceFailed("instance 1 was killed")
        if type(self).started.count(("int4", 1)) == 3:
            raise KeyboardInterrupt
        return [{"GB_per_s": 8.0} if do == "read" else answer(0, 1, 2)] * self.count


def test_layouts_take_turns_and_a_broken_one_or_ctrl_c_costs_no_other_its_figures(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All starts of a layout in a row would meet one moment of the machine; hours of samples must survive a failure."""
    FakeInstances.started = []
    monkeypatch.setattr(multi_socket, "Instances", FakeInstances)
    monkeypatch.setattr(multi_socket, "read_topology", lambda: small(2))
    flags = ["--offline", "--target", tiny, "--precisions", "fp32,int4", "--layouts", "1x1,2x1"]
    assert multi_socket.main([*flags, "--starts", "4", "--repeats", "2"]) == 130
    turn = [("fp32", 1), ("int4", 1)]  # without the broken layout
    assert FakeInstances.started == [("fp32", 1), ("fp32", 2), ("int4", 1), ("int4", 2), *turn, *turn]
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    samples = [len(each["together"]["tokens_per_s"]["samples"]) for each in result["cases"]]
    assert samples == [6, 4]  # three starts, and two before Ctrl-C
    left = [(each["precision"], each["layout"], each["reason"]) for each in result["left_out"]]
    assert left[:2] == [(precision, "2x1", "instance 1 was killed") for precision in ("fp32", "int4")]
    assert left[2][0] == "int4"
    assert "interrupted" in left[2][2]


def test_models_that_do_not_fit_together_are_left_out_before_anything_is_started(
    tiny: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Twenty instances of a large model would meet the kernel's out-of-memory killer, and not only they."""
    monkeypatch.setattr(multi_socket, "read_memory", lambda: type("Memory", (), {"available": 1 << 30}))
    monkeypatch.setattr(multi_socket, "Instances", lambda *_, **__: pytest.fail("started"))
    assert multi_socket.main(["--target", tiny, "--precisions", "fp32", "--layouts", "1x1", "--offline"]) == 1
    assert "1 instances need 1.7 GiB, and 1.0 GiB are available" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--layouts", "two"], "neither NxT"),
        (["--precisions", "bf16,int3"], "int3"),
        (["--max-new-tokens", "1"], "at least 2"),
        (["--repeats", "0"], "at least 1"),
    ],
)
def test_wrong_flags_end_with_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error comes before a model is looked for."""
    assert multi_socket.main(["--target", "/no/such", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_assistants_that_are_no_checkpoints_are_not_opened() -> None:
    """--assistant self or lookup would be taken for a folder that is missing."""
    assert [multi_socket.model_of(name) for name in (None, "self", "lookup", "auto-lookup", "lookup+self")] == [
        None
    ] * 5
    assert [multi_socket.model_of(name) for name in ("org/model", "lookup+org/model")] == ["org/model"] * 2


def test_without_matplotlib_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tiny: str) -> None:
    """The lack would show after hours of measuring; it must show before, with what to type."""
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "matplotlib" else real(name, *a))
    monkeypatch.setattr(multi_socket, "Instances", lambda *_, **__: pytest.fail("started"))
    with pytest.raises(UsageError, match=r"pip install '.*\[plot\]'"):
        multi_socket.run(["--target", tiny, "--plot", "x.png"])
