"""The command `ipex-assist submit`: the script of a batch job, whose command is checked by its own parser."""

from __future__ import annotations

from ipex_assist.commands.shared.command_table import COMMANDS, TEXT
from ipex_assist.launch import submit
from ipex_assist.launch.job_flags import build_parser

__all__ = ["build_parser", "main"]


def main(argv: list[str]) -> int:
    """Run `ipex-assist submit`; returns the exit code."""
    parsers = {name: command.parse if command.checked else None for name, command in COMMANDS.items()}
    return submit.main(argv, {"": TEXT.parse, **parsers})
