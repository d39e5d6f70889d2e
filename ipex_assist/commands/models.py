"""`ipex-assist models`: the families that our own decoder runs, or a GGUF file's formats. Never imports torch."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from ipex_assist.checkpoints.gguf import GgufCheckpoint
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import UsageError
from ipex_assist.env.memory import gib
from ipex_assist.env.parser import ArgumentParser
from ipex_assist.executors.registry import EXECUTORS
from ipex_assist.executors.tensor_formats import tensor_formats
from ipex_assist.models import ARCHITECTURES, Architecture
from ipex_assist.speculative.sources.assistant_name import MTP
from ipex_assist.speculative.sources.default_assistants import DEFAULT_ASSISTANTS, OWN_HEADS
from ipex_assist.vision.families import FAMILIES

LOOKUP = "lookup"  # what drafts where there is no default assistant
DEFAULTS = (
    "A default assistant drafts for targets of its vocabulary and at least twice its size; for all others prompt "
    "lookup (lookup) does. Where mtp stands first, checkpoints as published bring a draft head, which is the default."
)
OTHERS = (
    "Any other causal language model of transformers runs through its generate(assistant_model=…): without streaming "
    "verification, int8, int4, and many texts in a pass."
)


def describe() -> list[dict[str, Any]]:
    """The families by their model_type, the objects that `--json` prints."""
    return [_describe(each) for each in sorted(ARCHITECTURES.values(), key=lambda each: each.model_type)]


def _describe(architecture: Architecture) -> dict[str, Any]:
    return {
        "model_type": architecture.model_type,
        "architecture": architecture.name,
        "about": architecture.about,
        "examples": list(architecture.examples),
        "precisions": list(EXECUTORS["native"].precisions),
        "default_assistants": [each.id for each in DEFAULT_ASSISTANTS.get(architecture.name, ())],
        "own_head": architecture.model_type in OWN_HEADS,
        "images": architecture.model_type in FAMILIES,
    }


def _default(family: dict[str, Any]) -> str:
    """The first of a family's default assistants, and how many more there are."""
    own: list[str] = [MTP] if family["own_head"] else []
    first, *others = own + (family["default_assistants"] or [LOOKUP])
    return f"{first} (+{len(others)})" if others else first


def markdown() -> str:
    """The table of docs/models.md."""
    rows = ["| model_type | | images | for example | default assistants |", "|---|---|---|---|---|"]
    for family in describe():
        examples = "<br>".join(family["examples"])
        own: list[str] = [f"`{MTP}`"] if family["own_head"] else []
        assistants = "<br>".join(own + (family["default_assistants"] or [f"`{LOOKUP}`"]))
        images = "yes" if family["images"] else ""
        rows.append(f"| `{family['model_type']}` | {family['about']} | {images} | {examples} | {assistants} |")
    return "\n".join(rows) + "\n"


def _print_formats(file: str, as_json: bool) -> int:
    checkpoint = open_checkpoint(file, offline=True)
    if not isinstance(checkpoint, GgufCheckpoint):
        raise UsageError(f"{file} is no GGUF file: formats are listed of such")
    if reason := checkpoint.why_not_ours():
        raise UsageError(f"{file} is not of a family that our decoder runs: {reason}")
    found = tensor_formats(checkpoint)
    if as_json:
        print(json.dumps([asdict(each) for each in found]))
        return 0
    from tabulate import tabulate

    rows = [
        (each.format, each.tensors, gib(each.bytes, 2), f"{8 * each.bytes / each.weights:.2f}", each.computed)
        for each in found
    ]
    print(tabulate(rows, headers=("format", "tensors", "size", "bits", "computed"), tablefmt="plain"))
    return 0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags of `ipex-assist models`."""
    parser = ArgumentParser(
        prog="ipex-assist models",
        description="List the families that our own decoder runs, or a GGUF file's tensors by format.",
        epilog=OTHERS,
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="a .gguf file: list its formats")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON list on one line")
    form.add_argument("--markdown", action="store_true", help="print the table of docs/models.md")
    return parser


def main(argv: list[str]) -> int:
    """Run `ipex-assist models` with the arguments after `models`; the result is the exit code."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.file is not None:
        if args.markdown:
            parser.error("--markdown is the table of families: leave FILE out")
        return _print_formats(args.file, args.json)
    if args.json:
        print(json.dumps(describe(), ensure_ascii=False))
    elif args.markdown:
        print(markdown(), end="")
    else:
        from tabulate import tabulate

        rows = [(each["model_type"], each["examples"][0], _default(each)) for each in describe()]
        print(tabulate(rows, headers=("model_type", "for example", "default assistant"), tablefmt="plain"))
        print(f"\n{DEFAULTS}\nPrecisions: {', '.join(EXECUTORS['native'].precisions)}. {OTHERS}")
    return 0
