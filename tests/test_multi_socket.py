"""The benchmark of several instances: layouts of machines, sums, the common start, failing instances, whole runs."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import checkpoints
import pytest
from conftest import HAS_NATIVE
from machines import MachineSpec
from test_placement import PLAIN, XEON, machine

from ipex_assist.checkpoint import open_checkpoint
from ipex_assist.decode import Round
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.libraries import find_libraries
from ipex_assist.env.topology import read_topology
from ipex_assist.executors.choose import load_decoder
from ipex_assist.launch.abilities import Abilities
from ipex_assist.launch.placement import Placement
from ipex_assist.launch.process import Surroundings
from ipex_assist.launch.spawn import read_processes
from ipex_assist.traffic import Traffic, traffic_of

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import multi_socket  # noqa: E402
import multi_socket_figures as figures  # noqa: E402
import multi_socket_instance as instance  # noqa: E402
import multi_socket_layouts as layouts  # noqa: E402
import plots  # noqa: E402

pytestmark = pytest.mark.one_stack

PLAINLY = Surroundings(find_libraries({}), Abilities(numactl=False, mempolicy=False, taskset=False))
CPU = read_topology().allowed[0]
CORES = len(read_topology().default_cores())


def small(cores: int) -> Any:
    return machine(MachineSpec(cores_per_socket=cores))


# Layouts


def names(found: Any) -> list[str]:
    """What is measured by default: each place once, under its first name."""
    placed = [layouts.placed(name, found, None) for name in layouts.defaults(found)]
    return [each.name for i, each in enumerate(placed) if each.places not in [other.places for other in placed[:i]]]


def test_default_layouts_tell_each_machine_s_story() -> None:
    """Two cores get what "2 instances on 2 cores" is about; sockets and nodes bring theirs; nothing comes twice."""
    assert names(small(1)) == ["1x1"]
    assert names(small(2)) == ["1x1", "2x1", "1x2"]
    assert names(small(8)) == ["1x1", "2x1", "1x4", "2x4", "1x8"]
    assert names(PLAIN) == ["1x1", "2x1", "1x4", "4x4", "1x8", "per-node", "socket-all"]
    assert names(XEON) == ["1x1", "2x1", "1x4", "4x4", "1x8", "per-socket", "socket-all"]  # 4x4: one for each node


def test_instances_of_a_layout_share_no_core_and_one_process_may_have_all() -> None:
    """A bug here would let instances slow each other down, or leave a socket out of the two."""
    two = layouts.placed("4x4", XEON, None)
    cpus = [cpu for place in two.placements for cpu in place.cpus]
    assert len(cpus) == len(set(cpus)) == 16
    assert [place.nodes for place in two.placements] == [(0,), (1,), (2,), (3,)]
    (one,) = layouts.placed("socket-all", XEON, None).placements
    assert (one.threads, one.memory) == (16, "local")
    with pytest.raises(UsageError, match="there is one here"):
        layouts.placed("socket-all", small(4), None)
    with pytest.raises(UsageError, match="3x1x1"):
        layouts.parse("3x1x1")
    with pytest.raises(UsageError, match="2 of that size fit"):
        layouts.placed("3x1", small(2), None)


def test_what_a_machine_cannot_show_is_named() -> None:
    """One socket: the questions that two would answer; a machine that has everything names nothing."""
    one = " ".join(layouts.not_shown(small(2), assisted=False))
    for words in ("socket-all", "memory of the other socket", "sub-NUMA", "2 cores a socket", "no --assistant"):
        assert words in one
    assert layouts.not_shown(XEON, assisted=True) == []
    (quota,) = layouts.not_shown(replace(XEON, cpu_quota=3.0), assisted=True)
    assert "quota of 3" in quota
    assert layouts.describe(XEON) == {"sockets": 2, "nodes": 4, "cores": 16, "cpus": "0-31", "cpu_quota": None}


def test_memory_is_read_beyond_the_caches_and_not_by_gigabytes_each() -> None:
    """56 instances of 1 GiB each would not fit everywhere; a few MiB each would be read out of the caches."""
    assert layouts.read_bytes(layouts.placed("1x1", XEON, None)) == 1 << 30
    assert layouts.read_bytes(layouts.placed("16x1", XEON, None)) == 128 << 20
    assert layouts.read_bytes(layouts.placed("socket-all", XEON, None)) == 2 << 30


# Figures


def answer(started: float, first: float, ended: float, new: int = 11, **fields: Any) -> dict[str, Any]:
    return {
        "started": started,
        "first": first,
        "ended": ended,
        "prompt_tokens": 20,
        "tokens": list(range(new)),
        "bytes": 4e9,
        "drafted": None,
        "accepted": None,
    } | fields


def test_the_sum_lasts_until_the_last_one_ends() -> None:
    """Adding the speeds of each would count an instance as if it had been as fast with the others at work."""
    answers = [answer(0.0, 1.0, 2.0), answer(0.0, 2.0, 5.0)]
    assert figures.together(answers) == {
        "tokens_per_s": 22 / 5,
        "decode_tokens_per_s": 20 / 4,
        "prompt_tokens_per_s": 40 / 2,
        "GB_per_s": 2.0,
    }
    assert figures.together([answers[0], answers[1] | {"bytes": None}])["GB_per_s"] is None
    assert figures.alone(answers[1] | {"drafted": 8, "accepted": 6}) == {
        "ttft_ms": 2000.0,
        "tpot_ms": 300.0,
        "tokens_per_s": 10 / 3,
        "acceptance_rate": 0.75,
    }


def case(name: str, turns: list[list[dict[str, Any]]], assisted: bool = False, reads: float | None = 8.0) -> Any:
    layout = layouts.placed(name, small(2), None)
    facts: list[dict[str, Any]] = [{}] * len(layout.placements)
    made = figures.Case("int4", layout, assisted, facts, facts)
    for turn in turns:
        made.add(turn, [None if reads is None else reads / len(turn)] * len(turn))
    return made


def test_cases_are_compared_with_one_core_of_their_own_kind() -> None:
    """Assisted with assisted: or two instances would be credited with what the assistant brought."""
    alone, two = case("1x1", [[answer(0, 1, 2)]]), case("2x1", [[answer(0, 1, 2.5)] * 2], reads=12.0)
    fast = case("1x1", [[answer(0, 1, 1.5)]], assisted=True)
    both = case("2x1", [[answer(0, 1, 1.75)] * 2], assisted=True)
    cases = [two, alone, fast, both]
    assert figures.base_of(both, cases) is fast
    assert figures.base_of(two, cases) is alone
    assert (two.as_dict(cases)["over"], two.as_dict(cases)["times"]) == ("1x1", pytest.approx(2 * 2 / 2.5))
    assert both.as_dict(cases)["times"] == pytest.approx(2 * 1.5 / 1.75)
    assert alone.as_dict(cases)["times"] is None
    assert figures.speed_table(cases)[0]["÷ base"] == "1.60"
    memory = figures.memory_table(cases)[0]  # 8 GB in 1.5 s, of 12 GB/s; one reads 8
    assert (memory["decode GB/s"], memory["memory GB/s"], memory["memory ÷"], memory["% of memory"]) == (
        "5.3",
        "12.0",
        "1.50",
        "44",
    )
    (line,) = figures.close_lines(cases)
    assert "2x1 reads memory at 12.0 GB/s, 1x1 at 8.0" in line
    assert "1.50 ×" in line
    json.dumps([each.as_dict(cases) for each in cases])


def test_another_text_is_seen_in_any_sample_of_any_instance() -> None:
    """Speed that comes with other tokens is no speed: a lossy case must not read "same tokens: yes"."""
    alone = case("1x1", [[answer(0, 1, 2)]])
    good = case("1x1", [[answer(0, 1, 2)]] * 2, assisted=True)
    other = answer(0, 1, 2) | {"tokens": [*range(10), 99]}
    odd = case("2x1", [[answer(0, 1, 2)] * 2, [answer(0, 1, 2), other]])
    assert good.same_tokens([alone, good, odd])
    assert not odd.same_tokens([alone, good, odd])
    assert figures.speed_table([alone, odd])[1]["same tokens"] == "NO"


def test_unknown_figures_are_dashes() -> None:
    """Without the native core and our decoders there is no memory speed and no traffic, and still a table."""
    blind = case("1x1", [[answer(0, 1, 2, bytes=None)]], reads=None)
    row = figures.memory_table([blind])[0]
    assert [row[key] for key in ("decode GB/s", "memory GB/s", "memory ÷", "% of memory")] == ["–"] * 4
    assert figures.speed_table([blind])[0]["accepted"] == "–"
    assert blind.as_dict([blind])["together"]["GB_per_s"] is None


# What an instance counts


def test_a_round_reads_the_target_once_and_the_assistant_for_every_drafted_token() -> None:
    """Counting tokens instead of passes would have assisted decoding read more than there is."""
    target, assistant = Traffic(1000, 10), Traffic(100, 1)
    assert instance.bytes_of(Round([1], prompt=True), 20, target, assistant) == 0
    assert instance.bytes_of(Round([1]), 20, target, None) == 1200
    assert instance.bytes_of(Round([1, 2, 3], drafted=4, accepted=2), 20, target, assistant) == 1200 + 4 * 120


@pytest.mark.skipif(not HAS_NATIVE, reason="the native core is not built here")
@pytest.mark.parametrize(("precision", "size"), [("fp32", 4.0), ("bf16", 2.0), ("int8", 1.0), ("int4", 0.5)])
@pytest.mark.parametrize("tied", [False, True])
def test_traffic_is_that_of_the_linears(tmp_path: Path, precision: str, size: float, tied: bool) -> None:
    """The embedding table, half of this model, is in memory and is not read: it would double the GB/s of a pass."""
    model = checkpoints.tiny_model(
        "llama", vocab_size=4096, hidden_size=256, intermediate_size=512, tie_word_embeddings=tied
    )
    checkpoints.save(model, tmp_path, tokenizer=False)
    decoder = load_decoder(open_checkpoint(str(tmp_path)), precision, "native")
    linears = 4096 * 256 + 2 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 256 * 512)
    assert traffic_of(decoder, precision).weight_bytes == pytest.approx(linears * size, rel=0.1)


def test_resident_memory_by_node() -> None:
    """Huge pages count with their size, and names of files are not taken for nodes."""
    lines = [
        "7f0000000000 bind:0 anon=3 dirty=3 active=0 N0=2 N1=1 kernelpagesize_kB=4",
        "7f0000200000 bind:0 anon=2 dirty=2 N1=2 kernelpagesize_kB=2048",
        "7f0000300000 default file=/tmp/N=9 mapped=1 N0=1 kernelpagesize_kB=4",
        "7f0000400000 default stack",
    ]
    assert instance.memory_by_node(lines) == {0: 3 * 4096, 1: 4096 + 2 * (2 << 20)}


# The processes

FAKE = """
import json, os, sys, time
index = int(os.environ["IPEX_INSTANCE"])
settings = json.loads(sys.stdin.readline())
say = lambda reply: print(json.dumps(reply), flush=True)
time.sleep(settings["load_s"][index])
if settings.get("refuse") == index:
    say({"refusal": "no such model", "exit_code": 2})
    sys.exit()
say({"ready": {"loaded": time.monotonic()}})
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
        say({"result": None, "error": "out of luck"})
    else:
        say({"result": {"index": index, "started": started}})
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
    return str(checkpoints.save(checkpoints.tiny_model("llama"), tmp_path_factory.mktemp("multi") / "tiny"))


def benchmark(*arguments: str) -> tuple[int, list[str], str]:
    process = subprocess.run(
        [sys.executable, str(BENCHMARKS / "multi_socket.py"), "--offline", *arguments],
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
    """Before a model is looked for."""
    assert multi_socket.main(["--target", "/no/such", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_assistants_that_are_no_checkpoints_are_not_opened() -> None:
    """--assistant self or lookup would be taken for a folder that is missing."""
    assert [multi_socket.model_of(name) for name in (None, "self", "lookup", "auto-lookup", "lookup+self")] == [
        None
    ] * 5
    assert [multi_socket.model_of(name) for name in ("org/model", "lookup+org/model")] == ["org/model"] * 2


# The plot


def result_of(*cases: Any) -> dict[str, Any]:
    return {"target": "org/model", "cases": [each.as_dict(cases) for each in cases]}


def test_without_matplotlib_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tiny: str) -> None:
    """The lack would show after hours of measuring; it must show before, with what to type."""
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "matplotlib" else real(name, *a))
    monkeypatch.setattr(multi_socket, "Instances", lambda *_, **__: pytest.fail("started"))
    with pytest.raises(UsageError, match=r"pip install 'ipex-assist\[plot\]'"):
        multi_socket.run(["--target", tiny, "--plot", "x.png"])


def test_the_plot_has_a_bar_for_every_case(tmp_path: Path) -> None:
    """Both modes on every layout, at their medians; a wrong ending of the file's name is a message."""
    pytest.importorskip("matplotlib", reason="the extra [plot] is not installed")
    cases = [
        case("1x1", [[answer(0, 1, 2)]]),
        case("2x1", [[answer(0, 1, 2)] * 2]),
        case("1x1", [[answer(0, 1, 2)]], True),
    ]
    figure = plots.multi_socket(result_of(*cases), str(tmp_path / "out.png"))
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    speed, memory = figure.axes
    assert sorted(bar.get_height() for bar in speed.patches) == [5.5, 5.5, 11.0]
    assert sorted(bar.get_height() for bar in memory.patches) == [4.0, 4.0, 8.0]
    saved = tmp_path / "result.txt"
    saved.write_text("a table\n" + json.dumps(result_of(*cases)) + "\n")
    assert plots.main([str(saved), str(tmp_path / "out.svg")]) == 0
    assert plots.main([str(saved), str(tmp_path / "out.wrong")]) == 1
    assert plots.main([]) == 2
    with pytest.raises(IpexAssistError, match="cannot be written"):
        plots.multi_socket(result_of(*cases), str(tmp_path / "none" / "out.png"))
