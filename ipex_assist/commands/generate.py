"""The process that generates: loads both models, streams the text, prints the statistics.

`ipex-assist` starts itself under numactl with `--no-launch` and the same flags, and then comes here.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import signal
import sys
import traceback
from types import FrameType
from typing import TYPE_CHECKING

from ipex_assist import launch
from ipex_assist.commands.arguments import idle_flags, load_options, parse
from ipex_assist.commands.demo_model import demo_options
from ipex_assist.commands.environment import environment_facts
from ipex_assist.commands.load import load_models
from ipex_assist.commands.messages import configure_messages
from ipex_assist.commands.output import TextPrinter, json_line, statistics_line, statistics_text
from ipex_assist.commands.prompt import read_prompt
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.pipes import reader_has_gone
from ipex_assist.executors.traffic import machine_gb_per_s
from ipex_assist.speculative.options import GenerationOptions

# Whatever imports torch is imported inside `main`, which knows what to do with a Ctrl-C in the middle of it.
if TYPE_CHECKING:
    from ipex_assist.generation.stream import Generation
    from ipex_assist.generation.text_model import TextModel

log = logging.getLogger("ipex_assist")


INTERRUPT_EXIT, TERMINATE_EXIT = 130, 143  # 128 + the signal's number, as shells report them


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends a generation as Ctrl-C does."""


def main(argv: list[str] | None = None) -> int:
    """Generate as `argv` asks; returns the exit code. No error of the user's ends in a traceback."""
    argv = sys.argv[1:] if argv is None else argv
    verbose = "-v" in argv or "--verbose" in argv
    try:
        args = parse(argv)
        _configure(args.verbose)
        return _run(args)
    except IpexAssistError as error:
        return _fail(str(error), error.exit_code)
    except Terminated:
        return TERMINATE_EXIT
    except KeyboardInterrupt:
        return INTERRUPT_EXIT
    except BrokenPipeError:
        return reader_has_gone()
    except Exception as error:
        if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # the latter is torch's
            return _fail("out of memory; use a smaller --precision or model, or --no-assisted", 1)
        if verbose:
            traceback.print_exc()
        return _fail(f"{type(error).__name__}: {error} (run with -v for the whole story)", 1)


def _fail(message: str, code: int) -> int:
    print(f"ipex-assist: error: {message}", file=sys.stderr)
    return code


def _configure(verbose: bool) -> None:
    """Messages of ours to standard error; those of libraries only on request."""
    configure_messages(verbose)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # one character that a locale lacks must not cost the text around it
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def _run(args: argparse.Namespace) -> int:
    prompt, chat = read_prompt(args.prompt, args.prompt_file, args.chat, demo=args.model is None)
    options, load = _generation_options(args), load_options(args)
    if load.target is None:
        load = demo_options(load)
    model, start_warnings = load_models(load, options.max_new_tokens, args.threads, verbose=args.verbose)
    generation = model.stream(prompt, options, chat=chat)
    return _generate(model, generation, args, start_warnings)


def _generation_options(args: argparse.Namespace) -> GenerationOptions:
    options = GenerationOptions.from_flags(args)
    if idle := idle_flags(args, options):
        why = "without --do-sample" if not options.do_sample else "at --temperature 0"
        log.warning("%s: no effect %s", ", ".join(idle), why)
    return options


def _generate(model: TextModel, generation: Generation, args: argparse.Namespace, start_warnings: list[str]) -> int:
    from ipex_assist.generation.result import Piece

    if args.show_accepted and args.json:
        log.warning("--show-accepted: no effect with --json")
    stream = TextPrinter(not args.json and not args.no_stream, args.show_accepted)
    whole = TextPrinter(not args.json and args.no_stream, args.show_accepted)
    code, pieces = 0, []
    try:
        for chunk in generation:
            pieces += chunk.pieces
            stream.write_pieces(chunk.pieces)
    except KeyboardInterrupt as error:
        code = TERMINATE_EXIT if isinstance(error, Terminated) else INTERRUPT_EXIT
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cut off what is printed now
        pieces.append(Piece(generation.interrupt()))
        stream.write_pieces(pieces[-1:])
    stream.close()
    result = generation.result()
    whole.write_pieces(pieces)
    whole.close()
    print(f"ipex-assist: {statistics_line(result)}", file=sys.stderr)
    if args.verbose:
        result.times.machine_gb_per_s = machine_gb_per_s(model)
        print(statistics_text(result), file=sys.stderr)
    if args.json:
        facts = environment_facts(launch.inherited_plan(os.environ), start_warnings)
        print(json_line(result, facts), flush=True)
    return code
