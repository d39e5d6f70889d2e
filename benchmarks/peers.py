"""ipex-assist's native core on a real pair beside OpenVINO GenAI, llama.cpp, vLLM and transformers, in one run.

    python benchmarks/peers.py --target FOLDER --assistant FOLDER [--peers ipex-assist,openvino,llama.cpp,…]
    python benchmarks/peers.py --target FOLDER --assistant FOLDER --throughput [--requests 16]
    python benchmarks/peers.py --target FILE.gguf --assistant FILE.gguf [--throughput]
    python benchmarks/peers.py --target FOLDER --assistant FOLDER --install-only

Each peer gets its own environment under --envs, installed and its models converted at the first run, reused later. Each
turn of each case is a process of its own on the same cores: it loads, warms up, and generates greedily from the same
token ids, the end of text ignored. Turns are interleaved, so that a change of the machine's speed meets all alike.
Speed is tokens after the first ÷ seconds after the first. What fails has a row that says why, and stops nobody else.

With --throughput many prompts of 30 to 300 tokens go in at once, the same ones for all, and speed is all their tokens ÷
all seconds: vLLM, OpenVINO's continuous batching, llama.cpp's server with a slot for each prompt (and, beside it, its
llama-batched-bench), and our engine.

A pair of GGUF files is measured as it is stored, by our native core and by llama.cpp, which read the same files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import measure
import peers_known as known
import peers_throughput as throughput
from peers_recipes import MakingFailed, clean_environment, last_lines
from peers_table import FILE_RATIOS, RATIOS, Outcome, markdown, ratio, ratio_line, row

from ipex_assist.env.cache import cache_folder
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.topology import read_topology
from ipex_assist.launch.plan import without_plan

PROMPT = "Write a quick-sort implementation in Python."
WARM_UP_TOKENS = 8

ChildOf = Callable[[known.Case], known.Child]


class TurnFailed(IpexAssistError):
    """A child ended with an error, took too long, or said nothing that can be used."""


@contextlib.contextmanager
def pinned(cpus: Collection[int]) -> Iterator[None]:
    """This thread, and so what it starts, on these CPUs alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run_child(child: known.Child, cpus: Collection[int], timeout: float, environ: Mapping[str, str]) -> dict[str, Any]:
    """Start a child, wait for it, and return its line of JSON. Raises TurnFailed with the last lines it wrote."""
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        with pinned(cpus):
            process = subprocess.Popen(
                child.argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                env={**environ, **child.environ},
                start_new_session=True,  # peers start processes of their own, which shall end with them
            )
        try:
            out, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise TurnFailed(f"not done within {timeout:g} s; a larger --timeout gives more time") from None
        finally:
            _end(process)
        said.seek(0)
        words = last_lines(said.read())
    if process.returncode:
        how = f"signal {signal.Signals(-process.returncode).name}" if process.returncode < 0 else process.returncode
        raise TurnFailed(f"ended with {how}: {words}")
    try:
        answer = json.loads(out.splitlines()[-1])
        if answer["tokens_per_s"] > 0:
            return answer
    except (IndexError, ValueError, TypeError, KeyError):
        pass
    raise TurnFailed(f"no figures in what it printed: {last_lines(out, 2)} {words}")


def _end(process: subprocess.Popen[str]) -> None:
    """End a child and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def memory_speed(cpus: Sequence[int]) -> float | None:
    """GB/s that these CPUs read now; None where the native core, which measures it, cannot be used.

    A virtual machine's neighbours can halve it, which no pinning prevents; with it a figure can be judged.
    """
    argv = [sys.executable, str(known.RUNNERS / "read_memory.py"), json.dumps(list(cpus))]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return float(json.loads(done.stdout)["GB_per_s"]) if done.returncode == 0 else None


def measure_all(
    cases: Iterable[known.Case], repeats: int, child_of: ChildOf, run: Callable[[known.Child], dict[str, Any]]
) -> tuple[dict[known.Case, Outcome], bool]:
    """Measure all cases `repeats` times in turns; a case that failed is left out of the turns that follow.

    Returns what came of each, and whether Ctrl-C ended it.
    """
    outcomes = {case: Outcome(case) for case in cases}
    children: dict[known.Case, known.Child] = {}
    try:
        for case, outcome in outcomes.items():
            try:
                children[case] = child_of(case)
            except MakingFailed as error:
                outcome.failure = str(error)
                say(f"{case.name}: {error}")
        for turn in range(1, repeats + 1):
            for case, child in children.items():
                outcome = outcomes[case]
                if outcome.failure is not None:
                    continue
                try:
                    outcome.turns[turn] = run(child)
                except TurnFailed as error:
                    outcome.failure = f"turn {turn}: {error}"
                    say(f"[{turn}/{repeats}] {case.name}: {error}")
                else:
                    say(f"[{turn}/{repeats}] {case.name}: {outcome.turns[turn]['tokens_per_s']:.2f} tokens/s")
    except KeyboardInterrupt:
        return outcomes, True
    return outcomes, False


def say(line: str) -> None:
    """Progress; figures go to standard output."""
    print(f"peers.py: {line}", file=sys.stderr, flush=True)


def default_envs() -> Path:
    """Return where environments are made: under the user's cache folder."""
    return cache_folder("peers")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the flags. Raises UsageError."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--target", required=True, metavar="FOLDER", help="a Hugging Face folder, which all can read, or a .gguf file"
    )
    parser.add_argument("--assistant", required=True, metavar="FOLDER")
    parser.add_argument("--peers", help=f"default: {','.join(known.ENVIRONMENTS)}")
    help_ = "only cases whose name contains one of these, such as 'bf16' or 'int8, draft' (default: all)"
    parser.add_argument("--cases", nargs="+", default=[""], metavar="TEXT", help=help_)
    parser.add_argument("--no-drafts", action="store_true", help="only cases without a draft")
    parser.add_argument("--envs", type=Path, default=default_envs(), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each case (default 3)")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--num-assistant-tokens", type=int, default=3, help="for peers that must be told (default 3)")
    parser.add_argument("--prompt", default=PROMPT, help="goes through the target's chat template")
    parser.add_argument("--throughput", action="store_true", help="many prompts at once")
    help_ = f"prompts of --throughput (default {throughput.REQUESTS})"
    parser.add_argument("--requests", type=int, default=throughput.REQUESTS, help=help_)
    help_ = "as on a processor without AVX-512: our core with IPEX_ASSIST_ISA, llama.cpp built for it (no other peer)"
    parser.add_argument("--isa", choices=tuple(known.LLAMA_CPP_ISA), help=help_)
    parser.add_argument("--timeout", type=float, default=1200, help="seconds for one turn (default 1200)")
    parser.add_argument("--install-only", action="store_true", help="make environments and models, measure nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the JSON there too")
    args = parser.parse_args(argv)
    for name, least in (("repeats", 1), ("new_tokens", 8), ("num_assistant_tokens", 1), ("requests", 1)):
        if getattr(args, name) < least:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(args, name)}: at least {least} is needed.")
    if not args.timeout > 0:
        raise UsageError(f"--timeout {args.timeout:g}: a positive number of seconds is needed.")
    files = [known.is_file(source) for source in (args.target, args.assistant)]
    if files[0] != files[1]:
        raise UsageError("--target and --assistant: both are .gguf files, or both folders.")
    possible = [known.OURS, "llama.cpp"] if args.isa or files[0] else list(known.ENVIRONMENTS)
    args.peers = possible if args.peers is None else list(dict.fromkeys(args.peers.split(",")))
    if unknown := [each for each in args.peers if each not in possible]:
        raise UsageError(f"--peers: {', '.join(unknown)} is none of {', '.join(possible)}.")
    for flag in ("target", "assistant"):
        source = Path(getattr(args, flag))
        if not (source if files[0] else source / "config.json").is_file():
            kind = "no such file" if files[0] else "no config.json there; a Hugging Face folder is needed"
            raise UsageError(f"--{flag} {source}: {kind}.")
        setattr(args, flag, str(source.resolve()))
    args.envs = args.envs.expanduser().resolve()
    return args


def prompt_of(target: str, prompt: str) -> dict[str, Any]:
    """The prompt in the target's chat template, as text and as the token ids that every peer gets."""
    from ipex_assist.checkpoints.open import open_checkpoint
    from ipex_assist.tokenization.tokenizer import encode_prompt, load_tokenizer

    tokenizer = load_tokenizer(open_checkpoint(target, offline=True))
    tokens = encode_prompt(tokenizer, prompt, chat=bool(tokenizer.chat_template))
    return {"prompt": tokens, "text": tokenizer.decode(tokens)}


def run(argv: Sequence[str] | None) -> int:
    """Install, measure, report; returns the exit code. Raises IpexAssistError where nothing can be measured."""
    args = parse(argv)
    cpus = sorted(core.cpus[0] for core in read_topology().default_cores())
    environ = clean_environment(without_plan(os.environ))
    settings: dict[str, Any] = {
        "new_tokens": args.new_tokens,
        "warm_up_tokens": WARM_UP_TOKENS,
        "num_assistant_tokens": args.num_assistant_tokens,
    }
    if args.throughput:
        settings["prompts"] = throughput.prompts_of(args.target, args.requests)
        all_cases, wanted_ratios, row_of = throughput.CASES, throughput.RATIOS, throughput.row
        if known.is_file(args.target):
            all_cases, wanted_ratios = throughput.FILE_CASES, throughput.FILE_RATIOS
        prompt_tokens: Any = [len(prompt) for prompt in settings["prompts"]]
    else:
        settings |= prompt_of(args.target, args.prompt)
        all_cases, wanted_ratios, row_of = known.CASES, RATIOS, row
        if known.is_file(args.target):
            all_cases, wanted_ratios = known.FILE_CASES, FILE_RATIOS
        prompt_tokens = len(settings["prompt"])

    def child_of(case: known.Case) -> known.Child:
        return known.child_of(case, args.envs, (args.target, args.assistant), settings, cpus, args.isa)

    def run_one(child: known.Child) -> dict[str, Any]:
        speed = memory_speed(cpus)
        return {**run_child(child, cpus, args.timeout, environ), "read_GB_per_s": speed}

    cases = [
        case
        for case in all_cases
        if case.peer in args.peers and any(text in case.name for text in args.cases)
        if not (args.no_drafts and case.draft)
    ]
    if not cases:
        names = ", ".join(case.name for case in all_cases)
        raise UsageError(f"--peers and --cases leave no case of these: {names}.")
    say(f"environments and converted models are in {args.envs}")
    outcomes, interrupted = measure_all(cases, 0 if args.install_only else args.repeats, child_of, run_one)
    failed = any(outcome.failure for outcome in outcomes.values())
    if args.install_only:
        return 128 + signal.SIGINT if interrupted else int(failed)

    ratios = [ratio(each, outcomes) for each in wanted_ratios]
    table = [row_of(outcome, outcomes) for outcome in outcomes.values()]
    result = {
        "benchmark": "peers_throughput" if args.throughput else "peers",
        "time": measure.now(),
        "machine": measure.machine(),
        "target": args.target,
        "assistant": args.assistant,
        "prompt_tokens": prompt_tokens,
        "isa": args.isa,
        **{key: settings[key] for key in ("new_tokens", "warm_up_tokens", "num_assistant_tokens")},
        "cpus": cpus,
        "cases": [outcome.as_dict() for outcome in outcomes.values()],
        "ratios": ratios,
        "table": table,
        "installed": {peer: known.installed(peer, args.envs) for peer in args.peers},
        "interrupted": interrupted,
    }
    print(markdown(table), end="\n\n")
    for each in ratios:
        print(ratio_line(each))
    text = json.dumps(result)
    print(f"\n{text}")
    if args.json:
        args.json.write_text(f"{text}\n")
    return 128 + signal.SIGINT if interrupted else int(failed)


def main(argv: Sequence[str] | None = None) -> int:
    """`run`, with its errors as messages."""
    return measure.exit_code(lambda: run(argv), say)


if __name__ == "__main__":
    sys.exit(main())
