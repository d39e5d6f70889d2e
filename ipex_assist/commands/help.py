"""`ipex-assist help`: what the commands do."""

from __future__ import annotations

import argparse

from ipex_assist.commands.shared.command_table import COMMANDS, similar_command
from ipex_assist.env.errors import UsageError

EXAMPLES = """\
  ipex-assist "Why is the sky blue?"                asks the embedded model
  ipex-assist -m MODEL "Why is the sky blue?"       asks a model: a hub id, a folder or a .gguf file
  ipex-assist COMMAND [options]"""


def overview() -> str:
    """What `ipex-assist help` prints: how to ask for a text, and a line for each command."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.about}" for name, command in COMMANDS.items()]
    more = "`ipex-assist help COMMAND` lists the options of a command, `ipex-assist --help` those of a single text."
    return "\n".join(["usage:", EXAMPLES, "", "commands:", *lines, "", more])


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of `ipex-assist help`, by which shells complete it."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("command", nargs="?", choices=tuple(COMMANDS))
    return parser


def main(argv: list[str]) -> int:
    """Run `ipex-assist help`; returns the exit code. Raises UsageError for a command that there is not."""
    words = [word for word in argv if word not in ("-h", "--help")]
    if not words or words[0] == "help":
        print(overview())
        return 0
    if words[0] not in COMMANDS:
        raise UsageError(f"there is no command {words[0]}{similar_command(words[0])}; ipex-assist help lists them")
    return COMMANDS[words[0]].main(["--help"])
