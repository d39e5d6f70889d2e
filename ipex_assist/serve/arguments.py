"""The flags of `ipex-assist serve`: model and placement flags of `ipex-assist`, and the server's own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from ipex_assist.checkpoints.open import check_source
from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.commands.shared import arguments
from ipex_assist.embedding.settled import settled
from ipex_assist.env.errors import UsageError
from ipex_assist.env.options import add_flags, flags_of, options_of
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.generation.prefix_options import PrefixOptions
from ipex_assist.launch.flags import add_instance_flags
from ipex_assist.native.rows import BLOCK
from ipex_assist.serve.model_options import ManyModelsOptions
from ipex_assist.serve.model_sources import name_of
from ipex_assist.serve.options import ServeOptions
from ipex_assist.speculative.options import DraftOptions, GenerationOptions
from ipex_assist.workers.arguments import check_instances
from ipex_assist.workers.capacity import MOST_CONCURRENCY
from ipex_assist.workers.settings import WorkerSettings

EPILOG = """\
The port answers /health at once, and /ready when the models are loaded. SIGTERM or Ctrl-C: no new requests are
taken, running ones may finish within --grace; a second signal ends at once. An engine that dies is restarted, while the
others continue.

  ipex-assist serve                                             the embedded model
  ipex-assist serve -m facebook/opt-13b --api-key-file keys     with keys
  ipex-assist serve -m facebook/opt-13b --instances per-node    an engine per NUMA node
  ipex-assist serve -m big=facebook/opt-13b -m small=facebook/opt-350m     two models, loaded when they are asked for

Exit codes: 0 ended by a signal, 1 the models cannot be loaded, 2 wrong usage, 130 and 143 ended by a second signal.
"""
NOT_HERE = {
    ("-p", "--prompt"): "prompts come by HTTP; ipex-assist -p is for one",
    ("--prompt-file",): "prompts come by HTTP",
    ("--chat",): "requests to /v1/chat/completions are put into the chat template, others are not",
    arguments.RAW: "requests to /v1/completions go on with their prompt as it is",
    ("--json",): "answers are JSON anyway",
    ("--no-stream",): 'a request asks for it: "stream": false',
    ("--show-accepted",): "the page at / shows it, and ipex-assist chat",
}
# Sampling, stop strings and log-probabilities belong to requests; how to draft is the server's default.
OF_REQUESTS = {
    flags: "each request says it"
    for name, one in options_of(GenerationOptions).items()
    if name not in (*options_of(DraftOptions), "max_new_tokens") and (flags := flags_of(name, one))
}


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = arguments.inheriting_parser(
        "ipex-assist serve",
        "%(prog)s [options]",
        "Serve a model by OpenAI's API, with a page to chat on and metrics.",
        EPILOG,
        NOT_HERE | OF_REQUESTS,
    )
    group = parser.add_argument_group("server")
    add_flags(group, ManyModelsOptions)
    add_flags(group, ServeOptions)
    add_flags(group, PrefixOptions)
    add_instance_flags(group, " (default: by model and load)")
    group.add_argument("--ray", metavar="ADDRESS", help="as Ray Serve replicas, one a node: auto, or HOST:PORT")
    group.add_argument(
        "--replicas", type=_replicas, metavar="N[-M]", help="with --ray: how many; by load, N to M (default: the nodes)"
    )
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and validate the flags; `model` of the result is that of a server of one model. Raises UsageError."""
    args = build_parser().parse_args(argv)
    args.many_models = ManyModelsOptions.from_flags(args)
    args.model = None if args.many_models.many else next(iter(args.many_models.models), None)
    options = ServeOptions.from_flags(args)
    if options.uds is not None and (args.host is not None or args.port is not None):
        raise UsageError("--uds listens on no port: leave out --host and --port")
    check_instances(args)
    if args.ray is not None and (args.no_launch or args.dry_run or options.uds is not None):
        raise UsageError(
            "--ray goes without --no-launch, --dry-run and --uds: Ray's proxy listens, on --host and --port"
        )
    if args.ray is not None and (options.ssl_certfile is not None or options.otel is not None):
        raise UsageError("--ray goes without --ssl-certfile and --otel: put a proxy in front of Ray's for these")
    check_many(args, options)
    if args.replicas is not None and args.ray is None:
        raise UsageError("--replicas goes with --ray; on this machine alone --instances says how many engines")
    return args


def check_many(args: argparse.Namespace, options: ServeOptions) -> None:
    """Raise UsageError where a flag goes with one model alone, or with many alone."""
    many: ManyModelsOptions = args.many_models
    if many.many:
        if args.ray is not None or args.dry_run:
            raise UsageError("--ray and --dry-run are for a server of one model: give one -m, without a name")
        if options.served_model_name:
            raise UsageError("--served-model-name is for a server of one model: many are named by -m NAME=ID")
        if args.lora:
            raise UsageError("--lora is for a server of one model: give one -m, without a name")
        if args.assistant_model is not None:
            raise UsageError("--assistant-model is for a server of one model: of many give -m NAME=ID,assistant=ID")
        return
    for flag, value in (("--keep", args.keep), ("--models-memory", args.models_memory)):
        if value is not None:
            raise UsageError(f"{flag} is for a server of many models: give -m NAME=ID twice, or --models-dir")


def _replicas(text: str) -> tuple[int, int]:
    least, _, most = text.partition("-")
    found = int(least), int(most or least)
    if not 1 <= found[0] <= found[1]:
        raise ValueError
    return found


_replicas.__name__ = "number of replicas (N, or N-M)"


def check_files(options: ServeOptions, load: LoadOptions) -> None:
    """Raise UsageError, before anything is loaded, for files that cannot be read and for no model at the path."""
    options.keys()
    options.tls()
    if load.target is not None:
        check_source(load.target)


def worker_settings(args: argparse.Namespace, options: ServeOptions, load: LoadOptions) -> WorkerSettings:
    """Settings of an engine process; memory is planned for its concurrency × requests of --text-tokens."""
    tokens = -(-options.text_tokens // BLOCK) * BLOCK
    concurrency = options.max_concurrency
    lengths = (tokens,) * (concurrency or MOST_CONCURRENCY)
    load, task = settled(load, options.task)
    load = replace(load, lora_by_default=False)  # a request's model says which
    prefixes = PrefixOptions.from_flags(args)
    prefixes.check()
    return WorkerSettings(
        *(load, options.text_tokens, args.threads, args.verbose, concurrency, lengths),
        grammars=True,
        prefixes=prefixes,
        task=task,
        matryoshka=options.matryoshka,
    )


def model_name(options: ServeOptions, target: str) -> str:
    """The model's name in requests: --served-model-name, or the hub id, or the name of the folder or file."""
    return options.served_model_name[0] if options.served_model_name else name_of(target)


def shown_name(options: ServeOptions, target: str) -> str:
    """The model's name in messages: --served-model-name, or a short one."""
    return options.served_model_name[0] if options.served_model_name else short_name(target)
