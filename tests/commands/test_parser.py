"""Every option of every command that takes a value, given argparse's own word for the end of the options."""

from __future__ import annotations

import argparse

import pytest

from ipex_assist import cli
from ipex_assist.batch import arguments as batch
from ipex_assist.bench import arguments as bench
from ipex_assist.commands import chat, quantize
from ipex_assist.commands import eval as evaluate
from ipex_assist.commands.shared import arguments
from ipex_assist.env import report
from ipex_assist.env.errors import UsageError
from ipex_assist.launch import cli as launch_cli
from ipex_assist.launch import flags, job_flags
from ipex_assist.serve import arguments as serve

pytestmark = pytest.mark.one_stack

COMMANDS = {
    "ipex-assist": arguments.build_parser,
    "batch": batch.build_parser,
    "bench": bench.build_parser,
    "chat": chat.build_parser,
    "eval": evaluate.build_parser,
    "quantize": quantize.build_parser,
    "serve": serve.build_parser,
    "submit": job_flags.build_parser,
    "ipex-launch": flags.build_parser,
}


def taken(parser: argparse.ArgumentParser, action: argparse.Action) -> object:
    """Return what `--flag=--` gives: the value, or the exit code of an error."""
    try:
        args = parser.parse_args([f"{max(action.option_strings, key=len)}=--"])
    except SystemExit as stop:
        return stop.code
    except UsageError as error:
        return error.exit_code
    value = getattr(args, action.dest)
    return value[-1] if isinstance(value, list) and value else value


@pytest.mark.parametrize("command", COMMANDS)
def test_two_dashes_are_a_value_like_any_other(command: str) -> None:
    """argparse made an empty list of them, which ended in a traceback wherever the value was looked at."""
    parser = COMMANDS[command]()
    for action in parser._actions:
        action.required = False
    texts, others = [], []
    for action in parser._actions:
        if action.option_strings and action.nargs is None:
            (texts if action.type is None and action.choices is None else others).append(action)
    assert texts
    assert others
    assert {action.dest: taken(parser, action) for action in texts} == {action.dest: "--" for action in texts}
    for action in others:
        assert taken(parser, action) in ("--", 2), action.dest


@pytest.mark.parametrize("words", [["--prompt=--"], ["-p--"]])
def test_a_prompt_of_two_dashes_is_a_prompt(words: list[str]) -> None:
    assert arguments.parse(words).prompt == "--"


def test_two_dashes_alone_end_the_options_as_ever() -> None:
    """`--prompt -- text` names no prompt, and what follows `--` is the launched command's."""
    with pytest.raises(SystemExit) as stop:
        arguments.parse(["--prompt", "--", "text"])
    assert stop.value.code == 2
    args = flags.build_parser().parse_args(["--cpus", "0", "--", "python", "--cpus=--"])
    assert args.command[-2:] == ["python", "--cpus=--"]


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (cli.main, ["--seed=--", "-p", "fox"]),
        (cli.main, ["--prompt-file=--", "--no-launch"]),
        (cli.main, ["--cpus=--", "-p", "fox", "--dry-run"]),
        (cli.main, ["bench", "--repeats=--"]),
        (launch_cli.main, ["--cpus=--", "--", "true"]),
        (launch_cli.main, ["--memory=--", "--", "true"]),
        (report.main, ["--root=--"]),
    ],
)
def test_where_two_dashes_make_no_sense_the_exit_code_is_2(
    main: object, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the option and has no traceback."""
    assert callable(main)
    said = ""
    try:
        code = main(words)
    except (SystemExit, UsageError) as stop:
        code = stop.code if isinstance(stop, SystemExit) else stop.exit_code
        said = str(stop)
    assert code == 2
    option = next(word for word in words if word.endswith("=--")).removesuffix("=--")
    (line,) = [
        line for line in (said + capsys.readouterr().err).splitlines() if "error" in line or option + " " in line
    ]
    assert option in line
