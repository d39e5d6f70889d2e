"""`ipex-assist` as a process: output, exit codes, signals, and a clear message for every wrong input."""

from __future__ import annotations

import json
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import checkpoint_files
import pytest
from command_runs import PROMPT, command, last_json, on_own_cpus, run, run_all
from conftest import EXECUTORS, HAS_NATIVE

KEYS = [
    "text",
    "tokens",
    "prompt_tokens",
    "new_tokens",
    "ttft_s",
    "decode_s",
    "tokens_per_s",
    "speedup",
    "assisted",
    "target",
    "assistant",
    "precision",
    "assistant_precision",
    "executor",
    "stop_reason",
    "draft",
    "times",
    "seed",
    "logprobs",
    "kv_precision",
    "prompt_logprobs",
    "cached_tokens",
    "stop_text",
    "draft_head",
    "reasoning",
    "answer",
    "environment",
]
DRAFT_KEYS = ["rounds", "drafted", "accepted", "acceptance_rate", "tokens_per_pass", "accepted_histogram", "longest"]
DRAFT_KEYS += ["drafted_by_position", "accepted_by_position", "by_source"]


def test_assisted_and_plain_give_the_same_tokens(pair: tuple[str, str]) -> None:
    """The promise, end to end through the launcher; and the JSON object with all its keys on one line."""
    target, assistant = pair
    # A fixed number, because between two models of one size the adaptive one is, rightly, none.
    drafting = ("--assistant-model", assistant, "--num-assistant-tokens", "3")
    options = [*PROMPT, "--json", "--max-new-tokens", "20"]
    assisted, plain = run_all(["-m", target, *drafting, *options], ["-m", target, "--no-assisted", *options])
    assert (assisted.returncode, plain.returncode) == (0, 0), assisted.stderr + plain.stderr
    assert len(assisted.stdout.splitlines()) == 1
    one, two = last_json(assisted.stdout), last_json(plain.stdout)
    assert one["tokens"] == two["tokens"]
    for result in (one, two):
        assert list(result) == KEYS
        assert list(result["draft"]) == DRAFT_KEYS
    assert one["assisted"]
    assert one["draft"]["drafted"] > 0
    assert sum(one["draft"]["accepted_histogram"]) == one["draft"]["rounds"]
    assert not two["assisted"]
    assert set(two["draft"].values()) == {None}
    assert one["environment"]["plan"]["threads"] == one["environment"]["threads"]


def test_quiet_leaves_the_text_alone(pair: tuple[str, str]) -> None:
    """Scripts that keep standard error want to see warnings there, and no figures."""
    options = ["-m", pair[0], "-p", "the fox", "--raw", "--assistant-model", "none", "--max-new-tokens", "4"]
    done, loud = run_all([*options, "--quiet"], [*options, "-q", "-v"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == loud.stdout
    assert "4 new tokens" in loud.stderr


def test_text_and_statistics(pair: tuple[str, str]) -> None:
    """On each executor the text alone on standard output; nothing but our own lines on standard error."""
    options = ["-m", pair[0], "-p", "the fox", "--raw", "--assistant-model", "none"]
    for executor, done in zip(EXECUTORS, run_all(*([*options, "--executor", name] for name in EXECUTORS)), strict=True):
        assert done.returncode == 0, (executor, done.stderr)
        assert done.stdout.endswith("\n"), executor
        lines = done.stderr.splitlines()
        assert all(line.startswith("ipex-assist: ") for line in lines), (executor, done.stderr)
        assert re.search(r"\d+ new tokens in [\d.]+ s, [\d.]+ tokens/s, not assisted$", lines[-1])


@pytest.mark.one_stack
def test_the_same_text_however_it_is_asked_for_and_printed(
    pair: tuple[str, str], usual: subprocess.CompletedProcess[str], tmp_path: Path
) -> None:
    """Streaming must not lose or double a character; through the launcher's exec, standard input must be unread."""
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT[1])
    asked = on_own_cpus(
        lambda before: run("-m", pair[0], *PROMPT, "--no-stream", before=before),
        lambda before: run("-m", pair[0], *PROMPT[2:], "--prompt-file", str(file), before=before),
        lambda before: run("-m", pair[0], *PROMPT[2:], stdin=PROMPT[1], before=before),
        lambda before: run("-m", pair[0], *PROMPT[1:], stdin="not this", before=before),
    )
    assert [each.stdout for each in asked] == [usual.stdout] * 4
    assert len(usual.stdout) > 20


@pytest.mark.one_stack
def test_a_model_with_a_chat_template_answers_a_message(pair: tuple[str, str], tmp_path: Path) -> None:
    """From -p, a pipe and a bare prompt alike, unless --raw asks for a continuation; without a template there is none
    to ask for. In a shell's loop every line is a prompt."""
    base = shutil.copytree(pair[0], tmp_path / "base")
    (base / "chat_template.jinja").unlink(missing_ok=True)
    config = json.loads((base / "tokenizer_config.json").read_text())
    (base / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": None}))
    flags = ["--max-new-tokens", "4", "--json", "--no-assisted", *PROMPT[3:]]
    loop = f"""while read -r p; do "{sys.executable}" -m ipex_assist -m "{pair[0]}" {" ".join(flags)} "$p"; done"""
    lines = subprocess.Popen(
        ["sh", "-c", loop], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    asked = run_all(
        ["-m", pair[0], *flags, "-p", "the fox"],
        ["-m", pair[0], *flags, "-p", "the fox", "--chat"],
        ["-m", pair[0], *flags, "-p", "the fox", "--raw"],
        ["-m", str(base), *flags, "-p", "the fox"],
        ["-m", str(base), *flags, "-p", "the fox", "--chat"],
    )
    out, err = lines.communicate("the fox\nthe quick\nthe fox\n", timeout=120)
    assert asked.pop().returncode == 2
    chat, explicit, raw, plain = (last_json(each.stdout) for each in asked)
    assert chat["prompt_tokens"] == explicit["prompt_tokens"] > raw["prompt_tokens"] == plain["prompt_tokens"]
    assert chat["tokens"] == explicit["tokens"]
    assert raw["tokens"] == plain["tokens"]
    looped = [json.loads(line)["prompt_tokens"] for line in out.splitlines()]
    assert len(looped) == 3, err
    assert looped[0] == looped[2] == chat["prompt_tokens"]


@pytest.mark.one_stack
def test_stop_string_and_seeded_sampling(pair: tuple[str, str], usual: subprocess.CompletedProcess[str]) -> None:
    """A stop cuts before it; the same seed repeats, another does not."""
    text = usual.stdout
    options = ["-m", pair[0], *PROMPT]
    stopped, *draws = run_all(
        [*options, "--stop", text[10:13], "--json"],
        *([*options, "--do-sample", "--seed", seed] for seed in ("1", "1", "2")),
    )
    result = last_json(stopped.stdout)
    assert result["stop_reason"] == "stop"
    assert text.startswith(result["text"])
    assert text[10:13] not in result["text"]
    assert draws[0].stdout == draws[1].stdout != draws[2].stdout


@pytest.mark.one_stack
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_keep_text_and_statistics(number: int, code: int, tmp_path: Path) -> None:
    """Ctrl-C or a scheduler's SIGTERM in the middle: what there is comes out, with its statistics."""
    model = checkpoint_files.tiny_model("llama", max_position_embeddings=8192)
    folder = checkpoint_files.save(model, tmp_path / "long")
    process = subprocess.Popen(
        command("-m", str(folder), *PROMPT, "--max-new-tokens", "8000", "--assistant-model", "none"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    first = process.stdout.read(1)  # it generates
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert b"Traceback" not in err
    assert process.returncode == code, err
    assert first + out
    assert b"new tokens" in err.splitlines()[-1]


@pytest.mark.one_stack
def test_interrupt_while_loading(pair: tuple[str, str]) -> None:
    """Ctrl-C during the seconds of importing torch: exit 130, no traceback."""
    process = subprocess.Popen(command("-m", pair[0], *PROMPT), stderr=subprocess.PIPE)
    while process.poll() is None and not _maps_torch(process.pid):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert b"Traceback" not in err
    assert process.returncode in (130, -signal.SIGINT)


# What CPython writes of an interrupt that no program can catch: in a callback of its import system, or as it starts.
OF_THE_INTERPRETER = (
    b"Exception ignored in",
    b"Fatal Python error: init_",
    b"Error in sitecustomize",
    b"Error processing line",
)
_AS_THE_SCRIPT = """
import sys
from ipex_assist.cli import main
print("ready", flush=True)
sys.argv[0] = "ipex-assist"
sys.exit(main())
"""


@pytest.mark.one_stack
@pytest.mark.parametrize("seconds", [0.02, 0.05, 0.1, 0.2, 0.4])
@pytest.mark.parametrize("flags", [["-p", "fox"], ["bench", "-m", "MODEL"]], ids=["generate", "bench"])
def test_interrupt_at_once(pair: tuple[str, str], flags: list[str], seconds: float) -> None:
    """Ctrl-C while the command imports its own modules, and while it starts again on its cores, as a new interpreter:
    exit 130, and not a word. One that CPython drops, in a callback of its import system, and says so, is sent anew. In
    an interpreter that has not yet set its handler the signal ends the process, which a shell calls 130 as well. One
    that is still importing its own modules says so, and is asked again."""
    flags = [pair[0] if flag == "MODEL" else flag for flag in flags]
    for _ in range(5):
        code, err = _interrupted(flags, seconds)
        if not any(words in err for words in OF_THE_INTERPRETER):
            break
    assert code in (130, -signal.SIGINT), err
    assert err == b""


def _interrupted(flags: list[str], seconds: float) -> tuple[int, bytes]:
    """Exit code and standard error of a command that gets a Ctrl-C so long after its interpreter has started."""
    start = [sys.executable, "-c", _AS_THE_SCRIPT, *flags]
    process = subprocess.Popen(start, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


_INTERRUPTED_AS_IT_ENDS = """
import atexit, os, signal, sys, weakref
from ipex_assist import cli
from ipex_assist.commands import generate

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

def load_models(*args, made=generate.load_models, **options):
    model, warnings = made(*args, **options)
    weakref.finalize(model, interrupt)
    return model, warnings

generate.load_models = load_models
atexit.register(interrupt)
sys.exit(cli.main())
"""


@pytest.mark.one_stack
def test_interrupt_as_the_command_ends(pair: tuple[str, str]) -> None:
    """Ctrl-C while the model is freed, and while the interpreter ends: catches `Exception ignored in` and a traceback
    after the output.
    """
    flags = ["--no-launch", "-m", pair[0], *PROMPT, "--assistant-model", "none", "--json", "-q"]
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED_AS_IT_ENDS, *flags], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert last_json(done.stdout)["new_tokens"] > 0


def test_a_command_called_from_python_leaves_interrupts_as_they_were(pair: tuple[str, str]) -> None:
    """Catches a program that calls `main` and can no longer be ended by Ctrl-C."""
    from ipex_assist import cli

    before = signal.getsignal(signal.SIGINT)
    assert cli.main(["--no-launch", "-m", pair[0], *PROMPT, "--assistant-model", "none", "-q"]) == 0
    assert signal.getsignal(signal.SIGINT) is before


def _maps_torch(pid: int) -> bool:
    """Whether the process, or a child that it stands for, has torch."""
    try:
        pids = [str(pid), *Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return any("libtorch" in Path(f"/proc/{each}/maps").read_text() for each in pids)
    except OSError:  # it has just ended
        return False


@pytest.mark.one_stack
def test_interrupted_generation_reports(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Ctrl-C exactly after three tokens, in process: text so far, statistics, exit 130."""
    from ipex_assist import cli
    from ipex_assist.generation import stream

    counted = 0
    original = stream.Generation.__next__

    def interrupted(self: stream.Generation) -> stream.Chunk:
        nonlocal counted
        counted += 1
        if counted > 3:
            raise KeyboardInterrupt
        return original(self)

    monkeypatch.setattr(stream.Generation, "__next__", interrupted)
    before = signal.getsignal(signal.SIGINT)
    try:
        code = cli.main(["--no-launch", "-m", pair[0], *PROMPT, "--assistant-model", "none", "--json"])
    finally:
        signal.signal(signal.SIGINT, before)
    captured = capsys.readouterr()
    result = last_json(captured.out)
    assert code == 130
    assert (result["stop_reason"], result["new_tokens"]) == ("interrupted", 3)
    assert "3 new tokens" in captured.err


@pytest.mark.one_stack
def test_closed_pipe_ends_quietly(pair: tuple[str, str]) -> None:
    """`ipex-assist … | head -c 1`: no traceback, and the exit code a shell reports for SIGPIPE."""
    process = subprocess.Popen(command("-m", pair[0], *PROMPT), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read().decode()
    assert process.wait(timeout=60) in (141, -signal.SIGPIPE)
    assert "Traceback" not in err
    assert "BrokenPipe" not in err


@pytest.mark.one_stack
def test_help_fits_two_screens_and_dry_run_runs_nothing(pair: tuple[str, str]) -> None:
    """Neither imports torch; the dry run shows argv, environment, and no flag that would make it dry again."""
    help_ = run("--help")
    assert help_.returncode == 0
    assert len(help_.stdout.splitlines()) <= 2 * 35
    dry = run("-m", pair[0], "--dry-run", "--threads", "1", "-p", "x y")
    assert dry.returncode == 0, dry.stderr
    assert f"-m ipex_assist --placed -m {pair[0]} --threads 1 -p 'x y'" in dry.stdout
    assert "OMP_NUM_THREADS=1" in dry.stdout
    code = "import sys, ipex_assist.cli; ipex_assist.cli.main(sys.argv[1:]); print('torch' in sys.modules)"
    quiet = subprocess.run(
        [sys.executable, "-c", code, "-m", pair[0], "--dry-run"], capture_output=True, text=True, timeout=60
    )
    assert quiet.stdout.splitlines()[-1] == "False"


@pytest.mark.one_stack
def test_start_up_is_quick(pair: tuple[str, str]) -> None:
    """A small multiple of what Python takes for what every command line imports; torch alone would be fifty times that.
    Of the fourteen that a model takes, two are the hundred families, of which all are imported.

    Of a processor's time, the best of five in turns, because test machines are busy and differ; and no waiting.
    """
    bare = [sys.executable, "-c", "import argparse, json, logging, subprocess"]
    for arguments in (["--help"], ["-m", pair[0], "--dry-run"], ["-m", "facebook/opt-13b", "--dry-run"]):
        computing: dict[bool, list[float]] = {True: [], False: []}
        passed = []
        for _ in range(5):
            for ours in (True, False):
                before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
                done = run(*arguments) if ours else subprocess.run(bare, check=True)
                assert done.returncode == 0
                passed.append(time.perf_counter() - started)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)  # os.times counts in hundredths of a second
                computing[ours].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        assert min(computing[True]) < 20 * min(computing[False]), arguments
        assert min(passed) < 1, arguments


@pytest.mark.one_stack
def test_where_it_runs(pair: tuple[str, str]) -> None:
    """--no-launch: no plan, no relaunch. Under ipex-launch: as it placed. Without numactl: what is lost is said."""
    arguments = ["-m", pair[0], *PROMPT, "--max-new-tokens", "4", "--json"]
    outer = [sys.executable, "-m", "ipex_assist.launch", "--threads", "1", "--"]
    here, under, without = on_own_cpus(
        lambda before: run(*arguments, "--no-launch", before=before),
        lambda before: run(*arguments, before=[*before, *outer]),
        lambda before: run(*arguments, before=before, PATH="/nonexistent"),
    )
    assert last_json(here.stdout)["environment"]["plan"] is None
    assert last_json(under.stdout)["environment"]["threads"] == 1, under.stderr
    assert without.returncode == 0, without.stderr
    assert "numactl" in without.stderr


@pytest.mark.one_stack
def test_version() -> None:
    """The package's version alone on the first line, then whether the native core works, or why it does not."""
    from ipex_assist.version import __version__

    here, without = run("--version"), run("--version", IPEX_ASSIST_ISA="AMX")
    first, core = here.stdout.splitlines()
    assert first == f"ipex-assist {__version__}"
    assert (here.returncode, without.returncode) == (0, 0)
    assert without.stdout.splitlines()[0] == first
    assert "native core cannot be used: " in without.stdout
    reported = json.loads(run("env", "--json").stdout)
    assert (reported["native_core"] is not None) == HAS_NATIVE
    assert reported["native_core"] is None or core == f"native core {reported['native_core']}"
    assert "native core unavailable" in run("env", IPEX_ASSIST_ISA="AMX").stdout
    words = [sys.executable, "-m", "ipex_assist.launch", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"ipex-launch {__version__}\n")


def test_the_embedded_model_answers() -> None:
    """The main job without a hub: a real model, a real answer, drafted by its own copy, and the factor that gives."""
    prompt = ["-p", "What is the capital of France?", "--json"]
    # How much is drafted by default is decided by the clock, which other work may disturb: a number says.
    done, plain, fixed = run_all(prompt, [*prompt, "--no-assisted"], [*prompt, "--num-assistant-tokens", "3"])
    assert (done.returncode, plain.returncode, fixed.returncode) == (0, 0, 0), done.stderr + plain.stderr
    result = last_json(done.stdout)
    assert "Paris" in result["text"]
    assert result["stop_reason"] == "eos"
    assert result["text"] == last_json(plain.stdout)["text"] == last_json(fixed.stdout)["text"]
    assert last_json(plain.stdout)["speedup"] is None
    if HAS_NATIVE:
        assert (result["assistant"], result["precision"], result["assistant_precision"]) == ("self", "fp32", "int8")
        factor = f" ({result['speedup']:.2f}x plain)" if result["draft"]["drafted"] else ", nothing"
        assert f"tokens/s{factor}" in done.stderr
        assert last_json(fixed.stdout)["draft"]["accepted"] > 0


@pytest.mark.one_stack
def test_no_arguments_at_all() -> None:
    """The built-in prompt, even when standard input is an open pipe that nobody writes to."""
    process = subprocess.Popen(
        command("--max-new-tokens", "8"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out = process.stdout.read() if process.stdout else b""
    assert process.wait(timeout=60) == 0
    assert len(out) > 5
