"""`ipex-launch`: runs any command on well-chosen cores and memory, once or several times side by side."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence

from ipex_assist.env.errors import UsageError
from ipex_assist.env.hints import due
from ipex_assist.env.runner import run_command
from ipex_assist.launch.command import LaunchCommand, format_command
from ipex_assist.launch.flags import asks_for_several, build_parser, extra_environ, instance_request
from ipex_assist.launch.process import Surroundings, prepare_instances, run


def main(argv: Sequence[str] | None = None) -> int:
    """Run `ipex-launch`. A single process replaces this one by exec, so it returns only after a dry run or an error."""
    return run_command(lambda: _launch(build_parser().parse_args(argv)), "ipex-launch", verbose=None)


def _launch(args: argparse.Namespace) -> int:
    program = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not program:
        raise UsageError("no command given; type for example: ipex-launch -- python script.py")
    extra = extra_environ(args)
    commands = prepare_instances(
        instance_request(args),
        program,
        os.environ,
        surroundings=Surroundings.here({**os.environ, **extra}, args.openmp, args.allocator),
        extra_environ=extra,
        only=args.instance,
        unbuffered_python=_watched(args),
    )
    several = asks_for_several(args) and (args.instance is None or len(commands) > 1)
    if args.json or args.dry_run:
        _show(commands, several, as_json=args.json, on_stdout=args.dry_run)
    if args.dry_run:
        return 0
    if len(commands) == 1 and not _watched(args):
        return run(commands[0])
    from ipex_assist.launch.supervise import Supervision, supervise

    for warning in dict.fromkeys(line for command in commands for line in due(command.warnings, command.hints)):
        print(f"ipex-launch: {warning}", file=sys.stderr)
    return supervise(
        commands,
        Supervision(args.log_dir, args.label, args.on_failure, args.timeout, args.grace),
    )


def _watched(args: argparse.Namespace) -> bool:
    """Whether even a single process must be supervised, instead of replacing this one by exec."""
    return args.log_dir is not None or args.label or args.timeout is not None


def _show(commands: Sequence[LaunchCommand], several: bool, *, as_json: bool, on_stdout: bool) -> None:
    stream = sys.stdout if on_stdout else sys.stderr
    if as_json:
        described = [command.as_dict() for command in commands]
        print(json.dumps({"instances": described} if several else described[0]), file=stream, flush=True)
        return
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="surrogateescape")  # arguments are bytes, not always text
    if several:
        from ipex_assist.launch.table import format_instances

        print(format_instances(commands), flush=True)
    else:
        print(format_command(commands[0]), flush=True)
