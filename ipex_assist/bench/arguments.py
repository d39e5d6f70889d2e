"""The flags of `ipex-assist bench`, and what is wrong with their values before anything is loaded."""

from __future__ import annotations

import argparse
import importlib.util
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ipex_assist.bench.options import PairOptions, TaskOptions
from ipex_assist.bench.pairs import PAIRS, find_pair, published_config, shown_layers
from ipex_assist.bench.prompts import SHIPPED, open_dataset
from ipex_assist.commands.shared import arguments
from ipex_assist.commands.shared.arguments import read_text
from ipex_assist.env.errors import UsageError
from ipex_assist.env.options import options_of, read_flag
from ipex_assist.env.versions import install_command
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.quantization.precision import PRECISIONS
from ipex_assist.speculative.options import GenerationOptions, SamplingOptions
from ipex_assist.speculative.sources.assistant_name import NONE, SELF

TASKS = ("benchmark", "decode", "dataset", "throughput")
FORMATS = ("markdown", "csv", "json")
SCHEDULES = ("adaptive", "heuristic")
EPILOG = """\
  ipex-assist bench                                                  the embedded model, in less than a minute
  ipex-assist bench --pair opt-6.7b                                  prompts of 256 and 512 tokens, 64 to 1024 new ones
  ipex-assist bench -m TARGET --assistant-model ASSISTANT --precision bf16,int8,int4 --max-new-tokens 128
  ipex-assist bench --task decode --pair llama-2-7b                  ten short prompts, 30 new tokens
  ipex-assist bench --task dataset alpaca_data.json -m TARGET --samples 200 -o alpaca.jsonl
  ipex-assist bench --task throughput --concurrency 1,4,16 -m TARGET --assistant-model ASSISTANT
  ipex-assist bench --pair opt-6.7b --random-weights --acceptance 0.5,0.8 --num-assistant-tokens 1,2,4,8 --plot k.png

A LIST is one value, or several with commas between; all combinations are measured side by side, in one run.
Tokens/Sec and Ratio are of the tokens after the first; the last line is a summary.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""
# Of `ipex-assist` itself, and without a meaning here.
NOT_HERE = {
    ("-p", "--prompt"): "prompts come with the task; --text FILE gives another text for --task benchmark",
    ("--prompt-file",): "prompts come with the task; --text FILE gives another text for --task benchmark",
    ("--stop",): "how long texts become is part of the task",
    ("--no-stream",): "no text is printed",
    ("--show-accepted",): "no text is printed",
}
# Of --task benchmark with the embedded model: a first look, in less than a minute.
EMBEDDED = {"max_new_tokens": "128", "prompt_tokens": "256"}
# Defaults that depend on the task. All tasks are greedy, with the adaptive draft length, unless flags say otherwise.
DEFAULTS: dict[str, dict[str, Any]] = {
    "benchmark": {"max_new_tokens": "64,128,256,512,1024", "prompt_tokens": "256,512", "repeats": 3},
    "decode": {"max_new_tokens": "30", "repeats": 3},
    "dataset": {"max_new_tokens": "128", "repeats": 1, "samples": 50},
    "throughput": {"max_new_tokens": "128", "repeats": 3, "concurrency": "1,2,4,8,16,32"},
}
ONLY_FOR: dict[str, tuple[str, ...]] = {
    "prompt_tokens": ("benchmark", "throughput"),
    "text": ("benchmark", "throughput"),
    "dataset": ("dataset", "throughput"),
    "samples": ("dataset",),
    "output": ("dataset",),
    "resume": ("dataset",),
    "chat": ("dataset", "throughput"),
    "concurrency": ("throughput",),
    "requests": ("throughput",),
}
MOST_REQUESTS = 100_000
T = TypeVar("T")


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags; those of models and placement are the objects that `ipex-assist` has."""
    parser = arguments.inheriting_parser(
        "ipex-assist bench",
        "%(prog)s [--task benchmark|decode|dataset|throughput] [FILE|NAME] [options]",
        "Measure plain and assisted generation in one run: speed, ratio, acceptance, spread.",
        EPILOG,
        NOT_HERE,
    )
    arguments.explain(
        parser,
        "--generation-config",
        "sampling defaults: none, auto (the model's), or the FOLDER of others (default: none)",
    )
    _add_measured(parser)
    _add_pairs(parser)
    _add_report(parser)
    return parser


def _add_measured(parser: argparse.ArgumentParser) -> None:
    what = parser.add_argument_group("what is measured")
    what.add_argument("--task", choices=TASKS, default="benchmark", help="(default: benchmark)")
    what.add_argument(
        "dataset",
        nargs="?",
        metavar="FILE|NAME",
        help=f"of --task dataset and throughput: a JSON file, {SHIPPED}, or {SHIPPED}:KIND",
    )
    what.add_argument("--dataset", dest="dataset_flag", metavar="FILE", help=argparse.SUPPRESS)  # the same
    what.add_argument("--concurrency", metavar="LIST", help="requests in flight at once (default: 1,2,4,8,16,32)")
    what.add_argument(
        "--requests", type=int, metavar="N", help="of each concurrency (default: 4 × as many, at least 16)"
    )
    lengths = "lengths of prompts (default: 256,512; embedded model 256; throughput: from 30 to 300)"
    what.add_argument("--prompt-tokens", metavar="LIST", help=lengths)
    defaults = "(default: 64,128,256,512,1024; decode 30; dataset, throughput and the embedded model 128)"
    what.add_argument("--max-new-tokens", metavar="LIST", help=defaults)
    what.add_argument("--text", metavar="FILE", help="file whose beginning is the prompt (default: our own)")
    what.add_argument("--samples", type=int, metavar="N", help="prompts drawn from a dataset (default: 50; 0 is all)")
    what.add_argument("--chat", action="store_true", help="put a dataset's prompts into the model's chat template")
    what.add_argument(*arguments.RAW, **arguments.RAW_OPTIONS, help="continue prompts as they are (default)")
    what.add_argument("--repeats", type=int, metavar="N", help="turns on every prompt (default: 3; dataset 1)")
    seed = read_flag(GenerationOptions, "seed")
    what.add_argument("--seed", type=seed, default=0, metavar="N", help="of sampling, prompts included (default: 0)")


def _add_pairs(parser: argparse.ArgumentParser) -> None:
    pairs = parser.add_argument_group("pairs, side by side")
    pairs.add_argument("--pair", metavar="NAME", help=f"instead of -m: {', '.join(PAIRS)}")
    pairs.add_argument(
        "--precision", metavar="LIST", help="of the target's weights (default: bf16; embedded model fp32)"
    )
    pairs.add_argument("--assistant-precision", metavar="LIST", help="(default: the target's; of self int4)")
    pairs.add_argument(
        "--num-assistant-tokens",
        metavar="LIST",
        help="drafted tokens a round: numbers, adaptive, heuristic (default: adaptive)",
    )
    pairs.add_argument(
        "--random-weights", action="store_true", help="the pair's exact shapes with random weights; nothing is loaded"
    )
    pairs.add_argument(
        "--layers", type=int, metavar="N", help="with --random-weights: the target's first N layers, where not all fit"
    )
    pairs.add_argument(
        "--acceptance",
        metavar="LIST",
        help="simulate: each drafted token becomes the target's own with this probability",
    )


def _add_report(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("report")
    output.add_argument("--format", choices=FORMATS, default="markdown", help="(default: markdown)")
    output.add_argument("--json", action="store_true", help=argparse.SUPPRESS)  # --format json
    output.add_argument(
        "--plot",
        metavar="FILE",
        help="draw speed-up against what varies, or tokens/s against concurrency (.png, .svg, .pdf)",
    )
    output.add_argument("-o", "--output", metavar="FILE", help="of --task dataset: keep a record a prompt here")
    output.add_argument(
        "--resume", action="store_true", help="with -o: continue where the file ends, also with more --samples"
    )


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check; UsageError says which value is wrong and what would be right.

    Of the lists, `precision`, `assistant_precision`, `acceptance`, `num_assistant_tokens`, `prompt_tokens` and
    `max_new_tokens` become lists, with None where the default is left to others.
    """
    args = build_parser().parse_args(argv)
    args.format = "json" if args.json else args.format
    if args.dataset_flag is not None:
        if args.dataset is not None:
            raise UsageError(f"{args.dataset!r} and --dataset {args.dataset_flag} are both given; give one of them")
        args.dataset = args.dataset_flag
    _check_task(args)
    embedded = args.task == "benchmark" and args.model is None and args.pair is None
    for name, value in (DEFAULTS[args.task] | (EMBEDDED if embedded else {})).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    _read_lists(args)
    _check_inputs(args)
    _check_models(args)
    _check_numbers(args)
    if args.output is None and args.resume:
        raise UsageError("--resume goes with -o FILE, which keeps the records there are")
    if args.plot is not None:
        _check_plot(args)
    return args


def pair_options(args: argparse.Namespace) -> PairOptions:
    """What parsed flags ask to be loaded."""
    names = (
        "universal",
        "draft_vocabulary",
        "draft_threads",
        "draft_corpus",
        "draft_history",
        "recalibrate",
        "executor",
        "kv_memory",
        "resident",
        "revision",
        "offline",
        "lora",
    )
    load = LoadOptions.of(
        target=args.model,
        assistant=args.assistant_model if args.assisted is not False else NONE,
        # Of several draft lengths, one that depends on measured costs is enough for measuring them.
        calibrate="adaptive" in (*args.num_assistant_tokens, args.num_assistant_tokens_schedule),
        cache_packed=bool(args.cache_packed),  # measuring leaves no files behind unless asked
        generation_config=args.generation_config or NONE,  # figures of models are compared
        lora_by_default=True,
        **{name: getattr(args, name) for name in names},
    )
    return PairOptions(
        load,
        precisions=tuple(args.precision),
        assistant_precisions=tuple(args.assistant_precision) if args.assisted is not False else (None,),
        random_weights=args.random_weights,
        layers=args.layers,
        prompt_tokens=max(args.prompt_tokens, default=None),
        max_new_tokens=max(args.max_new_tokens),
        threads=args.threads,
        verbose=args.verbose,
        concurrency=max(args.concurrency, default=1),
    )


def task_options(args: argparse.Namespace) -> TaskOptions:
    """What parsed flags ask to be measured."""
    drawing = [name for name in options_of(SamplingOptions) if name not in ("do_sample", "seed")]
    names = ("task", "dataset", "samples", "chat", "text", "repeats", "seed", "requests")
    return TaskOptions(
        **{name: getattr(args, name) for name in names},
        prompt_tokens=tuple(args.prompt_tokens),
        max_new_tokens=tuple(args.max_new_tokens),
        concurrency=tuple(args.concurrency),
        assisted=args.assisted is not False,
        num_assistant_tokens=tuple(args.num_assistant_tokens),
        acceptance=tuple(args.acceptance),
        do_sample=bool(args.do_sample),
        ignore_eos=bool(args.ignore_eos),
        sampling={name: getattr(args, name) for name in drawing if getattr(args, name) is not None},
    )


def idle_flags(args: argparse.Namespace) -> list[str]:
    """Flags that were given, and have no effect without --do-sample."""
    drawing = [name for name, one in options_of(SamplingOptions).items() if one.needs == "do_sample" and name != "seed"]
    given = [name for name in drawing if getattr(args, name) is not None]
    return [] if args.do_sample else ["--" + name.replace("_", "-") for name in given]


def _check_task(args: argparse.Namespace) -> None:
    for name, tasks in ONLY_FOR.items():
        if args.task not in tasks and getattr(args, name) not in (None, False):
            flag = repr(args.dataset) if name == "dataset" else "--" + name.replace("_", "-")
            raise UsageError(f"{flag} is of --task {' and '.join(tasks)}, and this is --task {args.task}")
    if args.task == "dataset" and args.dataset is None:
        raise UsageError(f"--task dataset: which? Give a file, or {SHIPPED} for our own prompts")


def _check_inputs(args: argparse.Namespace) -> None:
    """Check what prompts are made of, before models are loaded and files of records begun."""
    if args.text is not None:
        read_text(args.text)
    if args.dataset is not None:
        open_dataset(args.dataset)
    if args.task != "benchmark" and len(args.max_new_tokens) > 1:
        raise UsageError(f"--max-new-tokens: --task {args.task} takes one length")


def _read_lists(args: argparse.Namespace) -> None:
    args.precision = _list(args, "precision", _precision) or [None]
    args.assistant_precision = _list(args, "assistant_precision", _precision) or [None]
    args.prompt_tokens = _list(args, "prompt_tokens", _whole(1, 10_000_000))
    args.max_new_tokens = _list(args, "max_new_tokens", _whole(2, 10_000_000))
    args.concurrency = _list(args, "concurrency", _whole(1, MOST_REQUESTS))
    args.acceptance = _list(args, "acceptance", _share)
    args.num_assistant_tokens = _list(args, "num_assistant_tokens", _draft) or ["adaptive"]


def _list(args: argparse.Namespace, name: str, read: Callable[[str], T]) -> list[T]:
    text = getattr(args, name)
    values: list[T] = []
    for part in [] if text is None else text.split(","):
        try:
            values.append(read(part.strip()))
        except ValueError as error:
            raise UsageError(f"--{name.replace('_', '-')} {part.strip()}: {error}") from None
    return list(dict.fromkeys(values))


def _precision(text: str) -> str | None:
    if text not in PRECISIONS:
        raise ValueError(f"there is no such precision; known: {', '.join(PRECISIONS)}")
    return text


def _whole(lowest: int, highest: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or not lowest <= int(text) <= highest:
            raise ValueError(f"must be a whole number between {lowest} and {highest}")
        return int(text)

    return read


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise ValueError("must be a probability, between 0 and 1")
    return value


def _draft(text: str) -> int | str:
    if text in SCHEDULES:
        return text
    try:
        return _whole(1, 64)(text)
    except ValueError as error:
        raise ValueError(f"{error}, or {' or '.join(SCHEDULES)}") from None


def _check_models(args: argparse.Namespace) -> None:
    if args.pair is not None:
        if args.model is not None:
            raise UsageError("--pair and -m are both given; give one of them")
        pair = find_pair(args.pair)
        args.model, args.assistant_model = pair.target, args.assistant_model or pair.assistant
    if args.model is None and args.random_weights:
        raise UsageError(f"--random-weights: of which shapes? Give -m ID, or --pair with one of {', '.join(PAIRS)}")
    drafting = args.assisted is not False and (args.assistant_model or "").lower() != "none"
    if args.acceptance and args.task == "throughput":
        raise UsageError("--acceptance simulates the draft of one text, and --task throughput has many: leave it out")
    if args.acceptance and not drafting:
        raise UsageError("--acceptance simulates a draft, and there is none: leave out --no-assisted")
    if args.acceptance and args.do_sample:
        raise UsageError("--acceptance follows the target's greedy text: leave out --do-sample")
    if args.layers is not None and not args.random_weights:
        raise UsageError("--layers cuts a model of random weights: add --random-weights, or leave it out")
    if not args.random_weights:
        return
    if args.lora:
        raise UsageError("--lora goes with a model's own weights: leave out --random-weights")
    shown_layers(published_config(args.model), args.layers)
    if not drafting:
        return
    if args.assistant_model is None:
        raise UsageError("--random-weights needs a draft: give --pair NAME, --assistant-model ID, or --no-assisted")
    if args.assistant_model != SELF:
        published_config(args.assistant_model)
    if args.task == "throughput":
        raise UsageError("--random-weights: a draft of random weights guesses nothing. Add --no-assisted")
    if not args.acceptance:
        raise UsageError(
            "--random-weights: a draft of random weights guesses nothing. Add --acceptance 0.8, which simulates one "
            "that is right four times of five, or --no-assisted"
        )


def _check_numbers(args: argparse.Namespace) -> None:
    ranges = ("repeats", 1, 10_000), ("samples", 0, 10_000_000), ("requests", 1, MOST_REQUESTS)
    for name, lowest, highest in ranges:
        value = getattr(args, name)
        if value is not None and not lowest <= value <= highest:
            raise UsageError(f"--{name} {value}: must be between {lowest} and {highest}")


def _check_plot(args: argparse.Namespace) -> None:
    """Before hours of measuring, not after."""
    if Path(args.plot).suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--plot {args.plot}: the name must end in .png, .svg or .pdf")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError(f"--plot needs matplotlib, which is not installed here: {install_command('plot')}")
    if not Path(args.plot).absolute().parent.is_dir():
        raise UsageError(f"--plot {args.plot}: there is no such folder")
    if args.assisted is False and args.task != "throughput":
        raise UsageError("--plot draws the speed-up of assisted runs: leave out --no-assisted")
