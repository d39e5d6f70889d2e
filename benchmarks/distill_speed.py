"""Tokens a second on the held-out prompts of a training: plain, with the head, and with other assistants, in turns.

    ipex-launch -- python benchmarks/distill_speed.py --target FOLDER --work HEAD.work --assistants HEAD FOLDER:int4
        [--precision bf16] [--prompts 16] [--new-tokens 96] [--repeats 2]

An assistant's precision follows a colon (default: as `ipex-assist` chooses it). Each prompt is answered greedily, plain
and assisted one after the other, with the draft length that the schedule chooses; of the repeats the median counts.
Speed is tokens after the first ÷ seconds after it, over all prompts. Texts of both are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measure

from ipex_assist.distill.command import held_out
from ipex_assist.env.errors import IpexAssistError, UsageError


def held_out_prompts(work: Path, most: int) -> list[list[int]]:
    """Token ids of the prompts that a training of `distill` did not see."""
    file = work / "data" / "samples.jsonl"
    if not file.exists():
        raise UsageError(f"--work {work}: no data/samples.jsonl there; it is the folder that `distill` worked in")
    samples = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [each["tokens"][: each["prompt_tokens"]] for each in samples[-held_out(len(samples)) :][:most]]


def answer(model: Any, prompt: Sequence[int], new_tokens: int, assisted: bool) -> tuple[list[int], float, int]:
    """The text, seconds after its first delivery, and rounds in them."""
    tokens: list[int] = []
    rounds, started = -1, 0.0
    for chunk in model.stream(list(prompt), max_new_tokens=new_tokens, do_sample=False, assisted=assisted):
        tokens += chunk.tokens
        rounds += 1
        if rounds == 0:
            started = time.perf_counter()
    return tokens, time.perf_counter() - started, rounds


def of_assistant(args: argparse.Namespace, named: str, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Speeds with an assistant, and of the same target without it in the same turns."""
    from ipex_assist.generation.load_options import LoadOptions
    from ipex_assist.generation.loading import load_by

    name, _, precision = named.partition(":")
    options = LoadOptions(
        target=args.target,
        assistant=name,
        precision=args.precision,
        assistant_precision=precision or None,
        offline=True,
    )
    model = load_by(options)
    try:
        for assisted in (False, True):
            answer(model, prompts[0], args.new_tokens, assisted)
        seconds: dict[bool, list[list[float]]] = {False: [], True: []}
        tokens, rounds = 0, 0
        for prompt in prompts:
            turns: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(args.repeats):
                texts = {}
                for assisted in (False, True):
                    texts[assisted], took, counted = answer(model, prompt, args.new_tokens, assisted)
                    turns[assisted].append(took)
                if texts[False] != texts[True]:
                    raise IpexAssistError(f"{named}: a text with it is another one")
            tokens, rounds = tokens + len(texts[True]) - 1, rounds + counted
            for assisted, took in turns.items():
                seconds[assisted].append(took)
    finally:
        model.close()
    plain, with_it = (
        [sum(prompt[turn] for prompt in seconds[assisted]) for turn in range(args.repeats)]
        for assisted in (False, True)
    )
    speeds = {"plain": [tokens / each for each in plain], "assisted": [tokens / each for each in with_it]}
    return {"assistant": named, "tokens": tokens, "rounds": rounds, **speeds}


def row(found: dict[str, Any]) -> dict[str, Any]:
    """A line of the table."""
    plain, assisted = (statistics.median(found[name]) for name in ("plain", "assisted"))
    return {
        "assistant": Path(found["assistant"]).name,
        "plain": f"{plain:.1f}",
        "assisted": f"{assisted:.1f}",
        "÷ plain": f"{assisted / plain:.2f}",
        "tokens a round": f"{found['tokens'] / found['rounds']:.2f}",
    }


def run() -> int:
    """Measure each assistant; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, metavar="FOLDER")
    parser.add_argument("--work", required=True, type=Path, metavar="FOLDER", help="where distill worked")
    parser.add_argument("--assistants", required=True, nargs="+", metavar="ID[:PRECISION]")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    prompts = held_out_prompts(args.work, args.prompts)
    found = [of_assistant(args, each, prompts) for each in args.assistants]
    measure.report([row(each) for each in found], {"precision": args.precision, "assistants": found})
    return 0


if __name__ == "__main__":
    sys.exit(measure.exit_code(run, lambda line: print(f"distill_speed.py: {line}", file=sys.stderr)))
