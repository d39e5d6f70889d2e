"""The commands of `ipex-assist` and what each is for: help lists them, and a misspelt one is recognised by them."""

from __future__ import annotations

from ipex_assist.env.options import suggestion

# In the order of the alphabet, as help shows them.
COMMANDS = {
    "batch": "many prompts from a file, over pinned instances",
    "bench": "plain and assisted, measured side by side",
    "cache": "packed models that are kept on disk",
    "chat": "a conversation in the terminal",
    "completion": "a script by which your shell completes commands and flags",
    "distill": "train a draft head on a model's own answers",
    "embed": "vectors of texts, or how relevant texts are to a query",
    "env": "what this machine is",
    "eval": "perplexity, and what fewer bits cost",
    "help": "what the commands do, or the options of one",
    "list": "the models on this machine",
    "models": "the families that the native core runs",
    "ps": "the models that your servers have loaded",
    "pull": "download a model from the hub",
    "quantize": "write a checkpoint with 4-bit weights",
    "run": "a text by a model, or a conversation with it",
    "serve": "OpenAI's API, a chat page and metrics",
    "submit": "the script of a Slurm or PBS job",
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
