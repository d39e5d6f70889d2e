"""What a head brings: acceptance by position on held-out prompts, and tokens a second by measured costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.schedule import ConstantSchedule
from ipex_assist.speculative.sources.suffix_lookup import SuffixLookup

if TYPE_CHECKING:
    from ipex_assist.generation.assisted_model import AssistedModel
    from ipex_assist.speculative.sources.draft_source import DraftSource

PROMPTS = 16  # held-out prompts at most
TOKENS = 64  # of an answer to each


@dataclass
class PositionCounts:
    """Rounds, and in how many of them there was a first, second, … drafted token, and it was accepted."""

    rounds: int
    drafted: list[int]
    accepted: list[int]

    def rates(self) -> list[float]:
        """Of each position, the share of its drafted tokens that were accepted, and all before them."""
        return [right / tried if tried else 0.0 for tried, right in zip(self.drafted, self.accepted, strict=True)]

    def tokens(self, longest: int) -> float:
        """Tokens that a round brings if drafts are cut to `longest`."""
        return 1 + sum(self.accepted[:longest]) / max(1, self.rounds)

    def seconds(self, longest: int, costs: Costs) -> float:
        """Mean seconds of such a round: the draft, its reading what was accepted before, and verifying."""
        if not self.rounds:
            return costs.verifying(1)
        reaching = [1.0, *(count / self.rounds for count in self.drafted[:longest]), 0.0]
        verifying = sum(
            (reaching[length] - reaching[length + 1]) * costs.verifying(length + 1)
            for length in range(len(reaching) - 1)
        )
        steps = sum(reaching[1:-1])
        drafting = steps * costs.draft + (reaching[1] * costs.block[0] if costs.block and longest else 0.0)
        return verifying + drafting + (costs.reading(round(self.tokens(longest))) if longest else 0.0)


@dataclass
class Outcome:
    """What a way to draft brings. tokens_per_s: at the draft length that is best by these counts and costs; 0: none."""

    name: str
    acceptance: list[float]
    draft_tokens: int
    tokens_per_s: float
    plain_tokens_per_s: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return vars(self)

    def line(self) -> str:
        """The sentence for people."""
        rates = " ".join(f"{rate:.0%}" for rate in self.acceptance) or "nothing drafted"
        speed = f"{self.tokens_per_s:.1f} tokens/s ({self.tokens_per_s / self.plain_tokens_per_s:.2f} x plain)"
        return f"{self.name}: accepted by position {rates}; {speed} with drafts of {self.draft_tokens}"


def outcome(name: str, counts: PositionCounts, costs: Costs, longest: int) -> Outcome:
    """The best draft length, 0 included, and what it brings by measured costs."""
    plain = 1 / costs.verifying(1)
    speeds = [plain, *(counts.tokens(k) / counts.seconds(k, costs) for k in range(1, longest + 1))]
    best = max(range(len(speeds)), key=speeds.__getitem__)
    return Outcome(name, counts.rates(), best, speeds[best], plain)


def count(
    model: AssistedModel,
    prompts: Sequence[Sequence[int]],
    longest: int,
    draft: Callable[[], DraftSource] | None = None,
    new_tokens: int = TOKENS,
) -> PositionCounts:
    """Answer prompts greedily with drafts of `longest` tokens, and count. draft: in place of the model's own."""
    found = PositionCounts(0, [0] * longest, [0] * longest)
    for prompt in prompts:
        room = min(new_tokens, model.context_length - len(prompt))
        if room < 2:
            continue
        source = None if draft is None else draft()
        options: dict[str, Any] = {"max_new_tokens": room, "do_sample": False}
        for chunk in model.stream(list(prompt), draft=source, schedule=ConstantSchedule(longest), **options):
            each = chunk.round
            if each.prompt:
                continue
            found.rounds += 1
            for position in range(min(longest, each.drafted)):
                found.drafted[position] += 1
                found.accepted[position] += position < each.accepted
    return found


def compare(model: AssistedModel, name: str, prompts: Sequence[Sequence[int]], longest: int) -> list[Outcome]:
    """What a loaded model's own draft brings."""
    chosen = prompts[:PROMPTS]
    return [outcome(name, count(model, chosen, longest), model.drafting.costs, longest)]


def lookup(model: AssistedModel, prompts: Sequence[Sequence[int]], longest: int) -> Outcome:
    """What lookup alone brings, with the same target."""
    counts = count(model, prompts[:PROMPTS], longest, SuffixLookup)
    return outcome("lookup", counts, Costs(model.drafting.costs.verify), longest)
