"""Adaptive draft length beside every fixed one: ten prompts of different kinds, a real pair, one run.

    ipex-launch -- python benchmarks/draft_length.py --target FOLDER --assistant FOLDER|self|lookup [--precision int4]
    ipex-launch -- python benchmarks/draft_length.py --target FOLDER --assistant FOLDER --wrong

For each prompt all contenders take turns: plain decoding, the fixed lengths, adaptive. Speed is tokens after the first
÷ seconds after the first, so that what the draft needs to read the prompt counts against it; all contenders give the
same tokens, which is checked. Adaptive knows what the texts before it taught, so name several prompts: every turn goes
through all of them, after one text of each that is not counted. With --cold it begins each text as if the pair had
never been used. `--wrong`, which does so too, measures what an assistant costs that is always wrong: its model does its
work, and each token that it drafts is replaced by another. --plot draws the curves.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import draft_prompts
import measure

import ipex_assist
from ipex_assist.bench.plots import curve
from ipex_assist.commands.shared.load import leave_cores_to_native
from ipex_assist.generation.result import Result
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.schedule import DraftPlan, RoundResult, RoundState, Schedule
from ipex_assist.speculative.sources.batched_proposals import Steps
from ipex_assist.speculative.sources.draft_source import DraftSource
from ipex_assist.speculative.sources.proposal import Proposal

PROMPTS = draft_prompts.PROMPTS | draft_prompts.COPYING


class AlwaysWrong(DraftSource):
    """A draft that works for nothing: its tokens are not the text's, and it says that it is sure of them."""

    def __init__(self, source: DraftSource, vocab_size: int) -> None:
        self.source, self.vocab_size = source, vocab_size

    def unread(self, tokens: Sequence[int]) -> int:
        """Return what the source itself says."""
        return self.source.unread(tokens)

    def steps(self, tokens: Sequence[int], plan: DraftPlan) -> Steps:
        """Propose as many tokens as asked for, none of which any text has: the vocabulary's last."""
        drafted = (yield from self.source.steps(tokens, replace(plan, min_confidence=0.0))).tokens
        return Proposal([self.vocab_size - 1] * len(drafted), [0.999] * len(drafted))

    def accept(self, count: int) -> None:
        """Ignore the count: nothing was accepted."""
        self.source.accept(count)


class Noted:
    """A schedule whose rounds are kept: planned number, threshold and context, drafted, accepted, milliseconds."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.rounds: list[list[Any]] = []
        self._planned = DraftPlan(0)

    @property
    def plain_s(self) -> float | None:
        """The schedule's."""
        return self.schedule.plain_s

    def plan(self, now: RoundState) -> DraftPlan:
        """The schedule's."""
        self._planned = self.schedule.plan(now)
        return self._planned

    def observe(self, outcome: RoundResult) -> None:
        """Record the round, and hand it on."""
        plan = self._planned
        times = round(1e3 * outcome.draft_s, 2), round(1e3 * outcome.target_s, 2)
        self.rounds.append([plan.k, plan.min_confidence, plan.context, outcome.drafted, outcome.accepted, *times])
        self.schedule.observe(outcome)


def generate(model: Any, prompt: str, wrong: bool, options: GenerationOptions) -> tuple[Result, Noted | None]:
    """A text, and what the adaptive schedule did where it is the one asked for."""
    tokens = model.encode(prompt, chat=True)
    noted = draft = None
    if options.is_adaptive:
        noted = Noted(model.drafting.schedule(options, model.limit_of(len(tokens), options)))
    if wrong and options.may_draft:
        draft = AlwaysWrong(model.draft_source(tokens, options), model.target.spec.vocab_size)
    return model.generate(tokens, options, draft=draft, schedule=noted), noted


def contenders(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the options of `generate` by the contender's name."""
    fixed = {f"k={k}": {"num_assistant_tokens": k} for k in args.fixed}
    return {"plain": {"assisted": False}, **({} if args.wrong else fixed), "adaptive": {}}


@dataclass
class Measured:
    """The figures of one prompt: tokens per second of each contender in each turn, and how the adaptive draft did."""

    samples: dict[str, list[float]] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    draft: dict[str, Any] = field(default_factory=dict)
    rounds: list[list[Any]] = field(default_factory=list)

    @property
    def medians(self) -> dict[str, float]:
        """The median tokens per second by contender."""
        return {name: statistics.median(values) for name, values in self.samples.items()}

    def facts(self, rounds: bool) -> dict[str, Any]:
        """Return the figures as the JSON has them."""
        speeds = {name: measure.summary(values) for name, values in self.samples.items()}
        kept = {"new_tokens": len(self.tokens), "draft": self.draft, "tokens_per_s": speeds}
        return kept | ({"rounds": self.rounds} if rounds else {})


def take_turn(model: Any, args: argparse.Namespace, prompt: str, forwards: bool, measured: Measured) -> None:
    """Run every contender once on one prompt."""
    order = list(contenders(args).items())
    for name, options in order if forwards else reversed(order):
        if args.cold or args.wrong:
            model.drafting.forget()
        chosen = GenerationOptions(max_new_tokens=args.max_new_tokens, **options)
        result, noted = generate(model, prompt, args.wrong, chosen)
        measured.samples.setdefault(name, []).append(result.tokens_per_s or math.nan)
        measured.tokens = measured.tokens or result.tokens
        assert result.tokens == measured.tokens, f"{name} gives other tokens than the contenders before it"
        if noted is not None:
            measured.draft, measured.rounds = vars(result.draft), noted.rounds


def row(prompt: str, speed: dict[str, float]) -> dict[str, Any]:
    """Return one line of the table."""
    fixed = {name: value for name, value in speed.items() if name.startswith("k=")}
    best = max(fixed, key=lambda name: fixed[name]) if fixed else "plain"
    return {
        "prompt": prompt,
        **{name: f"{value:.2f}" for name, value in speed.items()},
        "best fixed": best,
        "adaptive ÷ best": f"{speed['adaptive'] / speed[best]:.3f}",
        "adaptive ÷ plain": f"{speed['adaptive'] / speed['plain']:.3f}",
    }


def mean(results: Sequence[Measured]) -> dict[str, float]:
    """Return each contender's mean over the prompts' medians."""
    medians = [result.medians for result in results]
    return {name: statistics.mean(speeds[name] for speeds in medians) for name in medians[0]}


def draw(path: Path, results: dict[str, Measured]) -> None:
    """Draw each prompt's speed-up over plain decoding by fixed draft length, and a mark for what adaptive reached."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for number, (name, result) in enumerate(results.items()):
        speed, look = result.medians, curve(number)
        fixed = {int(key[2:]): value / speed["plain"] for key, value in speed.items() if key.startswith("k=")}
        axes.plot([0, *fixed], [1.0, *fixed.values()], label=name, **look)
        most = max(fixed) + 1
        axes.plot(most, speed["adaptive"] / speed["plain"], **{**look, "linestyle": "none", "markersize": 7})
    axes.set_xticks([0, *fixed, most], [*map(str, (0, *fixed)), "adaptive"])
    axes.set_xlabel("drafted tokens a round")
    axes.set_ylabel("speed ÷ plain decoding")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    figure.legend(fontsize="small", loc="outside right upper")
    figure.savefig(path)


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
    parser.add_argument("--cold", action="store_true", help="adaptive knows nothing of earlier texts")
    parser.add_argument("--recalibrate", action="store_true")
    parser.add_argument("--rounds", action="store_true", help="the adaptive schedule's rounds, in the JSON")
    parser.add_argument("--wrong", action="store_true", help="an assistant that is always wrong, against plain")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="curves, as .svg or .png (needs matplotlib)")
    args = parser.parse_args()
    if args.plot and (args.wrong or not args.fixed):
        parser.error("--plot: there are no fixed draft lengths to plot")
    return args


def main() -> None:
    args = parse()
    model: Any = ipex_assist.load(
        args.target,
        assistant=args.assistant,
        precision=args.precision,
        assistant_precision=None if args.assistant == "lookup" else args.assistant_precision,
        executor=args.executor,
        draft_vocabulary=args.draft_vocabulary,
        generation_config="none",
        recalibrate=args.recalibrate,
    )
    leave_cores_to_native()
    generate(model, "Hello.", args.wrong, GenerationOptions(max_new_tokens=8, num_assistant_tokens=3))  # warms up
    model.drafting.forget()  # what earlier processes taught is not in the figures, nor these texts in later processes
    if not args.cold and not args.wrong:
        for name in args.prompts:
            model.generate(PROMPTS[name], chat=True, max_new_tokens=args.max_new_tokens)
    results = {name: Measured() for name in args.prompts}
    for turn in range(args.repeats):
        for name, measured in results.items():
            take_turn(model, args, PROMPTS[name], turn % 2 == 0, measured)
            print(f"turn {turn + 1}:", measure.table([row(name, measured.medians)]), sep="\n", flush=True)
    rows = [row(name, measured.medians) for name, measured in results.items()]
    rows.append(row("mean", mean(list(results.values()))))
    if args.plot:
        draw(args.plot, results)
    print()
    measure.report(
        rows,
        {
            "executor": model.identity.executor,
            "precision": model.identity.precision,
            "assistant": model.identity.assistant,
            "assistant_precision": model.identity.assistant_precision,
            "costs_s": dataclasses.asdict(model.drafting.costs),
            "results": {name: measured.facts(args.rounds) for name, measured in results.items()},
        },
    )


if __name__ == "__main__":
    main()
