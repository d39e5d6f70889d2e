"""The command `ipex-assist pull`: downloads models from the hub into its cache. Never imports torch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ipex_assist.checkpoints import hub
from ipex_assist.checkpoints.hub_cache import stored_at
from ipex_assist.checkpoints.open import check_source
from ipex_assist.commands.shared.arguments import Formatter
from ipex_assist.commands.shared.messages import configure_messages
from ipex_assist.env.memory import gib
from ipex_assist.env.parser import ArgumentParser

EPILOG = """\
  ipex-assist pull Qwen/Qwen2.5-7B-Instruct
  ipex-assist run Qwen/Qwen2.5-7B-Instruct "Why is the sky blue?"

Config, tokenizer and one kind of weights are downloaded, into the cache that all of Hugging Face's libraries share
($HF_HOME). Later starts need no network; what is there already is not downloaded again.
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags of `ipex-assist pull`."""
    parser = ArgumentParser(
        prog="ipex-assist pull",
        description="Download models from the hub.",
        epilog=EPILOG,
        formatter_class=Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("models", nargs="+", metavar="ID", help="hub id, as OWNER/NAME")
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `ipex-assist pull`; returns the exit code.

    Raises:
        UsageError: a path to nothing.
        IpexAssistError: a model cannot be downloaded; the message says why, and what to type.
    """
    args = build_parser().parse_args(argv)
    configure_messages(False, progress=not args.quiet)
    for source in map(hub.canonical_id, args.models):
        if (path := check_source(source)) is not None:
            print(f"{source} is on this machine ({path.absolute()}): there is nothing to download", flush=True)
            continue
        path = hub.fetch(source, revision=args.revision)
        stored = stored_at(source, path)
        size = f", {gib(stored.bytes, 2)}" if stored is not None else ""
        print(f"{source} is on this machine{size}: {path}", flush=True)
    return 0
