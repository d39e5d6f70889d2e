"""The command `ipex-assist`: checks its flags, chooses a place, and starts itself there. Never imports torch."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ipex_assist.commands.arguments import load_options, parse
from ipex_assist.commands.relaunch import start_placed, works_here
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.pipes import reader_has_gone
from ipex_assist.speculative.options import GenerationOptions

if TYPE_CHECKING:
    from ipex_assist.launch.job_command import Parsers


def main(argv: list[str] | None = None) -> int:
    """Run `ipex-assist`; returns an exit code, or becomes the process that generates."""
    argv = sys.argv[1:] if argv is None else argv
    if sys.stdout is None:
        print("ipex-assist: error: standard output is closed; >/dev/null discards the text", file=sys.stderr)
        return 1
    try:
        code = _dispatch(argv)
        sys.stdout.flush()  # here, where a reader that has gone can be handled
        return code
    except IpexAssistError as error:
        print(f"ipex-assist: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return reader_has_gone()


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
    if argv[:1] == ["submit"]:
        from ipex_assist.launch import submit

        return submit.main(argv[1:], _parsers())
    if argv[:1] == ["quantize"]:
        from ipex_assist.commands import quantize

        return quantize.main(argv[1:])
    if argv[:1] == ["eval"]:
        from ipex_assist.commands import eval as evaluate

        return evaluate.main(argv[1:])
    try:
        args = parse(argv)
    except SystemExit as stop:  # argparse has printed the help, or what is wrong
        return int(stop.code or 0)
    return _generate(args, argv)


def _generate(args: argparse.Namespace, argv: list[str]) -> int:
    if works_here(args):
        from ipex_assist.commands import generate

        return generate.main(argv)
    return start_placed([], argv, args, lambda: _model_bytes(args))


def _parsers() -> Parsers:
    """How each subcommand reads its arguments."""
    from ipex_assist.batch import arguments as batch
    from ipex_assist.bench import arguments as bench
    from ipex_assist.commands import eval as evaluate
    from ipex_assist.commands import quantize

    return {
        "": parse,
        "batch": batch.parse,
        "bench": bench.parse,
        "env": None,
        "eval": evaluate.build_parser().parse_args,
        "quantize": quantize.build_parser().parse_args,
    }


def _model_bytes(args: argparse.Namespace) -> int | None:
    load = load_options(args)
    if load.target is None:
        return None
    from ipex_assist.commands.load import memory_need

    return memory_need(load, GenerationOptions.from_flags(args).max_new_tokens).total


if __name__ == "__main__":
    sys.exit(main())
