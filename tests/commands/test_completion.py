"""Completion scripts: a real bash completes commands, flags and values by them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ipex_assist import cli
from ipex_assist.commands.shared.command_table import COMMANDS

pytestmark = pytest.mark.one_stack


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "ipex-assist"
    shell = [sys.executable, "-c", "from ipex_assist.cli import main; main(['completion', 'bash'])"]
    file.write_text(subprocess.run(shell, capture_output=True, text=True, check=True).stdout)
    return file


def completed(script: Path, *words: str) -> set[str]:
    """What bash offers for the last of these words after `ipex-assist`."""
    line = " ".join(f"'{word}'" for word in ("ipex-assist", *words))
    code = (
        f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words)}; COMP_TYPE=9; "
        "name=$(complete -p ipex-assist | sed 's/.*-F \\([^ ]*\\).*/\\1/'); "
        '$name ipex-assist "${COMP_WORDS[COMP_CWORD]}"; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    bash = shutil.which("bash") or "bash"
    answer = subprocess.run([bash, "--norc", "-c", code], capture_output=True, text=True, timeout=20)
    return {word.strip() for word in answer.stdout.split("\n")} - {""}


def test_commands(script: Path) -> None:
    assert completed(script, "") >= set(COMMANDS)
    assert completed(script, "se") == {"serve"}


def test_flags_of_a_command(script: Path) -> None:
    """Those of the command itself and those that it shares; none that it refuses."""
    found = completed(script, "serve", "--")
    assert {"--api-key-file", "--ssl-certfile", "--precision"} <= found
    assert "--prompt-file" not in found
    assert completed(script, "serve", "--precision", "in") == {"int8", "int4"}


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_other_shells(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS)


def test_no_such_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "fish"]) == 2
    assert "bash" in capsys.readouterr().err
