"""Adaptive draft length beside every fixed one: ten prompts of different kinds, a real pair, one run.

    ipex-launch -- python benchmarks/draft_length.py --target FOLDER --assistant FOLDER|self|lookup [--precision int4]
    ipex-launch -- python benchmarks/draft_length.py --target FOLDER --assistant FOLDER --wrong

For each prompt all contenders take turns: plain decoding, the fixed lengths, adaptive. Speed is tokens after the first
÷ seconds after the first, so that what the draft needs to read the prompt counts against it; all contenders give the
same tokens, which is checked. Adaptive begins each text as a new process does, or, with --warm, knowing what the texts
before it taught. `--wrong` measures what an assistant costs that is always wrong: its model does its work, and each
token that it drafts is replaced by another.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

import draft_prompts
import measure

import ipex_assist
from ipex_assist.acceptance import Acceptance
from ipex_assist.draft import DraftSource, Proposal
from ipex_assist.schedule import Outcome, Plan, Schedule, Situation

PROMPTS = draft_prompts.PROMPTS | draft_prompts.COPYING


class AlwaysWrong:
    """A draft that works for nothing: its tokens are not the text's, and it says that it is sure of them."""

    def __init__(self, source: DraftSource, vocab_size: int) -> None:
        self.source, self.vocab_size = source, vocab_size

    def unread(self, tokens: Sequence[int]) -> int:
        """The source's."""
        return self.source.unread(tokens)

    def propose(self, tokens: Sequence[int], k: int, *, least: float = 0.0, context: int | None = None) -> Proposal:
        """As many tokens as asked for, none of which any text has: the vocabulary's last."""
        drafted = self.source.propose(tokens, k, least=0.0, context=context).tokens
        return Proposal([self.vocab_size - 1] * len(drafted), None, [0.999] * len(drafted))

    def accept(self, count: int) -> None:
        """Nothing was."""
        self.source.accept(count)


class Noted:
    """A schedule whose rounds are kept: planned number, threshold and context, drafted, accepted, milliseconds."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.rounds: list[list[Any]] = []
        self._planned = Plan(0)

    def plan(self, now: Situation) -> Plan:
        """The schedule's."""
        self._planned = self.schedule.plan(now)
        return self._planned

    def observe(self, outcome: Outcome) -> None:
        """Keep the round."""
        plan = self._planned
        times = round(1e3 * outcome.draft_s, 2), round(1e3 * outcome.target_s, 2)
        self.rounds.append([plan.k, plan.least, plan.context, outcome.drafted, outcome.accepted, *times])
        self.schedule.observe(outcome)


def note_rounds(model: Any) -> list[Noted]:
    """From now on, what the adaptive schedule does is appended to the list."""
    noted: list[Noted] = []
    make = model.drafting.schedule

    def schedule(options: Any, limit: int) -> Schedule:
        made: Schedule = make(options, limit)
        if options.adapts:
            noted.append(Noted(made))
            return noted[-1]
        return made

    model.drafting.schedule = schedule
    return noted


def contenders(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Options of `generate` by name."""
    fixed = {f"k={k}": {"num_assistant_tokens": k} for k in args.fixed}
    return {"plain": {"assisted": False}, **({} if args.wrong else fixed), "adaptive": {}}


def speeds(model: Any, args: argparse.Namespace, prompt: str) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Tokens per second of each contender in each turn, and how the adaptive draft did."""
    samples: dict[str, list[float]] = {}
    tokens: dict[str, list[int]] = {}
    draft: dict[str, Any] = {}
    for turn in range(args.repeats):
        order = list(contenders(args).items())
        for name, options in order if turn % 2 == 0 else reversed(order):
            if not args.warm:
                model.drafting.models, model.drafting.copies = Acceptance(), Acceptance()
            result = model.generate(prompt, chat=True, max_new_tokens=args.max_new_tokens, **options)
            samples.setdefault(name, []).append(result.tokens_per_s or math.nan)
            tokens[name] = result.tokens
            if name == "adaptive":
                draft = vars(result.draft)
    differing = [name for name in tokens if tokens[name] != tokens["plain"]]
    assert not differing, f"other tokens than plain decoding's: {differing}"
    return samples, {"new_tokens": len(tokens["plain"]), "draft": draft}


def row(prompt: str, speed: dict[str, float]) -> dict[str, Any]:
    """One line of the table."""
    fixed = {name: value for name, value in speed.items() if name.startswith("k=")}
    best = max(fixed, key=lambda name: fixed[name]) if fixed else "plain"
    return {
        "prompt": prompt,
        **{name: f"{value:.2f}" for name, value in speed.items()},
        "best fixed": best,
        "adaptive ÷ best": f"{speed['adaptive'] / speed[best]:.3f}",
        "adaptive ÷ plain": f"{speed['adaptive'] / speed['plain']:.3f}",
    }


def mean(results: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Of each contender, over the prompts' medians."""
    names = next(iter(results.values()))["tokens_per_s"]
    return {
        name: statistics.mean(result["tokens_per_s"][name]["median"] for result in results.values()) for name in names
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--assistant", required=True, help="as --assistant-model: a folder, self, lookup, lookup+…")
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--assistant-precision", default="int4")
    parser.add_argument("--draft-vocabulary", type=int)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument(
        "--prompts", nargs="+", choices=list(PROMPTS), default=list(draft_prompts.PROMPTS), metavar="NAME"
    )
    parser.add_argument("--fixed", nargs="*", type=int, default=list(range(1, 9)), metavar="K")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--warm", action="store_true", help="adaptive knows what earlier texts taught it")
    parser.add_argument("--recalibrate", action="store_true")
    parser.add_argument("--rounds", action="store_true", help="the adaptive schedule's rounds, in the JSON")
    parser.add_argument("--wrong", action="store_true", help="an assistant that is always wrong, against plain")
    return parser.parse_args()


def main() -> None:
    args = parse()
    model: Any = ipex_assist.load(
        args.target,
        assistant=args.assistant,
        precision=args.precision,
        assistant_precision=None if args.assistant == "lookup" else args.assistant_precision,
        executor=args.executor,
        draft_vocabulary=args.draft_vocabulary,
        recalibrate=args.recalibrate,
    )
    if args.wrong:
        model.wrap_draft = lambda source, _: AlwaysWrong(source, model.decoder.spec.vocab_size)
    model.generate("Hello.", chat=True, max_new_tokens=8, num_assistant_tokens=3)  # warms up
    noted = note_rounds(model)
    rows, results = [], {}
    for name in args.prompts:
        samples, facts = speeds(model, args, PROMPTS[name])
        results[name] = facts | {"tokens_per_s": {key: measure.summary(values) for key, values in samples.items()}}
        if args.rounds:
            results[name]["rounds"] = noted[-1].rounds
        rows.append(row(name, {key: statistics.median(values) for key, values in samples.items()}))
        print(measure.table(rows[-1:]), flush=True)
    rows.append(row("mean", mean(results)))
    print()
    measure.report(
        rows,
        {
            "executor": model.identity.executor,
            "precision": model.identity.precision,
            "assistant": model.identity.assistant,
            "assistant_precision": model.identity.assistant_precision,
            "costs_s": dataclasses.asdict(model.drafting.costs),
            "results": results,
        },
    )


if __name__ == "__main__":
    main()
