"""The command `ipex-assist`: checks its flags, chooses a place, and starts itself there. Never imports torch."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import TextIO

    from ipex_assist.commands.completion import Builders
    from ipex_assist.launch.job_command import Parsers

# Nothing else is imported up here: `main` knows what to do with a Ctrl-C in the middle of an import.


def main(argv: list[str] | None = None) -> int:
    """Run `ipex-assist`; returns an exit code, or becomes the process that generates.

    argv: without it this is the command of a shell, which exits next, and Ctrl-C is ignored from then on.
    """
    try:
        from ipex_assist.env.runner import ignore_interrupts, run_command, same_interrupts_after, terminated_by_sigterm

        exits, argv = argv is None, sys.argv[1:] if argv is None else argv
        if sys.stdout is None:
            print("ipex-assist: error: standard output is closed; >/dev/null discards the text", file=sys.stderr)
            return 1
        if sys.stderr is None:  # a daemon's child: nobody reads messages, but they must not fail or land in a file
            sys.stderr = _no_messages()
        verbose = "-v" in argv or "--verbose" in argv
        with same_interrupts_after(), terminated_by_sigterm():
            code = run_command(lambda: _dispatch(argv), "ipex-assist: error", verbose=verbose)
        if exits:
            ignore_interrupts()
        return code
    except KeyboardInterrupt:
        return 130


def _no_messages() -> TextIO:
    """Return a sink on descriptor 2, for the programs that this process becomes as well."""
    import os

    null = os.open(os.devnull, os.O_WRONLY)
    if null != 2:
        os.dup2(null, 2)
        os.close(null)
    os.set_inheritable(2, True)
    return open(2, "w", closefd=False)


def _dispatch(argv: list[str]) -> int:
    _check_start(argv)
    subcommand = SUBCOMMANDS.get(argv[0]) if argv else None
    return _generate(argv) if subcommand is None else subcommand(argv[1:])


def _check_start(argv: list[str]) -> None:
    """Say what makes words and paths mean something else than was typed."""
    import os

    try:
        os.getcwd()
    except OSError:
        from ipex_assist.env.errors import UsageError

        raise UsageError("the folder that this shell is in was deleted: cd to another one") from None
    encoding = sys.getfilesystemencoding()
    if encoding.lower().replace("-", "") == "utf8":
        return
    for word in argv:
        raw = os.fsencode(word)
        try:
            meant = raw.decode()
        except UnicodeDecodeError:
            continue
        if meant != word:
            shown = ascii(meant[:40])
            print(
                f"ipex-assist: the locale is {encoding}, and {shown} is read otherwise, since it was typed in UTF-8: "
                "LC_ALL=C.UTF-8 before the command reads it as it was typed",
                file=sys.stderr,
            )
            return


def _module(name: str) -> Callable[[list[str]], int]:
    """The `main` of a module, imported when it is called."""

    def main(argv: list[str]) -> int:
        import importlib

        return int(importlib.import_module(f"ipex_assist.{name}").main(argv))

    return main


def _env(argv: list[str]) -> int:
    from ipex_assist.commands.shared.environment import native_core
    from ipex_assist.env import report

    return report.main(argv, native_core())


def _submit(argv: list[str]) -> int:
    from ipex_assist.launch import submit

    return submit.main(argv, _parsers())


def _completion(argv: list[str]) -> int:
    from ipex_assist.commands import completion

    return completion.main(argv, _builders)


def _run(argv: list[str]) -> int:
    from ipex_assist.commands import run

    return run.main(argv, _generate, _module("commands.chat"))


def _help(argv: list[str]) -> int:
    from ipex_assist.commands.help import overview
    from ipex_assist.commands.shared.command_names import COMMANDS, similar_command
    from ipex_assist.env.errors import UsageError

    words = [word for word in argv if word not in ("-h", "--help")]
    if not words or words[0] == "help":
        print(overview())
        return 0
    if words[0] not in COMMANDS:
        raise UsageError(f"there is no command {words[0]}{similar_command(words[0])}; ipex-assist help lists them")
    return SUBCOMMANDS[words[0]](["--help"])


SUBCOMMANDS: dict[str, Callable[[list[str]], int]] = {
    "batch": _module("batch.command"),
    "bench": _module("bench.command"),
    "cache": _module("commands.cache"),
    "chat": _module("commands.chat"),
    "completion": _completion,
    "distill": _module("distill.command"),
    "embed": _module("commands.embed"),
    "env": _env,
    "eval": _module("commands.eval"),
    "help": _help,
    "list": _module("commands.list_models"),
    "models": _module("commands.models"),
    "ps": _module("commands.running"),
    "pull": _module("commands.pull"),
    "quantize": _module("commands.quantize"),
    "run": _run,
    "serve": _module("serve.command"),
    "submit": _submit,
    "worker": _module("workers.worker"),
}


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
    from ipex_assist.commands import embed, quantize
    from ipex_assist.commands import eval as evaluate
    from ipex_assist.commands.shared.arguments import parse
    from ipex_assist.distill import arguments as distill
    from ipex_assist.serve import arguments as serve

    return {
        "": parse,
        "batch": batch.parse,
        "bench": bench.parse,
        "cache": None,
        "completion": None,
        "distill": distill.parse,
        "embed": embed.parse,
        "env": None,
        "help": None,
        "list": None,
        "models": None,
        "ps": None,
        "pull": None,
        "run": None,
        "eval": evaluate.build_parser().parse_args,
        "quantize": quantize.build_parser().parse_args,
        "serve": serve.parse,
    }


def _builders() -> Builders:
    """What makes the parser of each command's flags."""
    from ipex_assist.batch import arguments as batch
    from ipex_assist.bench import arguments as bench
    from ipex_assist.commands import cache, chat, embed, list_models, models, pull, quantize, run, running
    from ipex_assist.commands import eval as evaluate
    from ipex_assist.distill import arguments as distill
    from ipex_assist.env import report
    from ipex_assist.launch import job_flags
    from ipex_assist.serve import arguments as serve

    return {
        "batch": batch.build_parser,
        "bench": bench.build_parser,
        "cache": cache.build_parser,
        "chat": chat.build_parser,
        "distill": distill.build_parser,
        "embed": embed.build_parser,
        "env": report.build_parser,
        "eval": evaluate.build_parser,
        "list": list_models.build_parser,
        "models": models.build_parser,
        "ps": running.build_parser,
        "pull": pull.build_parser,
        "quantize": quantize.build_parser,
        "run": run.build_parser,
        "serve": serve.build_parser,
        "submit": job_flags.build_parser,
    }


def _model_bytes(args: argparse.Namespace) -> int | None:
    from ipex_assist.commands.shared.arguments import generation_options, load_options

    load = load_options(args)
    if load.target is None:
        return None
    from ipex_assist.commands.shared.load import memory_need

    return memory_need(load, generation_options(args, chat=args.chat is not False).max_new_tokens).total


if __name__ == "__main__":
    sys.exit(main())
