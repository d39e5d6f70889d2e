"""The command `ipex-assist env`: what this machine is, and what the native core makes of it."""

from __future__ import annotations

from ipex_assist.commands.shared.environment import native_core
from ipex_assist.env import report
from ipex_assist.env.report import build_parser

__all__ = ["build_parser", "main"]


def main(argv: list[str]) -> int:
    """Run `ipex-assist env`; returns the exit code."""
    return report.main(argv, native_core())
