"""Commands that compute for a while: they start themselves again, placed on this machine's cores, and work there."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ipex_assist import launch
from ipex_assist.commands.shared.messages import configure_messages
from ipex_assist.env.phases import phase
from ipex_assist.env.runner import held_interrupts
from ipex_assist.launch.plan import PLAN_VARIABLE


def run_placed(
    command: str,
    argv: Sequence[str],
    args: argparse.Namespace,
    model_bytes: Callable[[], int | None],
    work: Callable[[], int],
    *,
    torch_late: bool = False,
) -> int:
    """Start `ipex-assist COMMAND argv` again under the launcher, or, when that has happened, do its work.

    command: empty for a text by itself. args: with launch.add_placement_arguments' flags and `verbose`. torch_late: the
    work imports torch by deferred_imports.py, if at all; else it is there, with its threads, before the work begins.
    Returns the exit code.
    """
    if works_here(args):
        configure_messages(args.verbose, progress=not args.quiet)
        if not torch_late:
            with phase("importing torch"):
                import torch  # noqa: F401
        set_threads(args.threads)
        return work()
    return start_placed([command] if command else [], argv, args, model_bytes)


def works_here(args: argparse.Namespace) -> bool:
    """Whether this process has been placed, or shall not be; flags that then have no effect are named."""
    if args.dry_run or args.placed:
        return not args.dry_run
    places = [name for name in ("cpus", "socket", "numa_node") if getattr(args, name) is not None]
    if not args.no_launch:
        # ipex-launch may have placed it, outside; a flag inside asks for another place.
        return launch.inherited_plan(os.environ) is not None and not places and args.threads is None
    if places:
        flags = ", ".join("--" + name.replace("_", "-") for name in places)
        print(f"ipex-assist: {flags}: no effect with --no-launch", file=sys.stderr)
    return True


def start_placed(
    command: Sequence[str], argv: Sequence[str], args: argparse.Namespace, model_bytes: Callable[[], int | None]
) -> int:
    """Run `ipex-assist COMMAND argv` on the cores that `args` asks for; with --dry-run only print what would be."""
    program = [*this_command(), *command, "--placed", *(flag for flag in argv if flag != "--dry-run")]
    from ipex_assist.commands.shared.native_runs import flags_run_native  # late: --help shall not wait for it

    native = flags_run_native(args)
    request = replace(launch.request_from(args, model_bytes()), first_touch=native, all_sockets=native)
    prepared = launch.prepare(request, program, show_openmp_settings=args.verbose)
    if args.dry_run:
        print(launch.format_command(prepared), flush=True)
        return 0
    if args.verbose:
        variables = [f"{name}={value}" for name, value in prepared.set.items() if name != PLAN_VARIABLE]
        lines = [prepared.describe(), *variables, *prepared.notes]
        print("ipex-assist: " + "\n  ".join(lines), file=sys.stderr)
    with held_interrupts():
        return launch.run_below(prepared, "ipex-assist", verbose=args.verbose)


def this_command() -> list[str]:
    """How this command was started, and so can be again: by its script, or as a module."""
    script = sys.argv[0]
    if Path(script).name == "ipex-assist" and Path(script).is_file():
        return [sys.executable, script]
    return [sys.executable, "-m", "ipex_assist"]


def set_threads(threads: int | None) -> None:
    """Let torch compute with as many threads as were planned, or asked for, now or when it is imported."""
    from ipex_assist.deferred_imports import keep_torch_to

    plan = launch.inherited_plan(os.environ)
    if plan is not None or threads is not None:
        keep_torch_to(plan.threads if plan is not None else threads or 1)
