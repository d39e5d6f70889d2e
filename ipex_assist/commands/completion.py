"""`ipex-assist completion`: a script by which a shell completes commands and flags. Never imports torch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ipex_assist.commands.shared.arguments import Formatter
from ipex_assist.commands.shared.arguments import build_parser as build_main_parser
from ipex_assist.commands.shared.command_table import COMMANDS
from ipex_assist.env.parser import ArgumentParser

SHELLS = ("bash", "zsh", "tcsh")
EPILOG = """\
To install it:

  ipex-assist completion bash > ~/.local/share/bash-completion/completions/ipex-assist
  ipex-assist completion zsh > "${fpath[1]}/_ipex-assist"
"""
# What a value is, by what help calls it: a file, or a folder.
_FILES, _FOLDERS = ("FILE", "ID", "PATH"), ("DIR", "FOLDER")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags of `ipex-assist completion`."""
    parser = ArgumentParser(
        prog="ipex-assist completion",
        description="Print a script with which a shell completes commands, flags and files.",
        epilog=EPILOG,
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that the script is for")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `ipex-assist completion`; returns the exit code."""
    import shtab

    args = build_parser().parse_args(argv)
    print(shtab.complete(whole_parser(), args.shell))
    return 0


def whole_parser() -> argparse.ArgumentParser:
    """One parser of all commands, each with its own flags; it completes, and parses nothing."""
    import shtab

    whole = build_main_parser()
    commands = whole.add_subparsers(parser_class=argparse.ArgumentParser)
    for name, command in COMMANDS.items():
        parents = [command.build_parser()]
        commands.add_parser(name, help=command.about, parents=parents, add_help=False, conflict_handler="resolve")
    for parser in (whole, *commands.choices.values()):
        for action in parser._actions:
            action.choices = action.choices or getattr(action, "names", None)
            kind = str(action.metavar).split("[")[0].split(",")[0]
            if kind in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif kind in _FOLDERS:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    return whole
