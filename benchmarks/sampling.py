"""Sampled text: noise by position beside rejection sampling, and greedy, with a real pair, in one run.

    ipex-launch -- python benchmarks/sampling.py --target FOLDER --assistant FOLDER [--precision int8]

For each temperature and top-p, and each prompt, the two rules take turns, with a fixed number of drafted tokens and
with the adaptive schedule, each with acceptance counts of its own. Speed is tokens after the first ÷ seconds after it.
Texts differ between the rules and from turn to turn, as drawn texts do, so that single figures scatter; "expected"
does not: at each place of the texts it takes the distributions p and q of both models and says how often a drafted
token stays, Σ min(p, q) by rejection, Σ_x 1 / Σ_y max(p_y / p_x, q_y / q_x) by noise.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import draft_prompts
import measure
import numpy as np
import rejection

import ipex_assist
from ipex_assist.commands.shared.load import leave_cores_to_native
from ipex_assist.speculative.acceptance import Acceptance
from ipex_assist.speculative.adaptive import Adaptive
from ipex_assist.speculative.assistant_model import AssistantModel
from ipex_assist.speculative.draft import Proposal
from ipex_assist.speculative.sampling import Sampling, choose_for_draft
from ipex_assist.speculative.schedule import LONGEST_DRAFT, Constant, RoundResult, RoundState, Schedule
from ipex_assist.speculative.verify import choices, verify

RULES = ("position", "rejection")


@dataclass
class Text:
    """One text's figures. reached: drafted tokens that were accepted, and those at which a round ended."""

    tokens: list[int]
    seconds: float
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    reached: int = 0

    @property
    def speed(self) -> float:
        """Tokens after the first a second."""
        return (len(self.tokens) - 1) / self.seconds


@dataclass
class Contender:
    """A rule with a schedule, at one temperature and top-p: its texts, by turn and prompt, and what it has learnt."""

    rule: str
    fixed: int | None
    texts: list[Text] = field(default_factory=list)
    model: Acceptance = field(default_factory=Acceptance)
    lookup: Acceptance = field(default_factory=Acceptance)

    def schedule(self, costs: Any, limit: int) -> Schedule:
        """Of one text."""
        if self.fixed is not None:
            return Constant(self.fixed)
        self.model, self.lookup = self.model.for_next_text(), self.lookup.for_next_text()
        return Adaptive(costs, limit, LONGEST_DRAFT, self.model, self.lookup)

    def sum(self, name: str) -> float:
        """Over all texts."""
        return float(sum(getattr(text, name) for text in self.texts))


def generate(pair: Any, prompt: list[int], new: int, sampling: Sampling, contender: Contender) -> Text:
    """One text by a loop that is the same for both rules."""
    target, random = pair.target, np.random.default_rng(sampling.seed)
    parts = (pair.assistant, sampling, target.spec.vocab_size, None, len(prompt) + new)
    by_noise = contender.rule == "position" or not sampling.do_sample
    draft = AssistantModel(*parts) if by_noise else rejection.DrawingAssistant(random, *parts)
    schedule = contender.schedule(pair.drafting.costs, new)
    tokens, sequence = list(prompt), target.new_sequence(len(prompt) + new)

    def verified(logits: Any, proposal: Proposal) -> tuple[list[int], int]:
        if isinstance(draft, rejection.DrawingAssistant):
            return rejection.verify(logits, proposal.tokens, draft.distributions, sampling, random)
        return verify(choices(logits, sampling, tokens, proposal.tokens), proposal.tokens, len(tokens))

    tokens += verified(target.extend(sequence, tokens), Proposal([]))[0]
    text, started = Text([], 0.0), time.perf_counter()
    while (remaining := len(prompt) + new - len(tokens)) > 0:
        began = time.perf_counter()
        proposal = Proposal([])
        plan = schedule.plan(RoundState(len(tokens), remaining, draft.unread(tokens)))
        if min(plan.k, remaining - 1) > 0:
            proposal = draft.propose(
                tokens, min(plan.k, remaining - 1), min_confidence=plan.min_confidence, context=plan.context
            )
        drafted = time.perf_counter()
        if isinstance(draft, rejection.DrawingAssistant) and not proposal.tokens:
            draft.distributions = []
        logits = target.extend(sequence, [tokens[-1], *proposal.tokens], last=len(proposal.tokens) + 1)
        more, accepted = verified(logits, proposal)
        if proposal.tokens:
            draft.accept(accepted)
        tokens += more
        sequence.truncate(len(tokens) - 1)
        count, ended = len(proposal.tokens), time.perf_counter()
        schedule.observe(RoundResult(count, accepted, proposal.confidence, drafted - began, ended - drafted))
        text.passes, text.drafted, text.accepted = text.passes + 1, text.drafted + count, text.accepted + accepted
        text.reached += min(accepted + 1, count)
    text.seconds, text.tokens = time.perf_counter() - started, tokens[len(prompt) :]
    return text


def expected(pair: Any, prompt: list[int], text: list[int], sampling: Sampling) -> dict[str, float]:
    """How often a drafted token stays at the places of a text, by both rules; and where the draft is certain."""
    rows = []
    for model in (pair.target, pair.assistant):
        sequence = model.new_sequence(len(prompt) + len(text))
        rows.append(model.extend(sequence, [*prompt, *text[:-1]], last=len(text)).float().numpy())
    found = defaultdict(list)
    for of_target, of_draft in zip(*rows, strict=True):
        p, q = (rejection.distribution(row, sampling) for row in (of_target, of_draft))
        found["rejection"].append(float(np.minimum(p, q).sum()))
        found["position"].append(equal_choices(p, q))
        found["certain"].append(float(p[choose_for_draft(of_draft, Sampling(), 0)[0]]))
    return {rule: statistics.fmean(values) for rule, values in found.items()}


def equal_choices(p: rejection.Distribution, q: rejection.Distribution) -> float:
    """How often the same noise gives the same choice. Of 152,000 tokens the likeliest 3,000 are looked at."""
    near = np.argsort(-np.maximum(p, q))[:3000]
    p, q = p[near], q[near]
    shared = np.minimum(p, q)
    first = [x for x in np.argsort(-shared)[:60] if shared[x] > 0]
    equal = sum(1 / float(np.maximum(p / p[x], q / q[x]).sum()) for x in first)
    return equal * float(shared.sum() / shared[first].sum()) if first else 0.0


def settings(args: argparse.Namespace) -> list[Sampling]:
    """Greedy first, so that what sampling costs is seen beside it."""
    drawn = [
        Sampling(do_sample=True, temperature=temperature, top_p=top_p, top_k=args.top_k, seed=0)
        for top_p in args.top_p
        for temperature in args.temperature
    ]
    return [Sampling(), *drawn]


def name_of(sampling: Sampling) -> str:
    """As the table has it."""
    return f"T {sampling.temperature:g}, top-p {sampling.top_p:g}" if sampling.do_sample else "greedy"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True)
    parser.add_argument("--assistant", required=True)
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--assistant-precision", default="int4")
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.1, 0.7, 1.0])
    parser.add_argument("--top-p", type=float, nargs="+", default=[1.0, 0.95])
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--fixed", type=int, default=4, help="drafted tokens a round beside adaptive")
    parser.add_argument("--prompts", nargs="+", default=list(draft_prompts.PROMPTS), choices=draft_prompts.PROMPTS)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args()

    pair: Any = ipex_assist.load(
        args.target,
        assistant=args.assistant,
        precision=args.precision,
        assistant_precision=args.assistant_precision,
        executor=args.executor,
    )
    leave_cores_to_native()
    prompts = {name: pair.encode(draft_prompts.PROMPTS[name], chat=True) for name in args.prompts}
    generate(pair, next(iter(prompts.values())), 24, Sampling(), Contender("position", args.fixed))  # warms up

    rows, results = [], {}
    for setting in settings(args):
        contenders = [Contender(rule, fixed) for fixed in (args.fixed, None) for rule in RULES]
        stays: dict[str, list[float]] = defaultdict(list)
        for number, prompt in enumerate(list(prompts.values()) * args.repeats):
            for contender in contenders if number % 2 else reversed(contenders):
                drawn = Sampling.part_of(
                    Sampling.of(setting, seed=number if setting.do_sample else None), prompt_length=len(prompt)
                )
                contender.texts.append(generate(pair, prompt, args.max_new_tokens, drawn, contender))
            if setting.do_sample:
                for contender in contenders[:2]:
                    for rule, share in expected(pair, prompt, contender.texts[-1].tokens, drawn).items():
                        stays[rule].append(share)
        by = {(each.rule, each.fixed): each for each in contenders}
        for contender in contenders:
            rival = by["rejection", contender.fixed]
            ratios = [ours.speed / theirs.speed for ours, theirs in zip(contender.texts, rival.texts, strict=True)]
            figures = {
                "sampling": name_of(setting),
                "rule": contender.rule,
                "drafts": "adaptive" if contender.fixed is None else f"k={contender.fixed}",
                "accepted": f"{contender.sum('accepted') / max(1, contender.sum('reached')):.3f}",
                "expected": f"{statistics.fmean(stays[contender.rule]):.3f}" if setting.do_sample else "",
                "tokens a pass": f"{1 + contender.sum('accepted') / contender.sum('passes'):.2f}",
                "tokens/s": f"{statistics.median(text.speed for text in contender.texts):.2f}",
                "÷ rejection": f"{math.exp(statistics.fmean(map(math.log, ratios))):.3f}",
            }
            rows.append(figures)
            key = f"{figures['sampling']}, {figures['rule']}, {figures['drafts']}"
            results[key] = {
                "tokens_per_s": measure.summary([text.speed for text in contender.texts]),
                "drafted": contender.sum("drafted"),
                "accepted": contender.sum("accepted"),
                "reached": contender.sum("reached"),
                "passes": contender.sum("passes"),
            }
        results[f"{name_of(setting)}, expected"] = {rule: statistics.fmean(values) for rule, values in stays.items()}
        print(measure.table(rows[-4:]), flush=True)
    measure.report(rows, {"executor": pair.identity.executor, "precision": args.precision, "results": results})


if __name__ == "__main__":
    main()
