"""The command `ipex-assist cache`: which packed models are kept on disk, and deleting them. Never imports torch."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.commands.shared.arguments import Formatter
from ipex_assist.env.cache import cache_folder
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.memory import gib
from ipex_assist.env.parser import ArgumentParser
from ipex_assist.executors.native.packed_folder import SIZE_VARIABLE, PackedCopy, copies, size_limit

EPILOG = f"""\
A model that the native core has packed is kept on disk, so that the next start takes no more than a second
(--no-cache-packed keeps none). When all copies together would take more than {SIZE_VARIABLE}, the least
recently used are deleted. Programs that are using a copy are not disturbed when it is deleted.

  ipex-assist cache
  ipex-assist cache clear                        all of them
  ipex-assist cache clear NAME                   as `list` shows it
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags of `ipex-assist cache`."""
    parser = ArgumentParser(
        prog="ipex-assist cache",
        description="Packed models that are kept on disk.",
        epilog=EPILOG,
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("action", nargs="?", choices=("list", "clear"), default="list", help="(default: list)")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of copies to delete (default: all)")
    parser.add_argument("--json", action="store_true", help="one object on one line instead of text")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `ipex-assist cache`; returns the exit code.

    Raises:
        UsageError: names that no copy has, or that `list` does not take.
        IpexAssistError: no home is known, the folder cannot be read, or a copy cannot be deleted.
    """
    args = build_parser().parse_args(argv)
    if args.action == "list" and args.names:
        raise UsageError(f"list takes no names, and {args.names[0]} is one: leave it out")
    folder = _folder()
    try:
        found = copies(folder)
    except OSError as error:
        raise IpexAssistError(f"{folder} cannot be read: {error.strerror}") from error
    report = _listed(folder, found) if args.action == "list" else _cleared(folder, found, args.names)
    print(json.dumps(report) if args.json else _text(report), flush=True)
    return 0


def _folder() -> Path:
    try:
        return cache_folder("packed")
    except RuntimeError as error:
        raise IpexAssistError(f"{error} Set XDG_CACHE_HOME to a folder") from error


def _facts(copy: PackedCopy) -> dict[str, Any]:
    return {
        "name": copy.path.name,
        "model": copy.source,
        "precision": copy.precision,
        "bytes": copy.bytes,
        "used": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(copy.used)),
    }


def _listed(folder: Path, found: Sequence[PackedCopy]) -> dict[str, Any]:
    """What is there, the copy that was used last first."""
    return {
        "folder": str(folder),
        "limit": size_limit(),
        "bytes": sum(copy.bytes for copy in found),
        "copies": [_facts(copy) for copy in reversed(found)],
    }


def _cleared(folder: Path, found: Sequence[PackedCopy], names: Sequence[str]) -> dict[str, Any]:
    """Delete the copies of these names, or all of them."""
    known = {copy.path.name: copy for copy in found}
    for name in names:
        if name not in known:
            raise UsageError(f"{name}: there is no such copy in {folder}; `ipex-assist cache` lists their names")
    goes = [known[name] for name in dict.fromkeys(names)] if names else list(reversed(found))
    for number, copy in enumerate(goes):
        try:
            copy.path.unlink(missing_ok=True)  # somebody else may be clearing, too
        except OSError as error:
            raise IpexAssistError(
                f"{copy.path} cannot be deleted: {error.strerror}. {number} of {len(goes)} copies are gone"
            ) from error
    return {
        "folder": str(folder),
        "bytes": sum(copy.bytes for copy in goes),
        "deleted": [_facts(copy) for copy in goes],
    }


def _text(report: dict[str, Any]) -> str:
    """The report for people: a line a copy, and a sentence about all."""
    listed: list[dict[str, Any]] = report["copies"] if "copies" in report else report["deleted"]
    lines = [
        f"{gib(copy['bytes'], 2):>10}  {copy['used'].replace('T', ' ').removesuffix('Z')}  "
        f"{copy['precision'] or '?':<4}  {short_name(copy['model']) if copy['model'] else '?'}  {copy['name']}"
        for copy in listed
    ]
    number = f"{len(listed)} packed {'copy' if len(listed) == 1 else 'copies'}, {gib(report['bytes'], 2)}"
    if "limit" in report:
        return "\n".join(
            [*lines, f"{number} of at most {gib(report['limit'], 2)} ({SIZE_VARIABLE}), in {report['folder']}"]
        )
    return f"deleted {number}, in {report['folder']}"
