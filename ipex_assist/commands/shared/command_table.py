"""The commands of `ipex-assist`, an entry each: dispatch, help, completion and the check of a job's command read this.

Modules are named, not imported: a command costs the others nothing.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ipex_assist.env.options import suggestion


@dataclass(frozen=True)
class Command:
    """about: what it is for, in help. runs: the module below ipex_assist whose `main(argv)` it is.

    flags: the module whose `build_parser()` has its flags, and `parse(argv)` where there is more to check than the
    parser does; None: the same. checked: whether `submit` can check its flags; not where other commands have them.
    """

    about: str
    runs: str
    flags: str | None = None
    checked: bool = True

    def main(self, argv: list[str]) -> int:
        """Run it; returns its exit code."""
        return int(self._module(self.runs).main(argv))

    def build_parser(self) -> argparse.ArgumentParser:
        """The parser of all its flags."""
        parser: argparse.ArgumentParser = self._module(self.flags or self.runs).build_parser()
        return parser

    def parse(self, argv: list[str]) -> argparse.Namespace:
        """Its arguments, checked. argparse exits where they are wrong, or UsageError is raised."""
        module = self._module(self.flags or self.runs)
        parse: Callable[[list[str]], argparse.Namespace] = (
            getattr(module, "parse", None) or self.build_parser().parse_args
        )
        return parse(argv)

    @staticmethod
    def _module(name: str) -> Any:
        return importlib.import_module(f"ipex_assist.{name}")


# A text by itself, without the name of a command.
TEXT = Command("a single text", "commands.text", "commands.shared.arguments")
# Started by batch and serve, and typed by nobody.
WORKER = Command("an engine process", "workers.worker")
# In the order of the alphabet, as help shows them.
COMMANDS: Mapping[str, Command] = {
    "batch": Command("many prompts from a file, over pinned instances", "batch.command", "batch.arguments"),
    "bench": Command("plain and assisted, measured side by side", "bench.command", "bench.arguments"),
    "cache": Command("packed models that are kept on disk", "commands.cache"),
    "chat": Command("a conversation in the terminal", "commands.chat"),
    "completion": Command("a script with which your shell completes commands and flags", "commands.completion"),
    "distill": Command("train a draft head on a model's own answers", "distill.command", "distill.arguments"),
    "embed": Command("vectors of texts, or how relevant they are to a query", "commands.embed"),
    "env": Command("what this machine is", "commands.machine"),
    "eval": Command("perplexity, and what fewer bits cost", "commands.eval"),
    "help": Command("what the commands do, or the options of one", "commands.help", checked=False),
    "list": Command("the models on this machine", "commands.list_models"),
    "models": Command("the families that the native core runs", "commands.models"),
    "ps": Command("the models that your servers have loaded", "commands.running"),
    "pull": Command("download a model from the hub", "commands.pull"),
    "quantize": Command("write a checkpoint with 4-bit weights", "commands.quantize"),
    "run": Command("a text from a model, or a conversation with it", "commands.run", checked=False),
    "serve": Command("OpenAI's API, a chat page and metrics", "serve.command", "serve.arguments"),
    "submit": Command("the script of a Slurm or PBS job", "commands.submit"),
}
SHORTEST = 3  # letters that two words must have in common at their beginning


def similar_command(word: str) -> str:
    """ " (did you mean …?)" for a word that is much like a command, to append to a message; empty for any other."""
    lower = word.lower()
    if lower in COMMANDS:
        return f" (did you mean {lower}?)"
    for name in COMMANDS:
        if min(len(lower), len(name)) >= SHORTEST and (name.startswith(lower) or lower.startswith(name)):
            return f" (did you mean {name}?)"
    return suggestion(lower, COMMANDS)
