"""Whether a command works in this process or starts again on its cores, and which idle flags it names."""

from __future__ import annotations

import argparse

import pytest

from ipex_assist import cli, launch
from ipex_assist.commands.shared.relaunch import works_here
from ipex_assist.launch import add_placement_arguments

pytestmark = pytest.mark.one_stack


def parsed(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("-v", "--verbose", action="store_true")
    add_placement_arguments(parser)
    return parser.parse_args(flags)


@pytest.mark.parametrize(
    ("flags", "placed", "here"),
    [
        ([], False, False),
        ([], True, True),
        (["--no-launch"], False, True),
        (["--no-launch"], True, True),
        (["--cpus", "0"], True, False),
        (["--threads", "1"], True, False),
        (["--no-launch", "--threads", "1"], False, True),
        (["--dry-run"], True, False),
        (["--dry-run", "--no-launch"], False, False),
        (["--placed", "--cpus", "0", "--threads", "1"], True, True),
        (["--dry-run", "--placed"], True, False),
    ],
)
def test_where_it_works(flags: list[str], placed: bool, here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """ipex-launch outside is enough, unless a flag inside asks for another place; a dry run works nowhere."""
    monkeypatch.setattr(launch, "inherited_plan", lambda _: object() if placed else None)
    assert works_here(parsed(*flags)) is here


@pytest.mark.parametrize(
    ("flag", "said"),
    [("--no-launch", "ipex-assist: --cpus, --numa-node: no effect with --no-launch\n"), ("--placed", "")],
)
def test_idle_flags_are_named(flag: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Who asks for cores and forbids to place the process is told so; the process that was placed by them is not."""
    assert works_here(parsed(flag, "--cpus", "0", "--numa-node", "0"))
    assert capsys.readouterr().err == said


def test_only_the_flag_of_users_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """The mark of a process that was placed is not a choice that anybody has."""
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "--no-launch" in out
    assert "--placed" not in out


@pytest.mark.parametrize(
    "flags",
    [
        ["-m", "./nowhere"],
        ["-m", "someone/target", "--assistant-model", "/nowhere/at/all"],
        ["-m", "someone/target", "--assistant-model", "lookup+./nowhere"],
    ],
)
def test_a_dry_run_refuses_a_path_to_nothing(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Catches a plan, with exit code 0, for what the run itself would refuse; a hub id may still be downloaded."""
    assert cli.main([*flags, "-p", "x", "--dry-run"]) == 2
    assert "nowhere" in (err := capsys.readouterr().err)
    assert ": no such file or folder (looked for /" in err
    assert cli.main(["-m", "someone/target", "-p", "x", "--dry-run"]) == 0
