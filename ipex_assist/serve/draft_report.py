"""Draft statistics in known formats: llama.cpp's `timings`, vLLM's `metrics.speculative_decoding`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

from ipex_assist.generation.stats import SourceCounts
from ipex_assist.serve.backend import OutputChunk

BY_POSITION = ("drafted_by_position", "accepted_by_position")


@dataclass
class DraftCounts:
    """Counts over passes that verified drafts. histogram: number of passes that accepted 0, 1, 2, … tokens."""

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    longest: int = 0
    histogram: list[int] = field(default_factory=list)

    def count(self, chunk: OutputChunk) -> None:
        """Count one pass."""
        if chunk.drafted:
            self.steps += 1
            self.drafted += chunk.drafted
            self.accepted += chunk.accepted
            self.longest = max(self.longest, chunk.drafted)
            self.histogram += [0] * (chunk.accepted + 1 - len(self.histogram))
            self.histogram[chunk.accepted] += 1

    def __add__(self, other: DraftCounts) -> DraftCounts:
        """Sum of two counts."""
        length = max(len(self.histogram), len(other.histogram))
        return DraftCounts(
            self.steps + other.steps,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            max(self.longest, other.longest),
            [sum(counts.histogram[n] for counts in (self, other) if n < len(counts.histogram)) for n in range(length)],
        )


def speculative_decoding(counts: DraftCounts) -> dict[str, Any] | None:
    """vLLM's object of one request; None if nothing was drafted.

    mean_acceptance_length: tokens per step, including the target's own. num_spec_tokens: the longest draft; the
    histogram has an entry for each number from 0 to that, as vLLM's readers check.
    """
    if not counts.steps:
        return None
    return {
        "mean_acceptance_length": 1 + counts.accepted / counts.steps,
        "draft_acceptance_rate": counts.accepted / counts.drafted,
        "acceptance_histogram": counts.histogram + [0] * (counts.longest + 1 - len(counts.histogram)),
        "num_spec_steps": counts.steps,
        "num_accepted_draft_tokens": counts.accepted,
        "num_draft_tokens": counts.drafted,
        "num_spec_tokens": counts.longest,
    }


def timings(results: Sequence[dict[str, Any]], counts: DraftCounts) -> dict[str, Any]:
    """llama.cpp's object, of one choice or summed over several. results: `Result.as_dict()` of each.

    cache_n: prompt tokens that the prefix cache had; prompt_n: those that were read. prompt_ms: from the engine's start
    of the request to the first token. predicted_ms, predicted_per_second: of the tokens after the first, whose time
    belongs to the prompt. draft_n is omitted if nothing was drafted, as in llama.cpp. Where two assistants draft,
    draft_n_by_source and draft_n_accepted_by_source have the same by the source's name.
    """
    cached_n, predicted_n = sum(r["cached_tokens"] for r in results), sum(r["new_tokens"] for r in results)
    prompt_n = sum(r["prompt_tokens"] for r in results) - cached_n
    prompt_s, predicted_s = sum(r["ttft_s"] or 0.0 for r in results), sum(r["decode_s"] for r in results)
    later = sum(max(0, r["new_tokens"] - 1) for r in results)
    drafts: dict[str, Any] = {}
    if counts.drafted:
        drafts = {"draft_n": counts.drafted, "draft_n_accepted": counts.accepted}
    if sources := by_source(results):
        drafts |= {"draft_n_by_source": {name: each["drafted"] for name, each in sources.items()}}
        drafts |= {"draft_n_accepted_by_source": {name: each["accepted"] for name, each in sources.items()}}
    return {
        "cache_n": cached_n,
        "prompt_n": prompt_n,
        "prompt_ms": 1000 * prompt_s,
        "prompt_per_token_ms": 1000 * prompt_s / prompt_n if prompt_n else None,
        "prompt_per_second": prompt_n / prompt_s if prompt_s else None,
        "predicted_n": predicted_n,
        "predicted_ms": 1000 * predicted_s,
        "predicted_per_token_ms": 1000 * predicted_s / later if later else None,
        "predicted_per_second": later / predicted_s if predicted_s else None,
        **drafts,
    }


def draft_figures(results: Sequence[dict[str, Any]], counts: DraftCounts) -> dict[str, Any] | None:
    """Kind of draft head, cost of a drafted token and counts by position, over the results; None without drafts."""
    if not counts.steps or not results:
        return None
    times = [r["times"]["assistant"] for r in results]
    tokens, seconds = (sum(each[name] or 0 for each in times) for name in ("later_tokens", "later_s"))
    positions = {name: _added([r["draft"][name] or [] for r in results]) for name in BY_POSITION}
    cost = {"head": results[0]["draft_head"], "token_ms": 1000 * seconds / tokens if tokens else None}
    return {**cost, **positions, "by_source": by_source(results)}


def by_source(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]] | None:
    """What each of several sources drafted, over the results: drafted and accepted tokens, and their ratio."""
    summed: dict[str, SourceCounts] = {}
    for result in results:
        for name, each in (result.get("draft", {}).get("by_source") or {}).items():
            summed.setdefault(name, SourceCounts()).add(each["drafted"], each["accepted"])
    return {name: asdict(each) for name, each in summed.items()} or None


def _added(lists: Sequence[Sequence[int]]) -> list[int]:
    """Sum of each position."""
    return [sum(position) for position in zip_longest(*lists, fillvalue=0)]


def speedup(results: Sequence[dict[str, Any]]) -> float | None:
    """Estimated seconds of plain decoding ÷ measured seconds, over the results that have an estimate."""
    timed = [(r["speedup"], r["decode_s"]) for r in results if r["speedup"] is not None]
    seconds = sum(spent for _, spent in timed)
    return sum(factor * spent for factor, spent in timed) / seconds if seconds else None


def report(results: Sequence[dict[str, Any]], counts: DraftCounts) -> dict[str, Any]:
    """Both objects, as fields beside `usage`."""
    return {
        "timings": timings(results, counts),
        "metrics": {
            "speculative_decoding": speculative_decoding(counts),
            "draft": draft_figures(results, counts),
            "speedup": speedup(results),
        },
    }
