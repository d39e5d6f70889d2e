"""`ipex-assist [PROMPT]`, the command without a name: a single text, by a process that is placed first."""

from __future__ import annotations

import argparse

from ipex_assist.commands.shared.arguments import generation_options, load_options, parse
from ipex_assist.commands.shared.demo_model import PLACED_BYTES
from ipex_assist.commands.shared.relaunch import run_placed


def main(argv: list[str]) -> int:
    """Generate as the command line asks; returns the exit code, or becomes the process that generates."""
    args = parse(argv)
    return run_placed("", argv, args, lambda: _model_bytes(args), lambda: _generate(args), torch_late=True)


def _generate(args: argparse.Namespace) -> int:
    from ipex_assist.commands.generate import generate

    return generate(args)


def _model_bytes(args: argparse.Namespace) -> int | None:
    load = load_options(args)
    if load.target is None:
        return PLACED_BYTES
    from ipex_assist.commands.shared.load import memory_need

    return memory_need(load, generation_options(args, chat=args.chat is not False).max_new_tokens).total
