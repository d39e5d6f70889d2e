"""The flags of `ipex-assist distill`. Never imports torch."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from ipex_assist.commands.shared import arguments
from ipex_assist.distill.plan import DRAFT_VOCABULARY, KINDS
from ipex_assist.env.errors import UsageError
from ipex_assist.env.options import add_flags
from ipex_assist.env.parser import ArgumentParser
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.launch import add_placement_arguments
from ipex_assist.speculative.options import GenerationOptions

EPILOG = """\
The target answers the prompts (a file as `ipex-assist batch` reads it). Its hidden states of prompts and answers go to
--work, and the head learns from them what the target says next. A tenth of the prompts is held out, to judge the head.
What is in --work already is not made again, so that the same command continues where it was stopped.

Training is done by speculators 0.9, in an environment that pip makes in the cache folder unless this one has it. The
result is a checkpoint of speculators, which vLLM loads as well.

  ipex-assist distill -m MODEL --prompts prompts.jsonl -o my-head --hours 2
  ipex-assist -m MODEL --assistant-model my-head "Why is the sky blue?"
  ipex-assist distill -m MODEL --prompts more.jsonl -o better --start-from my-head
"""
ANSWERS = ("max_new_tokens", "do_sample", "temperature", "top_k", "top_p", "seed")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags of `ipex-assist distill`."""
    parser = ArgumentParser(
        prog="ipex-assist distill",
        description="Train a draft head for a model on its own answers to your prompts.",
        epilog=EPILOG,
        formatter_class=arguments.Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("-m", "--model", metavar="ID", required=True, help="hub id, folder or .gguf file")
    parser.add_argument("--prompts", metavar="FILE", required=True, help="JSON lines, as batch reads them")
    parser.add_argument("-o", "--output", metavar="HEAD", required=True, help="a new folder")
    parser.add_argument("--kind", choices=KINDS, help="(default: eagle3, or that of --start-from)")
    parser.add_argument("--hours", type=float, default=1.0, metavar="H", help="of training (default: 1)")
    parser.add_argument("--start-from", metavar="HEAD", help="continue to train this head: hub id or folder")
    parser.add_argument("--work", metavar="FOLDER", help="answers, hidden states, state (default: HEAD.work)")
    parser.add_argument("--trainer-python", metavar="PYTHON", help="of an environment with speculators 0.9")
    parser.add_argument("--compare", metavar="ID", help="judge this assistant, too (default: the family's sibling)")
    add_flags(parser, LoadOptions, ("precision", "executor", "kv_memory", "revision", "offline"))
    parser.add_argument("-v", "--verbose", action="store_true", help="placement, loading, libraries' own messages")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    parser.add_argument("--json", action="store_true", help="what the head gains, as one object on one line")
    answers = parser.add_argument_group("answers")
    answers.add_argument("--chat", action="store_true", default=None, help="put prompts into the chat template")
    answers.add_argument(*arguments.RAW, **arguments.RAW_OPTIONS, help="continue prompts as they are (default)")
    add_flags(answers, GenerationOptions, ANSWERS)
    arguments.explain(parser, "--max-new-tokens", "of an answer (default: 128)")
    training = parser.add_argument_group("training")
    training.add_argument("--max-length", type=int, default=1024, metavar="N", help="of a text (default: 1024)")
    training.add_argument("--layers", type=int, metavar="N", help="of a new head (default: eagle3 1, dflash 2)")
    training.add_argument(
        "--draft-vocab-size", type=int, metavar="N", help=f"tokens a new head knows (default: {DRAFT_VOCABULARY})"
    )
    training.add_argument("--learning-rate", type=float, default=1e-3, metavar="X", help="(default: 0.001)")
    add_placement_arguments(parser)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check; UsageError says which value is wrong and what would be right."""
    args = build_parser().parse_args(argv)
    for flag, value, least in (
        ("max-length", args.max_length, 16),
        ("layers", args.layers, 1),
        ("draft-vocab-size", args.draft_vocab_size, 64),
    ):
        if value is not None and value < least:
            raise UsageError(f"--{flag} {value}: must be at least {least}")
    for flag, number in (("hours", args.hours), ("learning-rate", args.learning_rate)):
        if not (math.isfinite(number) and number > 0):
            raise UsageError(f"--{flag} {number:g}: must be more than 0")
    if args.prompts == "-":  # this command starts itself again, and reads them twice
        raise UsageError("--prompts -: must be a file, which a later run can read again")
    shaping = [f"--{name}" for name in ("layers", "draft-vocab-size") if getattr(args, name.replace("-", "_"))]
    if args.start_from is not None and shaping:
        raise UsageError(f"{', '.join(shaping)}: the head of --start-from has its own")
    output = Path(args.output)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"-o {output}: exists already, and is not empty; name a new folder")
    args.work = Path(args.work or f"{str(output).rstrip('/')}.work")
    return args
