"""The command `ipex-assist chat`: a conversation in the terminal, with a model in this process or behind a server."""

from __future__ import annotations

import argparse
import importlib.util
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ipex_assist.commands.shared import arguments
from ipex_assist.commands.shared.demo_model import PLACED_BYTES
from ipex_assist.commands.shared.messages import configure_messages
from ipex_assist.commands.shared.relaunch import run_placed
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.options import flags_of, options_of
from ipex_assist.env.phase_display import hide_later_phases
from ipex_assist.env.versions import install_command
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.speculative.options import GenerationOptions

if TYPE_CHECKING:
    from ipex_assist.commands.chat_partner import Partner

EPILOG = """\
Type a message, or /help for the commands. Drafted text is green. Ctrl-C ends an answer, Ctrl-D the conversation. If
standard input is not a terminal, each of its lines is a message, and standard output has only the answers.

  ipex-assist chat                                        the embedded model
  ipex-assist chat -m Qwen/Qwen2.5-7B-Instruct --system "You answer in one sentence."
  ipex-assist chat --url http://127.0.0.1:8000            ipex-assist serve, or another server with OpenAI's API

NO_COLOR=1 in the environment turns colours off.
"""
# Of `ipex-assist` itself, and without a meaning here.
NOT_HERE = {
    ("-p", "--prompt"): "messages are typed, or lines of standard input",
    ("--prompt-file",): "messages are lines of standard input: ipex-assist chat < FILE",
    ("--chat",): "messages are in the chat template anyway",
    arguments.RAW: "messages are in the chat template; ipex-assist -p TEXT --raw goes on with a text",
    ("--json",): "/save keeps a conversation as JSON",
    ("--no-stream",): "answers are shown as they come",
    ("--show-accepted",): "drafted text is green anyway, unless NO_COLOR is set",
    ("--logprobs",): "nobody would see them",
    ("--prompt-logprobs",): "nobody would see them",
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags; those of models and generation are the objects that `ipex-assist` has."""
    parser = arguments.inheriting_parser(
        "ipex-assist chat", "%(prog)s [options]", "Talk with a model in the terminal.", EPILOG, NOT_HERE
    )
    arguments.explain(parser, "--max-new-tokens", f"of an answer (default: {arguments.ANSWER_TOKENS})")
    chat = parser.add_argument_group("chat")
    chat.add_argument("--system", metavar="TEXT", help="system prompt")
    chat.add_argument("--url", metavar="URL", help="talk with the model of this server; -m is its name there")
    chat.add_argument("--api-key", metavar="KEY", help="key of that server")
    chat.add_argument(
        "--api-key-file", metavar="FILE", help="file whose first line is the key; no process list shows it"
    )
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check; UsageError says which value is wrong and what would be right."""
    args = build_parser().parse_args(argv)
    if args.url is None and (args.api_key or args.api_key_file):
        raise UsageError("--api-key: is for a server; give its --url, too")
    if args.api_key and args.api_key_file:
        raise UsageError("--api-key and --api-key-file are both given; give one of them")
    if args.url is not None:
        for name, one in options_of(LoadOptions).items():
            if name != "target" and getattr(args, name, None) is not None:
                flag = max(flags_of(name, one), key=len)
                raise UsageError(f"{flag}: the server at --url has loaded its model; leave {flag} out")
    return args


def main(argv: Sequence[str]) -> int:
    """Run `ipex-assist chat`; returns the exit code. Raises IpexAssistError."""
    args = parse(argv)
    if importlib.util.find_spec("rich") is None:
        raise IpexAssistError(f"chat needs rich, which is not installed: type {install_command('serve')}")
    if args.url is not None:
        configure_messages(args.verbose, progress=not args.quiet)
        return _with_server(args)
    return run_placed("chat", argv, args, lambda: _bytes(args), lambda: _with_model(args), torch_late=True)


def _bytes(args: argparse.Namespace) -> int | None:
    load = arguments.load_options(args)
    if load.target is None:
        return PLACED_BYTES
    from ipex_assist.commands.shared.load import memory_need

    return memory_need(load, arguments.generation_options(args, chat=True).max_new_tokens).total


def _with_model(args: argparse.Namespace) -> int:
    from ipex_assist.commands.chat_model import LoadedModel
    from ipex_assist.commands.shared.demo_model import demo_options
    from ipex_assist.commands.shared.load import load_models

    options, load = arguments.generation_options(args, chat=True), arguments.load_options(args)
    if load.target is None:
        load = demo_options(load)
    model, _ = load_models(load, options.max_new_tokens, args.threads, verbose=args.verbose, torch_late=True)
    if not model.tokenizer.chat_template:
        raise UsageError(
            f"{load.target} has no chat template: it goes on with a text, and answers nobody. "
            "Type ipex-assist -p TEXT, or name a model that was made for chats"
        )
    hide_later_phases()  # of a question before which passes are measured again: the screen has a sign of its own
    return _run_loop(args, LoadedModel(model, options))


def _with_server(args: argparse.Namespace) -> int:
    from ipex_assist.commands.chat_server import Server

    key = args.api_key
    if args.api_key_file is not None:
        try:
            key = Path(args.api_key_file).read_text(encoding="utf-8").strip().partition("\n")[0].strip()
        except OSError as error:
            raise UsageError(f"--api-key-file {args.api_key_file} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UsageError(f"--api-key-file {args.api_key_file} is no UTF-8 text") from None
        if not key:
            raise UsageError(f"--api-key-file {args.api_key_file} holds no key: write it on the first line")
    given = {name for name in options_of(GenerationOptions) if getattr(args, name, None) is not None}
    return _run_loop(args, Server(args.url, key, args.model, GenerationOptions.from_flags(args), given))


def _run_loop(args: argparse.Namespace, partner: Partner) -> int:
    from ipex_assist.commands.chat_loop import ChatLoop
    from ipex_assist.commands.chat_screen import Screen

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return ChatLoop(partner, Screen(), args.system, statistics=not args.quiet).run()
