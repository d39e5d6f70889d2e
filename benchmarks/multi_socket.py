"""Instances × threads × precision × assisted or not on this machine: together and each, beside the memory's speed.

    python benchmarks/multi_socket.py [--target MODEL [--assistant MODEL]] [--precisions bf16,int4] [--plot FILE.png]
    python benchmarks/multi_socket.py --layouts 1x1,2x1,1x2,per-node,per-socket,socket-all

A layout is NxT, N instances of T cores each; per-node, per-socket or per-l3, one instance for each; or socket-all, one
process over all sockets. Each instance is a pinned process. All of a layout load, warm up, and then begin at the same
moment; what they reach together is all their tokens ÷ the seconds from there to the last one's end, so that nobody
counts for being faster once the others are done. Between the generations the same threads read memory, all at once:
that is what decoding, which reads every weight once a pass, cannot exceed.

Every layout is started --starts times, in turns, since one process may be faster than its twin, and measured
--repeats times at each start. Not under ipex-launch, which would leave it one socket.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import measure
import multi_socket_layouts as layouts
from multi_socket_figures import Case, close_lines, memory_table, speed_table

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.commands.shared.demo_model import demo_model_path
from ipex_assist.commands.shared.memory_need import estimate_need, gib
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.machine import Machine
from ipex_assist.env.memory import read_memory
from ipex_assist.env.topology import read_topology
from ipex_assist.launch.placement import Placement
from ipex_assist.launch.plan import without_plan
from ipex_assist.launch.process import Surroundings, command_for
from ipex_assist.quantization.precision import PRECISIONS
from ipex_assist.speculative.sources.assistant_name import AUTO, SELF, parse_assistant
from ipex_assist.workers.local_pool import LocalPool
from ipex_assist.workers.wire import Answered, Ended, LogLine

PROMPT = "Write a quick-sort implementation in Python."
PROGRAM = (sys.executable, str(Path(__file__).with_name("multi_socket_instance.py")))
# From sending a request to the moment that all wait for; sending takes far less.
HEAD_START = 0.05
LAST_WORDS = 12  # lines of standard error in the report of an instance that ended


class InstanceFailed(IpexAssistError):
    """An instance ended, hung, or could not do what it was asked."""


class Instances:
    """The processes of one layout, which do everything at the same time. Leaving the context ends them."""

    def __init__(
        self,
        placements: Sequence[Placement],
        settings: Mapping[str, Any],
        surroundings: Surroundings,
        *,
        timeout: float,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        environ = without_plan(os.environ)
        self.commands = [
            command_for(each, program, environ, surroundings, override_threads=True, numbered=True)
            for each in placements
        ]
        self._pool, self._timeout = LocalPool(self.commands, settings), timeout
        self._said: list[deque[str]] = [deque(maxlen=LAST_WORDS) for _ in placements]

    def __enter__(self) -> Instances:
        try:
            for index in range(self._pool.size):
                self._pool.start(index)
                self._pool.submit(index, {"do": "facts", "at": 0.0})
            self.facts = self._all_answers()
        except BaseException:
            self._pool.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def ask(self, **request: Any) -> list[dict[str, Any]]:
        """Let all instances do it from the same moment on; return their answers. Raises InstanceFailed."""
        request["at"] = monotonic() + HEAD_START
        for index in range(self._pool.size):
            self._pool.submit(index, request)
        return self._all_answers()

    def _all_answers(self) -> list[dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        deadline = monotonic() + self._timeout
        while len(found) < self._pool.size:
            left = deadline - monotonic()
            if left <= 0:
                late = [index for index in range(self._pool.size) if index not in found]
                raise InstanceFailed(
                    f"no answer within {self._timeout:g} s from instance {', '.join(map(str, late))} of "
                    f"{self._pool.size}; a larger --timeout gives more time"
                )
            for event in self._pool.wait(left):
                if isinstance(event, LogLine):
                    self._said[event.instance].append(event.line)
                elif isinstance(event, Ended):
                    raise InstanceFailed(self._describe_end(event))
                elif isinstance(event, Answered):
                    if event.result is None:
                        raise InstanceFailed(f"instance {event.instance}: {event.error}")
                    found[event.instance] = event.result
        return [found[index] for index in sorted(found)]

    def _describe_end(self, event: Ended) -> str:
        if event.refusal is not None:
            return event.refusal.message
        words = "\n  ".join(["", *self._said[event.instance]])
        return f"instance {event.instance} ({self._pool.describe(event.instance)}) {event.reason}{words}"


@dataclass
class Run:
    """Holds what has been measured so far, by (precision, layout, assisted), and what could not be."""

    args: argparse.Namespace
    machine: Machine
    surroundings: Surroundings
    cases: dict[tuple[str, str, bool], Case] = field(default_factory=dict)
    left_out: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False
    _told: set[str] = field(default_factory=set)

    def measure_all(self) -> None:
        """Measure every layout at every precision, `--starts` times in turns. Ctrl-C keeps what there is."""
        planned = [(precision, layout) for precision in self.args.precisions for layout in self._layouts(precision)]
        turns = [pair for _ in range(self.args.starts) for pair in planned]
        broken: set[tuple[str, str]] = set()
        for number, (precision, layout) in enumerate(turns, start=1):
            if (precision, layout.name) in broken:
                continue
            say(f"[{number}/{len(turns)}] {precision} {layout.name}")
            try:
                self._measure(precision, layout)
            except IpexAssistError as error:
                broken.add((precision, layout.name))
                self._leave_out(precision, layout.name, str(error), failed=True)
            except KeyboardInterrupt:
                self._leave_out(precision, layout.name, "interrupted, with all that was to follow", failed=True)
                self.interrupted = True
                return

    def _layouts(self, precision: str) -> list[layouts.Layout]:
        """Return the layouts that can be placed here and whose models fit into memory together."""
        args = self.args
        need = estimate_need(
            args.target, args.assistant, precision, args.assistant_precision, args.max_new_tokens + args.prompt_tokens
        ).total
        names = args.layouts or layouts.defaults(self.machine)
        found: list[layouts.Layout] = []
        for name in names:
            try:
                layout = layouts.placed(name, self.machine, need)
            except UsageError as error:
                self._leave_out(precision, name, str(error))
                continue
            available = read_memory().available
            size = len(layout.placements) * (need or 0) + layouts.read_bytes(layout) * len(layout.placements)
            if available and size > available:
                reason = f"{len(layout.placements)} instances need {gib(size)}, and {gib(available)} are available"
                self._leave_out(precision, name, reason)
            elif args.layouts or not any(layout.places == other.places for other in found):
                found.append(layout)
        return found

    def _leave_out(self, precision: str, layout: str, reason: str, failed: bool = False) -> None:
        say(f"{precision} {layout} is left out: {reason}")
        self.left_out.append({"precision": precision, "layout": layout, "reason": reason, "failed": failed})

    def _measure(self, precision: str, layout: layouts.Layout) -> None:
        """Measure one start of a layout: warm up, then `--repeats` turns of reading memory and generating."""
        args = self.args
        modes = [False, True] if args.assistant else [False]
        options = {"max_new_tokens": args.max_new_tokens, "num_assistant_tokens": args.num_assistant_tokens}
        settings = {
            "target": args.target,
            "assistant": args.assistant,
            "prompt": args.prompt,
            "prompt_tokens": args.prompt_tokens,
            "load": {
                "precision": precision,
                "assistant_precision": args.assistant_precision,
                "executor": args.executor,
                "offline": args.offline,
            },
        }
        with Instances(layout.placements, settings, self.surroundings, timeout=args.timeout) as instances:
            self._tell(layout.name, (line for command in instances.commands for line in command.warnings))
            for index, facts in enumerate(instances.facts):
                self._tell(f"{layout.name}, instance {index}", facts["deviations"])
            for assisted in modes:
                instances.ask(do="generate", assisted=assisted, options=options)
            homes = instances.ask(do="where")
            for _ in range(args.repeats):
                for assisted in modes:
                    reads = instances.ask(do="read", size=layouts.read_bytes(layout))
                    answers = instances.ask(do="generate", assisted=assisted, options=options)
                    key = (precision, layout.name, assisted)
                    case = self.cases.setdefault(key, Case(precision, layout, assisted, instances.facts, homes))
                    case.add(answers, [each["GB_per_s"] for each in reads])
                    say(f"  {'assisted' if assisted else 'plain'}: {case.latest('tokens_per_s'):.1f} tokens/s together")

    def _tell(self, of: str, lines: Iterable[str]) -> None:
        """Warnings about a layout, each once and not at every start."""
        for line in lines:
            if f"{of}: {line}" not in self._told:
                self._told.add(f"{of}: {line}")
                say(f"{of}: {line}")


def model_of(assistant: str | None) -> str | None:
    """The checkpoint that an assistant's name means, None where it names none."""
    name = parse_assistant(assistant).model
    return None if name in (AUTO, SELF) else name


def say(line: str) -> None:
    """Progress and warnings; figures go to standard output."""
    print(f"multi_socket.py: {line}", file=sys.stderr, flush=True)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The flags, with the demo model where no target is named. Raises UsageError."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="hub id, folder or .gguf file; without it the built-in SmolLM2")
    parser.add_argument("--assistant", help="likewise, or self or lookup; without it only plain decoding is measured")
    parser.add_argument("--precisions", help="default bf16,int8,int4; for the built-in model fp32,int4")
    parser.add_argument("--assistant-precision", choices=PRECISIONS, help="default the target's")
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--layouts", help="default: what this machine's cores, nodes and sockets offer")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--prompt-tokens", type=int, default=0, help="repeat or cut the prompt to N tokens")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--num-assistant-tokens", type=int)
    parser.add_argument("--repeats", type=int, default=3, help="measurements at each start (default 3)")
    parser.add_argument("--starts", type=int, default=2, help="how often each layout is started (default 2)")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for a load or a generation")
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--plot", metavar="FILE", help="draw the figures, as .png, .svg or .pdf (needs matplotlib)")
    args = parser.parse_args(argv)
    for name, least in (("max_new_tokens", 2), ("repeats", 1), ("starts", 1), ("prompt_tokens", 0)):
        if getattr(args, name) < least:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(args, name)}: at least {least} is needed.")
    args.precisions = (args.precisions or ("bf16,int8,int4" if args.target else "fp32,int4")).split(",")
    if unknown := [each for each in args.precisions if each not in PRECISIONS]:
        raise UsageError(f"--precisions: {', '.join(unknown)} is none of {', '.join(PRECISIONS)}.")
    args.layouts = args.layouts.split(",") if args.layouts else []
    for name in args.layouts:
        layouts.parse(name)
    parse_assistant(args.assistant)
    args.target = args.target or str(demo_model_path())
    return args


def run(argv: Sequence[str] | None) -> int:
    """Measure and report; returns the exit code. Raises IpexAssistError where nothing can be measured."""
    args = parse(argv)
    if args.plot:
        import plots

        plots.require()
    for source in filter(None, (args.target, model_of(args.assistant))):
        open_checkpoint(source, offline=args.offline)  # downloaded once, not by every instance at the same time
    machine = read_topology()
    done = Run(args, machine, Surroundings.here(without_plan(os.environ)))
    done.measure_all()
    cases = list(done.cases.values())
    if not cases:
        reasons = dict.fromkeys(each["reason"] for each in done.left_out)
        raise IpexAssistError("nothing could be measured: " + "; ".join(reasons))
    result: dict[str, Any] = {
        "target": args.target,
        "assistant": args.assistant,
        "topology": layouts.describe(machine),
        "cases": [case.as_dict(cases) for case in cases],
        "left_out": done.left_out,
        "not_shown": layouts.not_shown(machine, assisted=bool(args.assistant)),
    }
    print(measure.table(speed_table(cases)), end="\n\n")
    for line in close_lines(cases):
        print(line)
    for line in result["not_shown"]:
        print(f"Not shown here, with {line}")
    for each in done.left_out:
        print(f"Left out: {each['precision']} {each['layout']}, {each['reason']}")
    print()
    measure.report(memory_table(cases), result)
    if args.plot:
        plots.multi_socket(result, args.plot)
        say(f"drawn: {args.plot}")
    if done.interrupted:
        return 128 + signal.SIGINT
    return 1 if any(each["failed"] for each in done.left_out) else 0


def main(argv: Sequence[str] | None = None) -> int:
    """`run`, with its errors as messages."""
    return measure.exit_code(lambda: run(argv), say)


if __name__ == "__main__":
    sys.exit(main())
