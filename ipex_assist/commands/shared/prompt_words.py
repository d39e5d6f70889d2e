"""The words of the command line that are no options: the prompt, and a lone dash for what is piped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ipex_assist.checkpoints.hub import is_hub_id
from ipex_assist.commands.shared.command_table import COMMANDS, similar_command
from ipex_assist.env.errors import UsageError

STDIN = "-"  # as a word, and as the name of a file
NO_PROMPT = "the prompt is empty: type it in quotes, or give -p TEXT, --prompt-file FILE, or text on standard input"


@dataclass(frozen=True)
class PromptWords:
    """text: the prompt; None where there is none among the words. piped: whether a dash asks for standard input."""

    text: str | None = None
    piped: bool = False


def split_options(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words up to `--`, and those after it, which are text whatever they look like."""
    cut = list(argv).index("--") if "--" in argv else len(argv)
    return list(argv[:cut]), list(argv[cut + 1 :])


def is_flag(word: str) -> bool:
    """Whether a word is meant as an option. A text that begins with a dash has spaces."""
    return word.startswith("-") and word != STDIN and not any(map(str.isspace, word))


def read_words(words: Sequence[str], literal: Sequence[str], *, first: str | None, model: str | None) -> PromptWords:
    """The prompt among `words`, which are no options; those of `literal` are text in any case.

    first: the first word of the command line, where a command would stand. model: of -m.
    Raises UsageError for several prompts, and for a word that is much rather a command, a model or a file.
    """
    texts = [*(word for word in words if word != STDIN), *literal]
    piped = STDIN in words
    if not texts:
        return PromptWords(None, piped)
    if not literal:
        _check_command(texts[0], first)
    if len(texts) > 1:
        raise UsageError(
            f"{len(texts)} prompts are given, {texts[0]!r} and {texts[1]!r} the first: put a prompt of several words "
            "in quotes"
        )
    if not literal:
        _check_name(texts[0], model)
    return PromptWords(texts[0], piped)


def _check_command(word: str, first: str | None) -> None:
    if word in COMMANDS:
        raise UsageError(f"{word} is a command, which comes first: ipex-assist {word} …; -p {word} makes it the prompt")
    if word == first and not any(map(str.isspace, word)) and (meant := similar_command(word)):
        raise UsageError(f"there is no command {word}{meant}; -p {word} makes it the prompt")


def _check_name(word: str, model: str | None) -> None:
    """A model or a file where the prompt stands: -m or --prompt-file was forgotten."""
    if not word or any(map(str.isspace, word)):
        return
    try:
        here, is_file = Path(word).exists(), Path(word).is_file()
    except (OSError, ValueError):  # a long text is no name of a file
        return
    if is_file and Path(word).suffix != ".gguf":
        raise UsageError(
            f"{word} is a file: --prompt-file {word} reads the prompt there; -p {word} makes the word the prompt"
        )
    if model is None and (here or ("/" in word and is_hub_id(word))):
        raise UsageError(f"{word} looks like a model: give -m {word}; -p {word} makes it the prompt")
