"""What the folder, the locale, the kind of file and the limits of a process do to a command: said, not guessed at."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tiny_models
from command_runs import run
from conftest import HAS_NATIVE

from ipex_assist import cli
from ipex_assist.batch.command import main as batch
from ipex_assist.bench.prompts import open_dataset
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.commands.shared.arguments import is_input, load_options, parse
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.hints import first_today
from ipex_assist.env.runner import run_command

pytestmark = pytest.mark.one_stack


def test_a_working_folder_that_is_gone(tmp_path: Path) -> None:
    """It was "its tokenizer is corrupt"."""
    gone = tmp_path / "gone"
    gone.mkdir()
    code = "import os, sys\nos.rmdir(os.getcwd())\nfrom ipex_assist import cli\nsys.exit(cli.main(['models']))"
    run = subprocess.run([sys.executable, "-c", code], cwd=gone, capture_output=True, text=True, env=_environ())
    assert (run.returncode, run.stdout) == (2, "")
    assert "the folder that this shell is in was deleted" in run.stderr


def _environ(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1]), **more}


@pytest.mark.parametrize(("locale", "said"), [("iso8859-1", True), ("utf-8", False)])
def test_an_argument_in_another_encoding_than_the_locales(
    locale: str, said: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: locale)
    monkeypatch.setattr(os, "fsencode", lambda word: word.encode("latin-1" if said else "utf-8"))
    word = "caf\u00e9".encode().decode("latin-1") if said else "caf\u00e9"
    cli._check_start(["-p", word])
    assert ("LC_ALL=C.UTF-8" in capfd.readouterr().err) == said


def test_a_pipe_is_an_input(tmp_path: Path) -> None:
    """`--text <(…)` of bash was "no such file"."""
    os.mkfifo(tmp_path / "pipe")
    assert is_input(tmp_path / "pipe")
    assert not is_input(tmp_path)
    assert not is_input(tmp_path / "missing")


@pytest.mark.parametrize("command", ["eval", "embed"])
def test_a_command_reads_a_pipe(command: str, pair: tuple[str, str], tmp_path: Path) -> None:
    """Through the start under numactl, too."""
    (tmp_path / "text").write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    flags = {"eval": "--text <(cat text) --window 32", "embed": "--task embed <(cat text)"}[command]
    line = f'"$0" -m ipex_assist {command} -m "$1" {flags} --threads 1'
    done = subprocess.run(
        ["bash", "-c", line, sys.executable, pair[0]], cwd=tmp_path, capture_output=True, text=True, env=_environ()
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_benchmark_reads_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as writer:
        writer.submit((tmp_path / "pipe").write_text, '{"prompt": "Why?"}\n{"prompt": "How?"}\n')
        assert [each.prompt for each in open_dataset(str(tmp_path / "pipe")).prompts] == ["Why?", "How?"]


def test_results_do_not_go_to_a_file_called_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("Hello\n")
    tiny_models.save(tmp_path / "m", "llama")
    with pytest.raises(UsageError, match="-o -: results go to a file"):
        batch(["prompts.txt", "-o", "-", "-m", "m"])
    assert not (tmp_path / "-").exists()


def test_a_link_to_a_blob_that_is_gone(tmp_path: Path) -> None:
    """A hub cache that was cleaned in part had "no config.json; it holds config.json"."""
    tiny_models.save(tmp_path, "llama")
    for name in ("model.safetensors", "config.json"):
        (tmp_path / name).unlink()
        (tmp_path / name).symlink_to(tmp_path / "blobs" / "abc")
        with pytest.raises(IpexAssistError, match=rf"{name} leads to .*blobs/abc, which is gone"):
            open_checkpoint(str(tmp_path))
        (tmp_path / name).unlink()
        (tmp_path / name).touch()


def test_a_hint_about_a_path_that_is_not_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IPEX_ASSIST_HINTS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    hint = "no assistant of " + os.fsdecode(b"mod\xe9l")
    assert [first_today(hint), first_today(hint)] == [True, False]


def test_a_limit_of_threads(capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise RuntimeError("can't start new thread")

    assert run_command(work, "x") == 1
    assert "(ulimit -u): raise it" in capfd.readouterr().err


def test_the_default_model_by_the_name_that_help_gives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    args = parse(["-m", "SmolLM2-135M", "-p", "Hello"])
    assert load_options(args).target is None
    (tmp_path / "SmolLM2-135M").mkdir()
    assert load_options(args).target == "SmolLM2-135M"


@pytest.mark.skipif(not HAS_NATIVE, reason="only the native core books memory for keys and values")
def test_small_commands_that_run_together(pair: tuple[str, str]) -> None:
    """`xargs -P4`: the first one booked what was left of the memory, and the second one found too little."""
    flags = ["-p", "the quick brown fox", "--raw", "--no-assisted", "--max-new-tokens", "64", "--threads", "1"]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: run("-m", pair[0], *flags, "--executor", "native"), range(4)))
    assert [done.returncode for done in found] == [0] * 4, found
    assert not any("memory" in done.stderr for done in found), found
    assert len({done.stdout for done in found}) == 1
