"""The command `ipex-assist`: checks its flags, chooses a place, and starts itself there. Never imports torch."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from ipex_assist.launch.job_command import Parsers

# Nothing else is imported up here: `main` knows what to do with a Ctrl-C in the middle of an import.


def main(argv: list[str] | None = None) -> int:
    """Run `ipex-assist`; returns an exit code, or becomes the process that generates."""
    try:
        from ipex_assist.env.runner import run_command, terminated_by_sigterm

        argv = sys.argv[1:] if argv is None else argv
        if sys.stdout is None:
            print("ipex-assist: error: standard output is closed; >/dev/null discards the text", file=sys.stderr)
            return 1
        verbose = "-v" in argv or "--verbose" in argv
        with terminated_by_sigterm():
            return run_command(lambda: _dispatch(argv), "ipex-assist: error", verbose=verbose)
    except KeyboardInterrupt:
        return 130


def _dispatch(argv: list[str]) -> int:
    if argv[:1] == ["env"]:
        from ipex_assist.commands.environment import native_core
        from ipex_assist.env import report

        return report.main(argv[1:], native_core())
    if argv[:1] == ["bench"]:
        from ipex_assist.bench import command as bench

        return bench.main(argv[1:])
    if argv[:1] == ["batch"]:
        from ipex_assist.batch import command

        return command.main(argv[1:])
    if argv[:1] == ["worker"]:
        from ipex_assist.workers import worker

        worker.main(argv[1:])
    if argv[:1] == ["serve"]:
        from ipex_assist.serve import command as server

        return server.main(argv[1:])
    if argv[:1] == ["submit"]:
        from ipex_assist.launch import submit

        return submit.main(argv[1:], _parsers())
    if argv[:1] == ["quantize"]:
        from ipex_assist.commands import quantize

        return quantize.main(argv[1:])
    if argv[:1] == ["models"]:
        from ipex_assist.commands import models

        return models.main(argv[1:])
    if argv[:1] == ["eval"]:
        from ipex_assist.commands import eval as evaluate

        return evaluate.main(argv[1:])
    if argv[:1] == ["cache"]:
        from ipex_assist.commands import cache

        return cache.main(argv[1:])
    if argv[:1] == ["chat"]:
        from ipex_assist.commands import chat

        return chat.main(argv[1:])
    return _generate(argv)


def _generate(argv: list[str]) -> int:
    from ipex_assist.commands.shared.arguments import parse
    from ipex_assist.commands.shared.relaunch import start_placed, works_here

    args = parse(argv)
    if works_here(args):
        from ipex_assist.commands.generate import generate

        return generate(args)
    return start_placed([], argv, args, lambda: _model_bytes(args))


def _parsers() -> Parsers:
    """How each subcommand reads its arguments."""
    from ipex_assist.batch import arguments as batch
    from ipex_assist.bench import arguments as bench
    from ipex_assist.commands import eval as evaluate
    from ipex_assist.commands import quantize
    from ipex_assist.commands.shared.arguments import parse
    from ipex_assist.serve import arguments as serve

    return {
        "": parse,
        "batch": batch.parse,
        "bench": bench.parse,
        "cache": None,
        "env": None,
        "eval": evaluate.build_parser().parse_args,
        "quantize": quantize.build_parser().parse_args,
        "serve": serve.parse,
    }


def _model_bytes(args: argparse.Namespace) -> int | None:
    from ipex_assist.commands.shared.arguments import load_options

    load = load_options(args)
    if load.target is None:
        return None
    from ipex_assist.commands.shared.load import memory_need
    from ipex_assist.speculative.options import GenerationOptions

    return memory_need(load, GenerationOptions.from_flags(args).max_new_tokens).total


if __name__ == "__main__":
    sys.exit(main())
