"""The flags of `ipex-assist`, and what is wrong with their values before anything is loaded."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ipex_assist.commands.environment import VersionAction
from ipex_assist.env.errors import UsageError
from ipex_assist.env.parser import ArgumentParser
from ipex_assist.launch import add_placement_arguments
from ipex_assist.speculative.assistant_name import parse_assistant

PRECISIONS = ("bf16", "fp32", "int8", "int4")
EPILOG = """\
  ipex-assist -m facebook/opt-13b                         the family's assistant
  ipex-assist batch|submit|bench|quantize|eval --help     many prompts, job scripts, measuring, fewer bits
  ipex-assist env                                         what this machine is
"""


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Flags in one wide column, so that the help fits two screens."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=110)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        # "-m, --model ID" instead of "-m ID, --model ID".
        text = ", ".join(action.option_strings)
        if action.nargs == 0 or not action.option_strings:
            return text or super()._format_action_invocation(action)
        return f"{text} {self._format_args(action, (action.dest or '').upper())}"


def inheriting_parser(
    prog: str, usage: str, description: str, epilog: str, not_here: Mapping[tuple[str, ...], str]
) -> argparse.ArgumentParser:
    """A subcommand's parser with all flags of `ipex-assist`, the same objects.

    not_here: flags that have no meaning there; giving one is a UsageError with this reason.
    """

    class NotHere(argparse.Action):
        def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
            raise UsageError(f"{option_string}: {not_here[tuple(self.option_strings)]}")

    parser = ArgumentParser(
        prog=prog,
        usage=usage,
        description=description,
        epilog=epilog,
        formatter_class=Formatter,
        parents=[build_parser()],
        conflict_handler="resolve",  # a flag that is added again replaces the inherited one
        allow_abbrev=False,
    )
    for flags in not_here:
        parser.add_argument(*flags, action=NotHere, nargs="?", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags, in groups. A precision that is not given is None."""
    parser = ArgumentParser(
        prog="ipex-assist",
        usage="%(prog)s [options]\n       %(prog)s env [--json] [--root DIR]",
        description="Generate text with an LLM and a small assistant model, pinned to this machine's cores.",
        epilog=EPILOG,
        formatter_class=Formatter,
        allow_abbrev=False,  # `--dry` would not be recognised as the flag to leave out of the command that is printed
    )
    parser.add_argument("--version", action=VersionAction)

    models = parser.add_argument_group("models")
    models.add_argument("-m", "--model", metavar="ID", help="hub id, folder or .gguf file (default: SmolLM2-135M)")
    models.add_argument(
        "--assistant-model",
        metavar="ID",
        help="likewise; self (the target's int4 copy), lookup (copies from the text), lookup+ID, auto-lookup, or "
        "none (default: by the target's family)",
    )
    models.add_argument(
        "--assisted",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="draft with the assistant, or decode plainly",
    )
    models.add_argument("--precision", choices=PRECISIONS, metavar="P", help="bf16, fp32, int8 or int4 (default: bf16)")
    models.add_argument("--assistant-precision", choices=PRECISIONS, metavar="P", help="(default: the target's)")
    models.add_argument(
        "--universal", action="store_true", help="allow an assistant with another tokenizer (by its text)"
    )
    models.add_argument("--draft-vocabulary", type=int, metavar="N", help="draft only among the first N token ids")
    models.add_argument("--recalibrate", action="store_true", help="forget what was measured of this pair here")
    models.add_argument(
        "--executor",
        choices=("auto", "native", "ipex", "torch"),
        default="auto",
        metavar="NAME",
        help="native, ipex or torch: what runs the models (default: the first that works here)",
    )
    models.add_argument(
        "--cache-packed",
        action="store_true",
        help="keep the native core's packed weights on disk (XDG cache folder)",
    )
    models.add_argument("--revision", metavar="REV", help="branch, tag or commit of the target on the hub")
    models.add_argument("--offline", action="store_true", help="use only what is on this machine")

    prompt = parser.add_argument_group("prompt (text that is piped in goes behind it, or is it where neither is given)")
    prompt.add_argument("-p", "--prompt", metavar="TEXT")
    prompt.add_argument("--prompt-file", metavar="FILE", help="- is standard input")
    prompt.add_argument("--chat", action="store_true", help="put the prompt into the model's chat template")

    generation = parser.add_argument_group("generation")
    generation.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="(default: 128)")
    generation.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop before it; repeatable")
    generation.add_argument(
        "--num-assistant-tokens", type=int, metavar="N", help="drafted tokens a round (default: by measured cost)"
    )
    generation.add_argument(
        "--num-assistant-tokens-schedule",
        choices=("adaptive", "constant", "heuristic"),
        metavar="S",
        help="adaptive, constant or heuristic (default: adaptive; constant with a number)",
    )
    generation.add_argument("--do-sample", action="store_true", help="draw tokens instead of taking the likeliest")
    generation.add_argument("--temperature", type=float, metavar="T", help="(default: 1.0)")
    generation.add_argument("--top-p", type=float, metavar="P", help="(default: 1.0)")
    generation.add_argument("--top-k", type=int, metavar="K", help="(default: 50; 0 is off)")
    generation.add_argument("--repetition-penalty", type=float, default=1.0, metavar="R", help="(default: 1.0)")
    generation.add_argument("--seed", type=int, metavar="N", help="repeat the same draws")

    add_placement_arguments(parser)

    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="one object on one line instead of text")
    output.add_argument("--no-stream", action="store_true", help="print the text at its end")
    output.add_argument("--show-accepted", action="store_true", help="drafted text in green, the target's own in bold")
    output.add_argument("-v", "--verbose", action="store_true", help="placement, loading, all statistics, messages")
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse and check; UsageError says which value is wrong and what would be right."""
    args = build_parser().parse_args(argv)
    if args.prompt is not None and args.prompt_file is not None:
        raise UsageError("--prompt and --prompt-file are both given; give one of them")
    if args.prompt is not None and not args.prompt.strip():
        raise UsageError("the prompt is empty: give -p TEXT, --prompt-file FILE, or text on standard input")
    if any(not stop for stop in args.stop):
        raise UsageError("--stop is empty; give the text to stop before")
    _check_number("--max-new-tokens", args.max_new_tokens, 1, 10_000_000)
    _check_number("--num-assistant-tokens", args.num_assistant_tokens, 0, 64)
    _check_number("--draft-vocabulary", args.draft_vocabulary, 256, 10_000_000)
    parse_assistant(args.assistant_model)
    _check_number("--temperature", args.temperature, 1e-3, 100.0, " (without --do-sample the likeliest token is taken)")
    _check_number("--top-p", args.top_p, 1e-6, 1.0)
    _check_number("--top-k", args.top_k, 0, 10_000_000)
    _check_number("--repetition-penalty", args.repetition_penalty, 1e-3, 100.0)
    _check_number("--seed", args.seed, 0, 2**63 - 1)
    return args


def _check_number(flag: str, value: float | None, lowest: float, highest: float, hint: str = "") -> None:
    if value is not None and (not math.isfinite(value) or not lowest <= value <= highest):
        raise UsageError(f"{flag} {value}: must be between {lowest:g} and {highest:g}{hint}")


def assistant_of(args: argparse.Namespace) -> str | None:
    """Return the assistant that `load` is given: "auto", a source, or None."""
    if not args.assisted or args.num_assistant_tokens == 0:
        return None
    name = args.assistant_model
    if name is None:
        # The embedded model is the smallest of its family.
        return "auto" if args.model is not None else None
    return None if name.lower() == "none" else name


def read_text(path: str | Path) -> str:
    """Return the content of the UTF-8 file that --text names. Raises UsageError where it is none."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--text {path} cannot be read as UTF-8 text: {error}") from error
