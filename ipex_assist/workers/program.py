"""The command line of a worker. Never imports torch."""

from __future__ import annotations

from ipex_assist.commands.shared.relaunch import this_command

SUBCOMMAND = "worker"  # of `ipex-assist`; its help does not list it, since only batch and serve start it


def worker_program() -> list[str]:
    """Return the argv that starts a worker: of the same installation as the command that starts it."""
    return [*this_command(), SUBCOMMAND]
