"""`ipex-assist help`: what the commands do."""

from __future__ import annotations

from ipex_assist.commands.shared.command_names import COMMANDS

EXAMPLES = """\
  ipex-assist "Why is the sky blue?"                asks the embedded model
  ipex-assist -m MODEL "Why is the sky blue?"       asks a model: a hub id, a folder or a .gguf file
  ipex-assist COMMAND [options]"""


def overview() -> str:
    """What `ipex-assist help` prints: how to ask for a text, and a line for each command."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {about}" for name, about in COMMANDS.items()]
    more = "`ipex-assist help COMMAND` lists the options of a command, `ipex-assist --help` those of a single text."
    return "\n".join(["usage:", EXAMPLES, "", "commands:", *lines, "", more])
