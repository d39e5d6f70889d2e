"""The flags of `ipex-assist batch`: those of `ipex-assist`, and what many prompts need besides."""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Sequence

from ipex_assist.batch.line_models import LineModels
from ipex_assist.batch.options import OPTIONS
from ipex_assist.batch.prompts import Defaults
from ipex_assist.commands.shared import arguments
from ipex_assist.env.errors import UsageError
from ipex_assist.env.options import add_flags
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.generation.prefix_options import PrefixOptions
from ipex_assist.launch.flags import add_instance_flags
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.workers.arguments import check_instances
from ipex_assist.workers.capacity import DEFAULT_CONCURRENCY
from ipex_assist.workers.settings import WorkerSettings

EPILOG = """\
A line of PROMPTS is an object: {"id": "a1", "prompt": "Once upon a time"}, or with "messages" (a list of objects with
role and content) instead of the prompt. It may have its own "chat" and options, which come before the flags:
{options}.
Its "model" is the model's own name, or that of an adapter (--lora), which the text then has.
Without an id it has its line's number. Of two lines with one id, the first is run.

Prompts in flight share passes, and each gets the text that it would get alone. When their instance dies, each is tried
again by itself, so that the one at fault fails alone. --timeout cancels one prompt, and no other.

  ipex-assist batch prompts.jsonl -o out.jsonl -m facebook/opt-13b
  ipex-assist batch prompts.jsonl -o out.jsonl -m facebook/opt-13b --resume --timeout 600
  ipex-assist batch prompts.jsonl -o out-$SLURM_ARRAY_TASK_ID.jsonl --shard $SLURM_ARRAY_TASK_ID/8 --resume

Exit codes: 0 every prompt has a result, 1 some failed or could not be read, 2 wrong usage, 130 and 143 interrupted.
"""
# Of `ipex-assist` itself, and without a meaning here.
NOT_HERE = {
    ("-p", "--prompt"): "the prompts are lines of PROMPTS",
    ("--prompt-file",): "the prompts are lines of PROMPTS",
    ("--json",): "results are JSON lines in the file of -o anyway",
    ("--no-stream",): "results are lines in the file of -o, whole ones",
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags; those of models and generation are the objects that `ipex-assist` has."""
    parser = arguments.inheriting_parser(
        "ipex-assist batch",
        "%(prog)s PROMPTS -o RESULTS [options]",
        "Generate for every line of a file, with instances pinned side by side that share one queue.",
        EPILOG.replace("{options}", textwrap.fill(", ".join(OPTIONS), 110)),
        NOT_HERE,
    )
    arguments.explain(parser, "--max-new-tokens", "(default: 128)")
    parser.add_argument("prompts", metavar="PROMPTS", help="a file of JSON lines, or - for standard input")
    batch = parser.add_argument_group("batch")
    batch.add_argument(
        "--chat", action="store_true", default=None, help="put prompts into the model's chat template, as messages"
    )
    batch.add_argument(*arguments.RAW, **arguments.RAW_OPTIONS, help="continue prompts as they are (default)")
    batch.add_argument("-o", "--output", metavar="RESULTS", required=True, help="append results here, one a line")
    batch.add_argument("--resume", action="store_true", help="do only the prompts without a record in RESULTS")
    batch.add_argument("--retry-failed", action="store_true", help="with --resume: also those that failed, once more")
    batch.add_argument(
        "--concurrency",
        type=int,
        metavar="N",
        help="prompts in flight in each instance, which share passes "
        f"(default: what its memory holds, up to {DEFAULT_CONCURRENCY}, or more while a pass takes at most twice as "
        "long as one of a single row)",
    )
    batch.add_argument("--timeout", type=float, metavar="S", help="cancel and retry a prompt that takes longer (s)")
    batch.add_argument("--shard", type=_shard, default=(0, 1), metavar="I/N", help="every N-th line, from line I+1")
    add_flags(batch, PrefixOptions)
    add_instance_flags(batch, " (default: by model and load)")
    batch.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="on the nodes of a Ray cluster: auto, HOST:PORT, or local for this machine",
    )
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check; UsageError says which value is wrong and what would be right."""
    args = build_parser().parse_args(argv)
    if args.timeout is not None and not (math.isfinite(args.timeout) and args.timeout > 0):
        raise UsageError(f"--timeout {args.timeout:g}: must be more than 0 seconds")
    if args.concurrency is not None and args.concurrency < 1:
        raise UsageError(f"--concurrency {args.concurrency}: at least 1 is needed.")
    if args.retry_failed and not args.resume:
        raise UsageError("--retry-failed goes with --resume, which keeps the results there are")
    if args.ray is not None and args.dry_run:
        raise UsageError("--dry-run shows this machine only; leave out --ray to see how such a node is used")
    if args.ray is not None and args.no_launch:
        raise UsageError("--ray and --no-launch exclude each other: instances on Ray are always placed")
    check_instances(args)
    return args


def defaults_from(args: argparse.Namespace, load: LoadOptions) -> Defaults:
    """What the flags say about lines that say nothing themselves."""
    return Defaults(GenerationOptions.from_flags(args), args.chat, LineModels.of(load))


def worker_settings(args: argparse.Namespace, load: LoadOptions) -> WorkerSettings:
    """The settings of each worker."""
    room = GenerationOptions.from_flags(args).max_new_tokens
    prefixes = PrefixOptions.from_flags(args)
    prefixes.check()
    return WorkerSettings(load, room, args.threads, args.verbose, args.concurrency, prefixes=prefixes)


def _shard(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    shard = int(index), int(count)
    if not 0 <= shard[0] < shard[1]:
        raise ValueError
    return shard


_shard.__name__ = "shard (0/N to N-1/N)"
