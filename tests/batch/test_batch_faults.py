"""`ipex-assist batch` when things go wrong: killed, hung, refused, full, interrupted. Processes die for real here."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from batch_runs import (
    FAKE,
    TWO,
    by_id,
    children,
    gone,
    instances_in,
    lines_in,
    records,
    run,
    start,
    wait_for,
    write_prompts,
)

from ipex_assist.speculative.options import GenerationOptions

pytestmark = [pytest.mark.one_stack, pytest.mark.daemons]


def test_results_and_their_fields(tmp_path: Path) -> None:
    """Every prompt once, with its id, its own options, and where and when it ran."""
    prompts = write_prompts(
        tmp_path / "p.jsonl",
        ["one two", {"prompt": "three"}, {"id": "x", "prompt": "four", "max_new_tokens": 5, "stop": "."}],
    )
    code, err = run(FAKE, prompts, "-o", tmp_path / "o", *TWO, "--max-new-tokens", 9, "--seed", 3)
    assert code == 0, err
    found = by_id(tmp_path / "o")
    assert {own_id: record["text"] for own_id, record in found.items()} == {"p0": "one two", 2: "three", "x": "four"}
    flags = GenerationOptions(max_new_tokens=9, seed=3)
    assert GenerationOptions.of(**found["p0"]["options"]) == flags
    assert GenerationOptions.of(**found["x"]["options"]) == GenerationOptions.of(flags, max_new_tokens=5, stop=["."])
    assert [found[own_id]["line"] for own_id in ("p0", 2, "x")] == [1, 2, 3]
    for record in found.values():
        assert record["tries"] == 1
        assert record["instance"] in (0, 1)
        assert time.time() - 60 < record["started"] <= record["ended"] <= time.time()
    assert "3 prompts done" in err


def test_instances_are_pinned_and_share_the_work(tmp_path: Path) -> None:
    """Two instances on two cores: each has its own, and a slow one does not hold up the other's queue."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one CPU")
    prompts = write_prompts(tmp_path / "p.jsonl", [f"word {i}" for i in range(100)])  # beside others, one starts late
    code, err = run(FAKE, prompts, "-o", tmp_path / "o", "--instances", 2, SLEEP="0.1")
    assert code == 0, err
    found = records(tmp_path / "o")
    masks = {record["instance"]: frozenset(record["cpus"]) for record in found}
    assert len(masks) == 2
    assert not masks[0] & masks[1]
    assert {record["number"] for record in found} == {"0", "1"}
    assert min(sum(record["instance"] == number for record in found) for number in (0, 1)) >= 5


def test_a_prompt_of_a_killed_instance_is_retried_elsewhere(tmp_path: Path) -> None:
    """kill -9 in the middle of a prompt: the other instance does it, and the first comes back."""
    mark = tmp_path / "mark"
    prompts = write_prompts(tmp_path / "p.jsonl", [f"die-first {mark}", *[f"word {i}" for i in range(40)]])
    code, err = run(FAKE, prompts, "-o", tmp_path / "o", *TWO, SLEEP="0.1")
    assert code == 0, err
    found = by_id(tmp_path / "o")
    assert len(found) == 41
    assert found["p0"]["tries"] == 2
    killed = 1 - found["p0"]["instance"]
    assert f"instance {killed}: was killed by SIGKILL" in err
    # Its first process ended with the first prompt, so that all it has done is another's.
    assert len({record["pid"] for record in found.values() if record["instance"] == killed}) == 1


def test_a_deadly_prompt_fails_alone(tmp_path: Path) -> None:
    """It kills two instances and not a third; the others' results are untouched, and the exit code tells."""
    prompts = write_prompts(tmp_path / "p.jsonl", ["a", "die", "b", "refuse", "again", "c"])
    code, err = run(FAKE, prompts, "-o", tmp_path / "o", *TWO)
    assert code == 1
    found = by_id(tmp_path / "o")
    assert len(found) == 6
    assert "was killed by SIGKILL" in found["p1"]["error"]
    assert found["p1"]["error"].count("try") == 2
    assert (found["p3"]["error"], found["p3"]["tries"]) == ("this prompt is no good", 1)
    assert (found["p4"]["tries"], found["p4"]["error"].count("something broke")) == (2, 2)
    assert {own_id for own_id in found if "error" not in found[own_id]} == {"p0", "p2", "p5"}
    assert 'id "p1" (line 2) failed' in err


def test_failed_prompts_are_retried_on_request_only(tmp_path: Path) -> None:
    """--resume takes an error for an answer, --retry-failed does not; neither leaves two records of one id."""
    out, mark = tmp_path / "o", tmp_path / "mark"
    prompts = write_prompts(tmp_path / "p.jsonl", ["a", "die", f"again-first {mark}", "b"])
    assert run(FAKE, prompts, "-o", out, "--no-launch")[0] == 1
    assert sum("error" in record for record in records(out)) == 1  # the mark is there at the second try
    before = out.read_bytes()
    code, err = run(FAKE, prompts, "-o", out, *TWO, "--resume")
    assert (code, out.read_bytes()) == (1, before)
    assert "--retry-failed" in err
    code, err = run(FAKE, prompts, "-o", out, *TWO, "--resume", "--retry-failed")
    assert code == 1
    assert "1 failed prompt to be tried again" in err
    assert len(by_id(out)) == 4
    write_prompts(prompts, ["a", "lives", f"again-first {mark}", "b"])
    assert run(FAKE, prompts, "-o", out, *TWO, "--resume")[0] == 2
    assert run(FAKE, prompts, "-o", out, *TWO, "--resume", "--retry-failed")[0] == 0
    assert by_id(out)["p1"]["text"] == "lives"


@pytest.mark.parametrize("stopped", [False, True], ids=["sleeps", "SIGSTOP"])
def test_a_hung_instance_is_killed_and_its_prompt_retried(stopped: bool, tmp_path: Path) -> None:
    """--timeout: deaf to SIGTERM or even stopped, it must go."""
    hangs = "b" if stopped else f"hang-first {tmp_path / 'mark'}"
    prompts = write_prompts(tmp_path / "p.jsonl", ["a", hangs, *[f"word {i}" for i in range(100 if stopped else 30)]])
    process = start(FAKE, prompts, "-o", tmp_path / "o", *TWO, "--timeout", 2, SLEEP="0.1")
    if stopped:
        wait_for(lambda: len(instances_in(tmp_path / "o")) == 2)
        os.kill(children(process.pid)[0], signal.SIGSTOP)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    found = by_id(tmp_path / "o")
    assert len(found) == (102 if stopped else 32)
    assert [record["tries"] for record in found.values()].count(2) == 1
    assert "gave no result within 2 s (--timeout)" in err


def test_a_prompt_that_always_hangs_fails(tmp_path: Path) -> None:
    """After two tries, with the reason; however many there are, no instance is left out for it."""
    prompts = write_prompts(tmp_path / "p.jsonl", ["hang", "a", *["hang"] * 3])
    code, _ = run(FAKE, prompts, "-o", tmp_path / "o", "--no-launch", "--timeout", 0.3)
    assert code == 1
    found = by_id(tmp_path / "o")
    assert found["p1"]["text"] == "a"
    assert sum("no result within 0.3 s" in record.get("error", "") for record in found.values()) == 4


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=lambda v: str(int(v))
)
def test_signals_end_it_soon_and_resume_finishes(number: int, code: int, tmp_path: Path) -> None:
    """To the coordinator alone, as scancel --batch does: what is done is kept, no instance is left."""
    out = tmp_path / "o"
    prompts = write_prompts(tmp_path / "p.jsonl", [f"word {i}" for i in range(60)])
    process = start(FAKE, prompts, "-o", out, *TWO, SLEEP="0.1")
    wait_for(lambda: lines_in(out) >= 5)
    pids = children(process.pid)
    process.send_signal(number)
    started = time.monotonic()
    _, err = process.communicate(timeout=20)
    assert time.monotonic() - started < 15
    assert process.returncode == code
    assert "Traceback" not in err
    done = len(by_id(out))
    assert 5 <= done < 60
    assert f"{60 - done} prompts left for --resume" in err
    assert len(pids) == 2
    wait_for(lambda: gone(pids))
    assert run(FAKE, prompts, "-o", out, *TWO, "--resume")[0] == 0
    assert len(by_id(out)) == 60


def test_a_signal_to_every_process_at_once(tmp_path: Path) -> None:
    """A scheduler's SIGTERM reaches the instances, too, and each twice: what they are at must still be kept."""
    out = tmp_path / "o"
    prompts = write_prompts(tmp_path / "p.jsonl", [f"word {i}" for i in range(20)])
    process = start(FAKE, prompts, "-o", out, *TWO, SLEEP="0.5")
    wait_for(lambda: lines_in(out) >= 2)
    time.sleep(0.2)  # the next ones are on their way
    before = lines_in(out)
    for _ in range(2):
        for pid in (*children(process.pid), process.pid):
            os.kill(pid, signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 143, err
    assert len(by_id(out)) >= before + 2  # both in flight
    assert "killed by SIGTERM" not in err


def test_a_hung_instance_does_not_delay_the_end(tmp_path: Path) -> None:
    """Ctrl-C, and again: it ends at once rather than after the grace."""
    prompts = write_prompts(tmp_path / "p.jsonl", ["a", "hang"])
    process = start(FAKE, prompts, "-o", tmp_path / "o", "--no-launch")
    wait_for(lambda: lines_in(tmp_path / "o") == 1)
    pids = children(process.pid)
    started = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert time.monotonic() - started < 3  # the grace
    assert process.returncode == 130
    assert gone(pids)


@pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "no-launch"])
def test_kill_9_of_the_coordinator(pinned: bool, tmp_path: Path) -> None:
    """No code of ours can act on that: the kernel ends the instances, the file is sound, and --resume does the rest."""
    out = tmp_path / "o"
    prompts = write_prompts(tmp_path / "p.jsonl", [f"word {i}" for i in range(60)])
    arguments = [prompts, "-o", out, "--instances", 1, *([] if pinned else ["--no-launch"])]
    process = start(FAKE, *arguments, SLEEP="0.05")
    wait_for(lambda: lines_in(out) >= 5)
    pids = children(process.pid)
    process.kill()
    process.communicate(timeout=20)
    assert pids
    wait_for(lambda: gone(pids), 2)
    with open(out, "a") as file:
        file.write('{"id": "p59", "text": "torn')
    code, err = run(FAKE, *arguments, "--resume")
    assert code == 0
    assert "the last line was cut short" in err
    assert len(by_id(out)) == 60


@pytest.mark.parametrize("concurrency", [pytest.param(1, marks=pytest.mark.full), 16])
def test_many_kills_of_both_kinds(concurrency: int, tmp_path: Path) -> None:
    """kill -9 of instances and of the coordinator, again and again: a thousand results in the end, each once."""
    out = tmp_path / "o"
    prompts = write_prompts(tmp_path / "p.jsonl", [f"word {i}" for i in range(1000)])
    runs = 0
    while runs < 30:
        runs += 1
        process = start(FAKE, prompts, "-o", out, *TWO, "--resume", "--concurrency", concurrency, SLEEP="0.001")
        enough = lines_in(out) + 120
        kill_at = enough - 60
        while process.poll() is None and lines_in(out) < enough:
            if lines_in(out) >= kill_at and (pids := children(process.pid)):
                os.kill(pids[runs % len(pids)], signal.SIGKILL)
                kill_at += 1000
            time.sleep(0.002)
        process.kill()
        process.communicate()
        if process.returncode == 0:
            break
    assert process.returncode == 0
    assert runs >= 5
    assert len(by_id(out)) == 1000
    assert all("text" in record for record in records(out))


def limited(size: int) -> list[str]:
    """A program prefix that lets no file grow beyond `size` bytes."""
    code = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"
    return [sys.executable, "-c", f"{code}; os.execv(sys.argv[1], sys.argv[1:])"]


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """Quota or limit: exit code 1, a message without a traceback, whole lines, and --resume with room finishes."""
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    out = tmp_path / "o"
    prompts = write_prompts(tmp_path / "p.jsonl", ["big 3000"] * 30)
    code, err = run([*limited(40_000), *FAKE], prompts, "-o", out, *TWO)
    assert code == 1
    done = len(by_id(out))
    assert 5 < done < 30
    assert f"File too large. The {done} results in it are whole; make room" in err
    assert run(FAKE, prompts, "-o", out, *TWO, "--resume")[0] == 0
    assert len(by_id(out)) == 30


def test_a_full_disk(tmp_path: Path) -> None:
    """A real file system without room (a tmpfs of our own); with room, --resume finishes."""
    unshare = shutil.which("unshare")
    namespace = ["unshare", "-r", "-m"]
    if unshare is None or subprocess.run([*namespace, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here, so no file system of our own")
    prompts = write_prompts(tmp_path / "p.jsonl", ["big 3000"] * 30)
    disk, copy = tmp_path / "disk", tmp_path / "copy"
    disk.mkdir()
    script = (
        'mount -t tmpfs -o size=64k tmpfs "$1" && disk=$1 copy=$2 && shift 2 || exit 90\n'
        '"$@"; first=$?; cp "$disk/o" "$copy.first"\n'
        'mount -o remount,size=10m "$disk"\n'
        '"$@" --resume; second=$?; cp "$disk/o" "$copy"\n'
        "exit $((first * 10 + second))\n"
    )
    code, err = run([*namespace, "sh", "-c", script, "sh", str(disk), str(copy), *FAKE], prompts, "-o", disk / "o")
    if code == 90:
        pytest.skip(f"no mounting here: {err}")
    assert code == 10, err
    assert "No space left on device" in err
    assert 5 < len(by_id(tmp_path / "copy.first")) < 30
    assert len(by_id(copy)) == 30


def test_a_malformed_line_and_the_same_id_twice(tmp_path: Path) -> None:
    """Reported by number, both of them for an id; the rest runs; the exit code tells; --resume says so again."""
    path = tmp_path / "p.jsonl"
    path.write_text(
        '{"id": "a", "prompt": "one"}\n{"id": "b", "prompt": \n'
        '{"id": "a", "prompt": "two"}\n{"id": "c", "prompt": "x"}\n'
    )
    for more in ([], ["--resume"]):
        code, err = run(FAKE, path, "-o", tmp_path / "o", *TWO, *more)
        assert code == 1
        assert f"{path} line 2: not JSON" in err
        assert f'{path} line 3: id "a" is that of line 1' in err
        assert "2 lines of" in err.splitlines()[-1]
        found = by_id(tmp_path / "o")
        assert {own_id: record["text"] for own_id, record in found.items()} == {"a": "one", "c": "x"}


def test_resume_refuses_results_of_other_prompts(tmp_path: Path) -> None:
    """A line was inserted above, so that every default id means another prompt: nothing may be taken for done."""
    out = tmp_path / "o"
    prompts = write_prompts(tmp_path / "p.jsonl", [{"prompt": "one"}, {"prompt": "two"}])
    assert run(FAKE, prompts, "-o", out, *TWO)[0] == 0
    before = out.read_bytes()
    write_prompts(prompts, [{"prompt": "zero"}, {"prompt": "one"}, {"prompt": "two"}])
    code, err = run(FAKE, prompts, "-o", out, *TWO, "--resume")
    assert code == 2
    assert "2 results of other prompts" in err
    assert out.read_bytes() == before


def test_another_model_joins_with_a_word(tmp_path: Path) -> None:
    """Results of two models in one file may be meant, and may not."""
    out = tmp_path / "o"
    prompts = write_prompts(tmp_path / "p.jsonl", ["one", "two"])
    assert run(FAKE, prompts, "-o", out, "--shard", "0/2")[0] == 0
    code, err = run(FAKE, prompts, "-o", out, "--resume", "-m", "other")
    assert code == 0
    assert "has results of fake in fp32; those of other in fp32 join them" in err


@pytest.mark.parametrize(
    ("model", "code", "message"),
    [
        ("refuses", 1, "error: there is no model refuses"),
        ("refuses-usage", 2, "error: there is no model refuses-usage"),
        ("dies", 1, "was killed by SIGKILL"),
    ],
)
def test_models_that_cannot_be_loaded(model: str, code: int, message: str, tmp_path: Path) -> None:
    """The message of the instance, its exit code, and an end: not a restart without end."""
    prompts = write_prompts(tmp_path / "p.jsonl", ["one", "two"])
    got, err = run(FAKE, prompts, "-o", tmp_path / "o", *TWO, "-m", model)
    assert got == code
    assert message in err
    assert records(tmp_path / "o") == []


def test_one_instance_that_cannot_load_is_left_out(tmp_path: Path) -> None:
    """A node with too little memory: the other instance does all of it, and the first is not asked again."""
    prompts = write_prompts(tmp_path / "p.jsonl", [f"word {i}" for i in range(30)])
    code, err = run(FAKE, prompts, "-o", tmp_path / "o", "--instances", 2, "-m", "refuses-not-1", SLEEP="0.1")
    assert code == 0, err
    assert {record["instance"] for record in by_id(tmp_path / "o").values()} == {1}
    assert err.count("instance 0: there is no model refuses-not-1 (while loading); left out from here on") == 1
