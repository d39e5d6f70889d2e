"""Help: the commands, what a misspelt word may have meant, and a command's own options before those of all."""

from __future__ import annotations

import re

import pytest

from ipex_assist import cli
from ipex_assist.commands.shared.command_table import COMMANDS

pytestmark = pytest.mark.one_stack


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command prints that ends well."""
    assert cli.main([*words]) == 0
    return capsys.readouterr().out


def test_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """In the usage line of the options, and one a line with what each is for."""
    usage = shown(capsys, "--help").split("\n\n")[0]
    assert usage.startswith("usage: ipex-assist [options] [PROMPT] [-]\n")
    assert "|".join(COMMANDS) in usage
    overview = shown(capsys, "help")
    assert all(re.search(rf"^  {name} +{command.about}$", overview, re.MULTILINE) for name, command in COMMANDS.items())
    assert shown(capsys, "help", "help") == shown(capsys, "help", "--help") == overview


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "help"])
def test_help_of_a_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`help COMMAND` is `COMMAND --help`."""
    assert shown(capsys, "help", name) == shown(capsys, name, "--help")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["help", "serv"], "there is no command serv (did you mean serve?)"),
        (["help", "poem"], "there is no command poem; ipex-assist help lists them"),
        (["--assitant-model", "x"], "--assitant-model (did you mean --assistant-model?)"),
        (["-p", "x", "--max-tokens=5"], "(did you mean --max-new-tokens?)"),
        (["bench", "--temp", "1"], "(did you mean --temperature?)"),
        (["batch", "p", "-o", "r", "--concurency", "1"], "(did you mean --concurrency?)"),
        (["chat", "--sytem", "Be brief."], "(did you mean --system?)"),
        (["submit", "slurm", "--submitt"], "(did you mean --submit?)"),
        (["quantize", "-m", "x", "-o", "y", "--grop-size", "64"], "(did you mean --group-size?)"),
        (["models", "--jsn"], "(did you mean --json?)"),
        (["--nonsense"], "unrecognized arguments: --nonsense\n"),
    ],
)
def test_misspelt_words(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing runs, and the word that was meant is named where one is similar."""
    assert cli.main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "own", "inherited"),
    [
        ("bench", "what is measured:", "models:"),
        ("chat", "chat:", "models:"),
        ("batch", "batch:", "models:"),
        ("serve", "server:", "models:"),
    ],
)
def test_own_options_come_first(name: str, own: str, inherited: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They are what somebody looks for; they stood below sixty lines of options that all commands have."""
    text = shown(capsys, name, "--help")
    assert text.index(f"\n{own}\n") < text.index(f"\n{inherited}\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ((), "(default: 128; of an answer in a chat 1024)"),
        (("chat",), "of an answer (default: 1024)"),
        (("batch",), "(default: 128)"),
    ],
)
def test_how_long_texts_are(name: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Chat's help said 128, and an answer had 1,024."""
    assert f"--max-new-tokens N {said}" in re.sub(" +", " ", shown(capsys, *name, "--help"))
