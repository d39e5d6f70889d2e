"""The process that generates: loads both models, streams the text, prints the statistics.

`ipex-assist` starts itself under numactl with `--placed` and the same flags, and then comes here.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

from ipex_assist import launch
from ipex_assist.commands.shared.arguments import generation_options, idle_flags, load_options
from ipex_assist.commands.shared.demo_model import demo_options
from ipex_assist.commands.shared.environment import environment_facts
from ipex_assist.commands.shared.load import load_models
from ipex_assist.commands.shared.output import TextPrinter, json_line, statistics_line, statistics_text
from ipex_assist.commands.shared.prompt import read_prompt
from ipex_assist.env.runner import TERMINATE_EXIT, ignore_interrupts, interrupt_exit
from ipex_assist.executors.traffic import machine_gb_per_s

# Whatever imports torch is imported inside functions: until a flag is found wrong, nobody waits for it.
if TYPE_CHECKING:
    from collections.abc import Callable

    from ipex_assist.generation.stream import Generation
    from ipex_assist.generation.text_model import TextModel

log = logging.getLogger("ipex_assist")

TEMPLATE_TOKENS = 4096  # more than a chat template writes around a message


def generate(args: argparse.Namespace) -> int:
    """Generate as the command line asks, in this process; returns the exit code."""
    replace_characters()
    prompt = read_prompt(args.prompt, args.prompt_file, piped=args.piped, demo=args.model is None)
    load = load_options(args, quick_start=True)
    room = generation_options(args, chat=args.chat is not False).max_new_tokens  # there may be a chat template
    if load.target is None:
        load = demo_options(load)
    later: list[Callable[[], object]] = []
    # A token has a byte at least; how many rows images have is not known yet.
    most_tokens = None if args.image else len(prompt.encode(errors="replace")) + TEMPLATE_TOKENS + room
    model, start_warnings = load_models(
        load, room, args.threads, verbose=args.verbose, torch_late=True, later=later, most_tokens=most_tokens
    )
    chat = bool(model.tokenizer.chat_template) if args.chat is None else args.chat
    if chat and args.chat is None:
        log.info("the prompt is a message in the model's chat template (--raw goes on with it as it is)")
    options = generation_options(args, chat=chat).resolved(model.sampling_defaults)
    if idle := idle_flags(args, options):
        why = "at --temperature 0" if options.do_sample else "without --do-sample"
        log.warning("%s: no effect %s", ", ".join(idle), why)
    generation = model.stream(prompt, options, chat=chat, images=args.image)
    code = 0
    try:
        code = _generate(model, generation, args, start_warnings)
    finally:
        if code != TERMINATE_EXIT:
            _finish(later)
    sys.stdout.flush()
    ignore_interrupts()  # before the model is freed, which begins as this function ends
    return code


def _finish(later: list[Callable[[], object]]) -> None:
    """Do what the text did not wait for. From here on Ctrl-C ends the process, whatever it ended before."""
    if later:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for work in later:
        work()


def replace_characters() -> None:
    """One character that a locale lacks must not cost the text around it."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _generate(model: TextModel, generation: Generation, args: argparse.Namespace, start_warnings: list[str]) -> int:
    from ipex_assist.generation.result import TokenPiece

    if args.show_accepted and args.json:
        log.warning("--show-accepted: no effect with --json")
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(args, name) is not None and not args.json:
            log.warning("--%s: no effect without --json", name.replace("_", "-"))
    stream = TextPrinter(not args.json and not args.no_stream, args.show_accepted)
    whole = TextPrinter(not args.json and args.no_stream, args.show_accepted)
    code, pieces = 0, []
    try:
        for chunk in generation:
            pieces += chunk.pieces
            stream.write_pieces(chunk.pieces)
    except KeyboardInterrupt as error:
        code = interrupt_exit(error)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not cut off what is printed now
        pieces.append(TokenPiece(generation.interrupt()))
        stream.write_pieces(pieces[-1:])
    stream.close()
    result = generation.result()
    whole.write_pieces(pieces)
    whole.close()
    if not args.quiet or args.verbose:
        print(f"ipex-assist: {statistics_line(result)}", file=sys.stderr)
    if args.verbose:
        result.times.machine_gb_per_s = machine_gb_per_s(model)
        print(statistics_text(result), file=sys.stderr)
    if args.json:
        facts = environment_facts(launch.inherited_plan(os.environ), start_warnings)
        print(json_line(result, facts), flush=True)
    return code
