"""`ipex-launch`: runs any command on well-chosen cores and memory. Also the placement flags that ipex-assist shares."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.launch.command import format_command
from ipex_assist.launch.placement import Request
from ipex_assist.launch.process import prepare, run


def add_placement_arguments(parser: argparse.ArgumentParser, *, no_launch: bool = True) -> None:
    """Add the placement flags as a group; without `no_launch` all but `--no-launch`."""
    group = parser.add_argument_group("placement")
    group.add_argument("--threads", type=int, metavar="N", help="compute threads (default: one per physical core)")
    group.add_argument("--cpus", metavar="LIST", help="CPUs to use, e.g. 0-27,56-83 (default: one socket's cores)")
    group.add_argument("--socket", type=int, metavar="N", help="use socket N, counted from 0")
    group.add_argument("--numa-node", type=int, metavar="N", help="use NUMA node N")
    if no_launch:
        group.add_argument("--no-launch", action="store_true", help="run in this process, without any placement")
    group.add_argument("--dry-run", action="store_true", help="print the exact argv and environment, run nothing")


def request_from(args: argparse.Namespace, model_bytes: int | None = None) -> Request:
    """Return what the flags of `add_placement_arguments` ask for; `model_bytes` is the memory the program will fill."""
    return Request(args.threads, args.cpus, args.socket, args.numa_node, model_bytes)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `ipex-launch`; it returns only after a dry run or an error, otherwise it becomes the command."""
    args = _parser().parse_args(argv)
    program = args.command[1:] if args.command[:1] == ["--"] else args.command
    try:
        if not program:
            raise UsageError("no command given; type for example: ipex-launch -- python script.py")
        command = prepare(request_from(args), program, os.environ)
        if args.json:
            print(json.dumps(command.as_dict()), file=sys.stdout if args.dry_run else sys.stderr, flush=True)
        elif args.dry_run:
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(errors="surrogateescape")  # arguments are bytes, not always text
            print(format_command(command), flush=True)
        if args.dry_run:
            return 0
        return run(command)
    except IpexAssistError as error:
        print(f"ipex-launch: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader of the dry run has gone; keep Python from complaining about it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ipex-launch",
        usage="%(prog)s [options] -- COMMAND [ARGUMENT …]",
        description="Run a command pinned to the physical cores of one socket, with its memory beside them, Intel's "
        "OpenMP and a fast malloc preloaded. Variables you have set are kept.",
        epilog="The exit code is the command's; 127: not found, 126: cannot be run, 2: wrong option.",
    )
    add_placement_arguments(parser, no_launch=False)
    parser.add_argument(
        "--json", action="store_true", help="print the plan as JSON (on stderr, with --dry-run on stdout)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="the program and its arguments")
    return parser
