"""The command `ipex-assist run MODEL [PROMPT]`: a text by a model, or a conversation where there is no prompt."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ipex_assist.commands.shared.arguments import Formatter
from ipex_assist.commands.shared.command_table import COMMANDS, TEXT
from ipex_assist.env.errors import UsageError
from ipex_assist.env.parser import ArgumentParser

EPILOG = """\
  ipex-assist run Qwen/Qwen2.5-7B-Instruct                            a conversation, as ipex-assist chat -m MODEL
  ipex-assist run Qwen/Qwen2.5-7B-Instruct "Why is the sky blue?"     an answer, as ipex-assist -m MODEL PROMPT

Without a PROMPT, standard input is the prompt where it is no terminal. All other options are those of
`ipex-assist --help` and `ipex-assist chat --help`; MODEL comes first.
"""
OF_CHAT = ("--system",)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of what is special to `ipex-assist run`; it completes and explains, and parses nothing."""
    parser = ArgumentParser(
        prog="ipex-assist run",
        usage="%(prog)s MODEL [PROMPT] [options]",
        description="Run a model: a conversation, or an answer to PROMPT.",
        epilog=EPILOG,
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="hub id, folder or .gguf file")
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="(default: a conversation)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `ipex-assist run`; returns the exit code. Raises UsageError."""
    if not argv or argv[0] in ("-h", "--help"):
        build_parser().parse_args(argv[:1])
    model, rest = argv[0], list(argv[1:])
    if model.startswith("-"):
        raise UsageError(f"run {model}: the model comes first: ipex-assist run MODEL [PROMPT] [options]")
    if "-m" in rest or any(word.partition("=")[0] == "--model" for word in rest):
        raise UsageError(f"run {model}: the model is named already; leave out -m")
    words = ["-m", model, *rest]
    return (COMMANDS["chat"] if _is_chat(words) else TEXT).main(words)


def _is_chat(words: list[str]) -> bool:
    if any(word.partition("=")[0] in OF_CHAT for word in words):
        return True
    if "-h" in words or "--help" in words or not (sys.stdin is not None and sys.stdin.isatty()):
        return False
    from ipex_assist.commands.shared.arguments import parse

    args = parse(words)
    return args.prompt is None and args.prompt_file is None and not args.dry_run
