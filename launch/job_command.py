"""Checks the command of a batch job with its own parser, so that a mistake shows before the job waits in a queue."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ipex_assist.env.errors import UsageError
from ipex_assist.launch import flags
from ipex_assist.launch.jobs import JobCommand

# The argument parsers of `ipex-assist` by subcommand; "" is the command without one, None means: do not check. They are
# passed in, since this package does not import the commands that are built on it.
Parsers = Mapping[str, Callable[[list[str]], argparse.Namespace] | None]


def parse_command(argv: Sequence[str], parsers: Parsers) -> JobCommand:
    """Check an `ipex-assist` or `ipex-launch` command line, and extract what the job script needs.

    Raises:
        UsageError: it is another command, or one that cannot run in a job.
        SystemExit: argparse found an error and has printed it.
    """
    program, arguments = os.path.basename(argv[0]), list(argv[1:])
    if program == "ipex-launch":
        return JobCommand(tuple(argv), files=_scripts(_check_launch(arguments)))
    if program != "ipex-assist":
        raise UsageError(f"a job runs ipex-assist or ipex-launch; for {argv[0]}, type: ipex-launch -- {argv[0]} …")
    if arguments[:1] == ["submit"]:
        raise UsageError("a job cannot submit itself: give the command that is to run in it")
    if arguments[:1] == ["chat"]:
        raise UsageError("a job has no terminal to chat in: give ipex-assist -p TEXT, or ipex-assist batch")
    word = arguments[0] if arguments and arguments[0] in parsers else ""
    parse = parsers[word]
    args = parse(arguments[1:] if word else arguments) if parse else None
    if word == "batch" and args is not None:
        if args.prompts == "-":
            raise UsageError("a job has no standard input: give the prompts as a file")
        return _batch(list(argv), args, parsers)
    if word == "" and args is not None:
        nowhere = args.prompt is None and args.prompt_file in (None, "-") and args.model
        if args.piped or nowhere:
            raise UsageError("a job has no standard input: give the prompt with -p or --prompt-file")
        return JobCommand(tuple(argv), prompts=args.prompt_file, files=_files(args))
    return JobCommand(tuple(argv), files=_files(args))


def _files(args: argparse.Namespace | None) -> tuple[str, ...]:
    """Files that the flags name: a model by its path, which no hub can have, and the server's keys."""
    models = [getattr(args, name, None) for name in ("model", "assistant_model")]
    paths = [name for name in models if name and name.startswith(("./", "../", "/", "~/"))]
    keys = getattr(args, "api_key_file", None)
    return (*paths, keys) if keys else tuple(paths)


def _scripts(program: list[str]) -> tuple[str, ...]:
    """The script of an interpreter, where that is the first word after it."""
    name = os.path.basename(program[0])
    runs_script = name.startswith("python") or name in ("bash", "sh")
    return (program[1],) if runs_script and program[1:] and not program[1].startswith("-") else ()


def locate(command: JobCommand, folders: Sequence[str]) -> JobCommand:
    """`command` with the full path of its program, if that is a bare name and is in one of `folders`."""
    program = command.argv[0]
    if os.sep in program:
        return command
    found = [path for folder in folders if os.access(path := os.path.join(folder, program), os.X_OK)]
    return replace(command, argv=(found[0], *command.argv[1:])) if found else command


def _check_launch(arguments: list[str]) -> list[str]:
    """Return the program that is launched, as an argv."""
    args = flags.build_parser().parse_args(arguments)
    flags.instance_request(args)
    flags.extra_environ(args)
    program = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not program:
        raise UsageError("ipex-launch has no command; type for example: … -- ipex-launch -- python script.py")
    if os.path.basename(program[0]) == "ipex-assist" and program[1:2] == ["batch"]:
        raise UsageError("ipex-assist batch places its instances itself: give it to submit without ipex-launch")
    return program


def _batch(argv: list[str], args: argparse.Namespace, parsers: Parsers) -> JobCommand:
    rest = [word for word in _without_output(argv[2:]) if word != "--resume"]
    parse = parsers["batch"]
    if parse is not None and parse(["--resume", "-o", os.devnull, *rest]).output != os.devnull:
        raise UsageError(f"write -o {args.output} as words of their own, since each task has a file of its own")
    sharded = any(word == "--shard" or word.startswith("--shard=") for word in argv)
    return JobCommand(
        (*argv[:2], *rest), results=args.output, prompts=args.prompts, files=_files(args), sharded=sharded
    )


def _without_output(arguments: list[str]) -> list[str]:
    """The arguments without `-o FILE`, in every spelling that argparse accepts."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            kept += [word, *words]
        elif word in ("-o", "--output"):
            next(words)
        elif not word.startswith("--output=") and not (word.startswith("-o") and len(word) > 2):
            kept.append(word)
    return kept
