"""The command `ipex-assist list`: the models on this machine. Never imports torch."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ipex_assist.checkpoints.hub import cache_folder as hub_folder
from ipex_assist.checkpoints.hub_cache import StoredModel, cached_models, stored_at
from ipex_assist.commands.shared.arguments import Formatter
from ipex_assist.env.cache import cache_folder
from ipex_assist.env.errors import UsageError
from ipex_assist.env.memory import gib
from ipex_assist.env.parser import ArgumentParser
from ipex_assist.executors.native.packed_folder import PackedCopy, copies

EPILOG = """\
Models of the hub cache, and with --models-dir the folders and .gguf files of a folder as well. packed: the precisions
of which a packed copy makes starts quick (`ipex-assist cache`). `ipex-assist models` lists what families can be run.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags of `ipex-assist list`."""
    parser = ArgumentParser(
        prog="ipex-assist list",
        description="List the models on this machine.",
        epilog=EPILOG,
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--models-dir", metavar="DIR", help="folder of models, as for serve --models-dir")
    parser.add_argument("--json", action="store_true", help="one list on one line instead of text")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `ipex-assist list`; returns the exit code. Raises UsageError for a folder that cannot be read."""
    args = build_parser().parse_args(argv)
    stored = [*cached_models(), *(_in_folder(args.models_dir) if args.models_dir is not None else ())]
    packed = _packed()
    report = [_facts(each, packed) for each in stored]
    if args.json:
        print(json.dumps(report), flush=True)
        return 0
    if not report:
        print(f"no models are on this machine ({hub_folder()}): ipex-assist pull ID downloads one", flush=True)
        return 0
    from tabulate import tabulate

    rows = [(each["model"], gib(each["bytes"], 2), " ".join(each["packed"]), each["path"]) for each in report]
    print(tabulate(rows, headers=("model", "size", "packed", "path"), tablefmt="plain"), flush=True)
    return 0


def _in_folder(folder: str) -> list[StoredModel]:
    path = Path(folder).expanduser()
    try:
        entries = sorted(path.iterdir())
        found = [stored_at(each.name.removesuffix(".gguf"), each) for each in entries if _is_model(each)]
    except OSError as error:
        raise UsageError(f"--models-dir {folder} cannot be read: {error.strerror}") from None
    return [each for each in found if each is not None]


def _is_model(path: Path) -> bool:
    return path.is_dir() or path.suffix == ".gguf"


def _packed() -> list[PackedCopy]:
    with contextlib.suppress(RuntimeError, OSError):
        return copies(cache_folder("packed"))
    return []


def _facts(stored: StoredModel, packed: Sequence[PackedCopy]) -> dict[str, Any]:
    sources = {stored.name, str(stored.path), str(stored.path.absolute())}
    precisions = {copy.precision for copy in packed if copy.source in sources and copy.precision}
    return {
        "model": stored.name,
        "bytes": stored.bytes,
        "packed": sorted(precisions),
        "path": str(stored.path),
    }
