"""The generating process at its edges: terminals, streams that are closed or poor in characters, memory, bad flags."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import checkpoint_files
import pytest

from ipex_assist import cli
from ipex_assist.checkpoints import hub
from ipex_assist.commands import generate
from ipex_assist.commands.shared import arguments, memory_need
from ipex_assist.env.memory import MemoryInfo

pytestmark = pytest.mark.one_stack

OPTIONS = ["--executor", "torch", "--precision", "fp32", "--assistant-model", "none", "--max-new-tokens", "12", "--raw"]
PROMPT = ["-p", "the quick brown fox", *OPTIONS]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a tiny random Llama."""
    return str(checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path_factory.mktemp("run") / "target"))


@pytest.fixture(scope="module")
def piped(target: str) -> subprocess.CompletedProcess[str]:
    """A placed run whose output nobody watches."""
    cpu = str(min(os.sched_getaffinity(0)))
    done = subprocess.run(command("-m", target, *PROMPT, "--cpus", cpu), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ipex_assist", *arguments]


def on_terminal(*arguments: str, typed: bytes = b"") -> tuple[str, int]:
    """Run with a terminal as all three streams; what it shows, and the exit code."""
    master, slave = pty.openpty()
    os.write(master, typed)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))  # tqdm draws nothing in 0 columns
    process = subprocess.Popen(command(*arguments), stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    shown = b""
    try:
        while select.select([master], [], [], 60)[0]:
            try:
                piece = os.read(master, 4096)
            except OSError:  # how Linux says that the other end is closed
                break
            shown += piece
        return shown.decode(), process.wait(timeout=60)
    finally:
        process.kill()
        os.close(master)


def test_no_prompt_on_a_terminal_is_an_error(target: str) -> None:
    """Somebody who types none, and ends it, is told how else one is given."""
    shown, code = on_terminal("-m", target, *OPTIONS, typed=b"\x04")
    assert code == 2
    assert "end it with Ctrl-D" in shown
    assert "give -p TEXT" in shown


def test_progress_on_a_terminal_only(target: str, piped: subprocess.CompletedProcess[str]) -> None:
    """A line that is rewritten where somebody watches; no such thing in a log file."""
    shown, code = on_terminal("-m", target, *PROMPT)
    assert code == 0, shown
    assert "\r\033[Kipex-assist: " in shown, "importing torch alone takes longer than what is not shown"
    assert "\r" not in piped.stderr
    assert "\033" not in piped.stderr


def test_characters_the_locale_lacks_are_replaced_one_by_one() -> None:
    """In an ASCII locale whole pieces of text were left out, without a word."""
    code = (
        "from ipex_assist.commands.generate import replace_characters; replace_characters();"
        "from ipex_assist.commands.shared.output import TextPrinter;"
        "printer = TextPrinter(enabled=True); printer.write('one na\u00efve'); printer.write(' two'); printer.close()"
    )
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, env=environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"one na?ve two\n"


def test_closed_standard_output(target: str) -> None:
    """`>&-`: a message instead of a traceback."""
    line = f'exec "{sys.executable}" -m ipex_assist -m "{target}" -p fox >&-'
    done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    assert "standard output is closed" in done.stderr
    assert "Traceback" not in done.stderr


def test_closed_standard_error(target: str) -> None:
    """`2>&-`: the text, where messages went to standard output and the first one failed with an AttributeError."""
    line = f'exec "{sys.executable}" -m ipex_assist -m "{target}" -p fox --max-new-tokens 4 --json 2>&-'
    done = subprocess.run(["sh", "-c", line], stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["new_tokens"] == 4


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["-m", "T", "-p", "fox", "--dry-run"]])
def test_a_reader_that_has_gone_before_anything_is_written(arguments: list[str], target: str) -> None:
    """`ipex-assist --help | head -0`: Python would complain at exit, after everybody who could catch it."""
    read, write = os.pipe()
    os.close(read)
    arguments = [target if a == "T" else a for a in arguments]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command(*arguments), stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, env=environ)
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == ""


def test_full_disk(target: str) -> None:
    """The error is one line with the reason."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command("-m", target, *PROMPT), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr


def test_placement_flags_without_launching_are_not_ignored_in_silence(
    target: str, piped: subprocess.CompletedProcess[str]
) -> None:
    """--no-launch --cpus 0 ran on all CPUs. The launcher's own child has --cpus, too, and must not be told off."""
    alone = subprocess.run(
        command("-m", target, *PROMPT, "--no-launch", "--cpus", "0"), capture_output=True, text=True, timeout=60
    )
    assert alone.returncode == 0
    assert "--cpus: no effect with --no-launch" in alone.stderr
    assert "no effect" not in piped.stderr


def test_flags_are_not_abbreviated(target: str) -> None:
    """The command that `--dry` printed was itself a dry run."""
    done = subprocess.run(command("-m", target, "-p", "fox", "--dry"), capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "--dry" in done.stderr


def test_slow_standard_input_is_not_replaced_in_silence() -> None:
    """The built-in prompt is taken where nothing comes; somebody whose prompt was on its way must learn of it."""
    process = subprocess.Popen(
        command("--max-new-tokens", "4"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    err = process.stderr.read().decode()
    assert process.wait(timeout=60) == 0
    assert "nothing came from standard input" in err


def test_prompt_file_that_is_no_text(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Usage error, not UnicodeDecodeError."""
    file = tmp_path / "prompt"
    file.write_bytes(b"\xff\xfe\x00")
    assert cli.main(["--no-launch", "-m", target, "--prompt-file", str(file), *OPTIONS]) == 2
    assert "not UTF-8" in capsys.readouterr().err


def test_memory_is_checked_before_a_download(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only models on this machine were checked: one far too large was downloaded first, and never checked."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(memory_need, "read_memory", lambda: MemoryInfo(32 << 30, 32 << 30))
    monkeypatch.setattr(memory_need, "resident_bytes", lambda: 0)  # of tests that ran before
    monkeypatch.setattr(hub, "parameters_on_hub", lambda source, revision: 66_000_000_000)
    monkeypatch.setattr(hub, "_download", lambda source, revision: pytest.fail("it was downloaded"))
    assert cli.main(["--no-launch", "-m", "someone/far-too-large", "-p", "fox", "--no-assisted"]) == 1
    message = capsys.readouterr().err
    assert "too little memory: 123.6 GiB are needed" in message
    assert "32.0 GiB are available" in message


def test_the_launcher_does_not_ask_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """--dry-run answers at once, network or not."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "parameters_on_hub", lambda source, revision: pytest.fail("it was asked"))
    assert memory_need.estimate_need("someone/model", None, "bf16", None, 128).total is None


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")]
)
def test_out_of_memory_says_what_to_do(
    error: Exception, target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch's own message names a line of C++."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(generate, "load_models", fail)
    assert cli.main(["--no-launch", "-m", target, *PROMPT]) == 1
    assert "out of memory; use a smaller --precision" in capsys.readouterr().err


def test_unexpected_errors_hide_their_traceback_unless_asked(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is one line by default, and the whole story with -v."""

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr(generate, "load_models", fail)
    assert cli.main(["--no-launch", "-m", target, *PROMPT]) == 1
    short = capsys.readouterr().err
    assert "ZeroDivisionError: a bug of ours" in short
    assert "Traceback" not in short
    assert cli.main(["--no-launch", "-m", target, *PROMPT, "-v"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_termination_while_loading(target: str) -> None:
    """A scheduler's SIGTERM before the first token: exit 143, no traceback."""
    process = subprocess.Popen(
        command("-m", target, *PROMPT, "--no-launch"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        if "libtorch" in Path(f"/proc/{process.pid}/maps").read_text():
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert b"Traceback" not in err


@pytest.mark.parametrize(("code", "done"), [(0, 1), (130, 1), (143, 0)])
def test_what_the_text_does_not_wait_for(code: int, done: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A packed copy that nobody writes after Ctrl-C, or one that a process writes that was told to end."""
    calls: list[int] = []

    def load_models(*given: Any, later: list[Any], **more: Any) -> tuple[Any, list[str]]:
        later.append(lambda: calls.append(1))
        model = SimpleNamespace(
            tokenizer=SimpleNamespace(chat_template=None),
            sampling_defaults={},
            stream=lambda *_, **more: None,
        )
        return model, []

    monkeypatch.setattr(generate, "load_models", load_models)
    monkeypatch.setattr(generate, "_generate", lambda *given: code)
    before = signal.getsignal(signal.SIGINT)
    try:
        assert generate.generate(arguments.parse(["-m", "model", *PROMPT])) == code
        assert len(calls) == done
    finally:
        signal.signal(signal.SIGINT, before)
