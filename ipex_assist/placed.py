"""Commands that compute for a while: placed on this machine's cores as `ipex-assist` itself is, then run."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from ipex_assist import launch
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.quiet import configure_messages


def run_placed(
    command: str,
    argv: Sequence[str],
    args: argparse.Namespace,
    model_bytes: Callable[[], int | None],
    work: Callable[[], int],
) -> int:
    """Start `ipex-assist COMMAND argv` again under the launcher, or, when that has happened, do its work.

    args: with launch.add_placement_arguments' flags and `verbose`. Returns the exit code. Never imports torch itself.
    """
    from ipex_assist.cli import this_command

    plan = launch.inherited_plan(os.environ)
    asked = any(flag is not None for flag in (args.threads, args.cpus, args.socket, args.numa_node))
    if ((plan is not None and not asked) or args.no_launch) and not args.dry_run:
        return _work(args, work)
    program = [*this_command(), command, *(flag for flag in argv if flag != "--dry-run"), "--no-launch"]
    prepared = launch.prepare(launch.request_from(args, model_bytes()), program)
    if args.dry_run:
        print(launch.format_command(prepared), flush=True)
        return 0
    if args.verbose:
        print(f"ipex-assist: {prepared.placement.describe()}", *prepared.notes, sep="\n  ", file=sys.stderr)
    return launch.run(prepared, "ipex-assist")


def _work(args: argparse.Namespace, work: Callable[[], int]) -> int:
    configure_messages(args.verbose)
    try:
        set_threads(args.threads)
        return work()
    except (IpexAssistError, BrokenPipeError):
        raise  # the command line's own business
    except Exception as error:
        if args.verbose:
            traceback.print_exc()
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # the latter is torch's
            raise IpexAssistError("out of memory; use a smaller model or --precision") from error
        raise IpexAssistError(f"{type(error).__name__}: {error} (run with -v for the whole story)") from error


def set_threads(threads: int | None) -> None:
    """As many threads for torch as were planned, or asked for."""
    import torch

    plan = launch.inherited_plan(os.environ)
    if plan is not None or threads is not None:
        torch.set_num_threads(plan.threads if plan is not None else threads or 1)
