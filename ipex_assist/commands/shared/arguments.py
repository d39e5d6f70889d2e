"""The flags of `ipex-assist`, and what is wrong with their values before anything is loaded."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ipex_assist.commands.shared.command_table import COMMANDS
from ipex_assist.commands.shared.environment import VersionAction
from ipex_assist.commands.shared.prompt_words import NO_PROMPT, is_flag, read_words, split_options
from ipex_assist.env.errors import UsageError
from ipex_assist.env.options import add_flags, destinations, flags_of, options_of
from ipex_assist.env.parser import ArgumentParser, InheritingParser
from ipex_assist.generation.load_options import DEMO, LoadOptions
from ipex_assist.launch import add_placement_arguments
from ipex_assist.speculative.options import DraftOptions, GenerationOptions
from ipex_assist.speculative.sources.assistant_name import NONE

ANSWER_TOKENS = 1024  # of an answer in a chat, where no flag says another limit
# `--raw` of every command that has `--chat`.
RAW = ("--raw", "--no-chat")
RAW_OPTIONS: dict[str, Any] = {"dest": "chat", "action": "store_false", "default": argparse.SUPPRESS}
USAGE = f"%(prog)s [options] [PROMPT] [-]\n       %(prog)s {'|'.join(COMMANDS)} [options]"
DESCRIPTION = (
    "Generate text with an LLM and a small assistant model, on this machine's cores; `ipex-assist help` lists commands."
)


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Flags in one wide column, so that the help fits two screens."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=37, width=115)

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

    parser = InheritingParser(
        prog=prog,
        usage=usage,
        description=description,
        epilog=epilog,
        formatter_class=Formatter,
        add_help=False,  # is inherited, too
        parents=[build_parser()],
        conflict_handler="resolve",  # a flag that is added again replaces the inherited one
        allow_abbrev=False,
    )
    for flags in filter(None, not_here):  # options that only Python can set have none
        parser.add_argument(*flags, action=NotHere, nargs="?", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return parser


def explain(parser: argparse.ArgumentParser, flag: str, text: str) -> None:
    """Give a flag another help text, where its default is another one than usual."""
    parser._option_string_actions[flag].help = text


def build_parser() -> ArgumentParser:
    """Return the parser of all flags, in groups. A precision that is not given is None."""
    parser = ArgumentParser(
        prog="ipex-assist",
        usage=USAGE,
        add_help=False,  # stands at the end
        description=DESCRIPTION,
        formatter_class=Formatter,
        allow_abbrev=False,  # `--dry` would not be recognised as the flag to leave out of the command that is printed
    )

    add_flags(parser.add_argument_group("models"), LoadOptions)

    prompt = parser.add_argument_group("prompt (default: standard input; a lone - after a prompt appends it)")
    prompt.add_argument("-p", "--prompt", metavar="TEXT", help="the same as PROMPT")
    prompt.add_argument("--prompt-file", metavar="FILE", help="- is standard input")
    prompt.add_argument("--image", metavar="FILE", action="append", default=[], help="before the prompt; several times")
    prompt.add_argument(
        "--chat", action="store_true", default=None, help="as a message in the model's chat template (default: if any)"
    )
    prompt.add_argument(*RAW, **RAW_OPTIONS, help="continue the prompt as it is, even if the model has a template")

    add_flags(parser.add_argument_group("generation"), GenerationOptions)
    explain(parser, "--max-new-tokens", f"(default: 128; of an answer in a chat {ANSWER_TOKENS})")
    add_placement_arguments(parser)

    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="one object on one line instead of text")
    output.add_argument("--no-stream", action="store_true", help="print the text when it is complete")
    output.add_argument("--show-accepted", action="store_true", help="drafted text in green, the target's own in bold")
    output.add_argument("-v", "--verbose", action="store_true", help="placement, loading, all statistics, messages")
    output.add_argument("-q", "--quiet", action="store_true", help="no progress and no statistics")
    output.add_argument("--version", action=VersionAction)
    output.add_argument("-h", "--help", action="help", help="this text")
    return parser


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse and check; UsageError says which value is wrong and what would be right.

    `prompt` is that of -p or the bare one, `piped` whether a lone dash asks for standard input after it.
    """
    parser = build_parser()
    options, literal = split_options(argv)
    args, words = parser.parse_known_args(options)
    if unknown := [word for word in words if is_flag(word)]:
        parser.refuse(unknown)
    found = read_words(words, literal, first=argv[0] if argv else None, model=args.model)
    given = {"PROMPT": found.text, "--prompt": args.prompt, "--prompt-file": args.prompt_file}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise UsageError(f"{names[0]} and {names[1]} are both given; give one of them")
    args.prompt = args.prompt if found.text is None else found.text
    args.piped = found.piped
    if args.prompt is not None and not args.prompt.strip():
        raise UsageError(NO_PROMPT)
    return args


def generation_options(args: argparse.Namespace, *, chat: bool) -> GenerationOptions:
    """What the flags say of the text. chat: it is an answer, which has more room where no flag sets a limit."""
    options = GenerationOptions.from_flags(args)
    return replace(options, max_new_tokens=ANSWER_TOKENS) if chat and args.max_new_tokens is None else options


def load_options(args: argparse.Namespace, **more: Any) -> LoadOptions:
    """What the flags ask to be loaded: no assistant where nothing may draft."""
    options = LoadOptions.from_flags(args, lora_by_default=True, **more)
    if options.target == DEMO and not os.path.exists(DEMO):  # as help calls the default
        options = replace(options, target=None)
    drafts = DraftOptions.from_flags(args)
    return replace(options, assistant=options.assistant if drafts.may_draft else NONE, calibrate=drafts.is_adaptive)


def idle_flags(args: argparse.Namespace, options: GenerationOptions) -> list[str]:
    """Flags that were given and have no effect, because text is not drawn."""
    drawn = {"do_sample": options.draws}
    given = {name: getattr(args, dest) for name, dest in destinations(GenerationOptions).items()}
    return [
        max(flags_of(name, one), key=len)
        for name, one in options_of(GenerationOptions).items()
        if given.get(name) is not None
        and (one.needs is not None and not drawn[one.needs])
        and (name, given[name]) != ("temperature", 0)  # which itself says that text is not drawn
    ]


def is_input(path: str | Path) -> bool:
    """Whether a text can be read there: a file, or a pipe such as bash's <(…)."""
    return os.path.exists(path) and not os.path.isdir(path)


def read_text(path: str | Path) -> str:
    """Return the content of the UTF-8 file that --text names. Raises UsageError where it is none."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--text {path} cannot be read as UTF-8 text: {error}") from error
