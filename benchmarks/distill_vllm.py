"""How often what a trained EAGLE-3 head drafts is accepted here and in vLLM, at equal draft lengths.

    python benchmarks/distill_vllm.py --target FOLDER --head FOLDER --work HEAD.work [--draft-tokens 1,3] [--prompts 16]

Prompts are the held-out ones of `ipex-assist distill`. Target and head are in bf16, texts greedy, one after the other.
vLLM gets the environment that peers.py gives it. A round is a draft and its verification; its length is what it brings:
the accepted tokens, and the target's own after them. vLLM drafts the same number of tokens to the end of a text, ours
stops there: shares are of the rounds that had a token at that position.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measure
import peers
import peers_known as known
from peers_recipes import clean_environment

from ipex_assist.distill.command import held_out
from ipex_assist.distill.measure import PositionCounts, count
from ipex_assist.env.errors import UsageError
from ipex_assist.env.topology import read_topology
from ipex_assist.launch.plan import without_plan


def held_out_prompts(work: Path, most: int) -> list[list[int]]:
    """Token ids of the prompts that a training of `distill` did not see."""
    file = work / "data" / "samples.jsonl"
    if not file.exists():
        raise UsageError(f"--work {work}: no data/samples.jsonl there; it is the folder that `distill` worked in")
    samples = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [each["tokens"][: each["prompt_tokens"]] for each in samples[-held_out(len(samples)) :][:most]]


def ours(args: argparse.Namespace, prompts: Sequence[Sequence[int]], draft_tokens: int) -> PositionCounts:
    """Counts of our engine, with drafts that always have so many tokens."""
    from ipex_assist.generation.assisted_model import AssistedModel
    from ipex_assist.generation.load_options import LoadOptions
    from ipex_assist.generation.loading import load_by

    options = LoadOptions(
        target=args.target, assistant=args.head, precision="bf16", assistant_precision="bf16", offline=True
    )
    model = load_by(options)
    assert isinstance(model, AssistedModel)
    try:
        return count(model, prompts, draft_tokens, new_tokens=args.new_tokens)
    finally:
        model.close()


def vllm(args: argparse.Namespace, prompts: Sequence[Sequence[int]], draft_tokens: int) -> dict[str, Any]:
    """The answer of benchmarks/peers/run_vllm_head.py."""
    cpus = sorted(core.cpus[0] for core in read_topology().default_cores())
    home = known.VLLM.make(args.envs)
    settings = {
        "target": str(Path(args.target).resolve()),
        "head": str(Path(args.head).resolve()),
        "prompts": prompts,
        "new_tokens": args.new_tokens,
        "draft_tokens": draft_tokens,
    }
    environ = {"OMP_NUM_THREADS": str(len(cpus)), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    runner = known.RUNNERS / "run_vllm_head.py"
    child = known.Child(
        (str(home / "bin" / "python"), str(runner), json.dumps(settings)), environ | known.vllm_environ(home, cpus)
    )
    return peers.run_child(child, cpus, args.timeout, clean_environment(without_plan(os.environ)))


def row_of(engine: str, rounds: int, shares: Sequence[float]) -> dict[str, Any]:
    """A line of the table."""
    return {
        "engine": engine,
        "draft tokens": len(shares),
        "rounds": rounds,
        "accepted by position": " ".join(f"{share:.1%}" for share in shares),
        "tokens a round": f"{1 + sum(shares):.3f}",
    }


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, metavar="FOLDER", help="a Hugging Face folder, which both can read")
    parser.add_argument("--head", required=True, metavar="FOLDER", help="what distill wrote")
    parser.add_argument("--work", required=True, type=Path, metavar="FOLDER", help="where distill worked")
    parser.add_argument("--draft-tokens", default="1,3", metavar="K,…")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=96)
    parser.add_argument("--envs", type=Path, default=peers.default_envs(), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--timeout", type=float, default=1200, help="seconds of vLLM for one length (default 1200)")
    return parser.parse_args(argv)


def run(argv: Sequence[str] | None) -> int:
    """Count with both at each length; returns the exit code."""
    args = parse(argv)
    prompts = held_out_prompts(args.work, args.prompts)
    rows, ratios, answers = [], {}, []
    for draft_tokens in map(int, args.draft_tokens.split(",")):
        own, theirs = ours(args, prompts, draft_tokens), vllm(args, prompts, draft_tokens)
        shares = [each / theirs["rounds"] for each in theirs["accepted"]]
        rows += [row_of("ipex-assist", own.rounds, own.rates()), row_of("vllm", theirs["rounds"], shares)]
        ratios[draft_tokens] = (1 + sum(shares)) / (1 + sum(own.rates()))
        answers.append({"draft_tokens": draft_tokens, "ours": vars(own), "vllm": theirs})
    measure.report(rows, {"ratio_by_draft_tokens": ratios, "answers": answers, "prompts": len(prompts)})
    return 0


def say(line: str) -> None:
    """Progress; figures go to standard output."""
    print(f"distill_vllm.py: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(measure.exit_code(lambda: run(None), say))
