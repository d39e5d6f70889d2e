"""The decode loop: prompt in, rounds out. Plain decoding is the same loop with nothing drafted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ipex_assist.executors.interface import Choice, Model
from ipex_assist.speculative.draft import DraftSource, Proposal
from ipex_assist.speculative.logprobs import of_rows
from ipex_assist.speculative.sampling import Sampling
from ipex_assist.speculative.schedule import Constant, RoundResult, RoundState, Schedule
from ipex_assist.speculative.verify import choices, verify


@dataclass(frozen=True)
class Round:
    """The tokens that one pass of the target brought: the accepted drafted tokens, then one of its own.

    `prompt` marks the first round, the pass over the prompt. Times are in seconds; plain_s is what a pass with nothing
    drafted takes at this time, by the schedule's measurements, or None. choose_s: the part of target_s in which tokens
    were chosen, the logits being there; None where that is not told apart. logprobs: of each of the tokens, where they
    are wanted.
    """

    tokens: list[int]
    drafted: int = 0
    accepted: int = 0
    draft_s: float = 0.0
    target_s: float = 0.0
    prompt: bool = False
    plain_s: float | None = None
    choose_s: float | None = None
    logprobs: list[Choice] | None = None


def decode(
    target: Model,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    sampling: Sampling,
    draft: DraftSource | None = None,
    schedule: Schedule | None = None,
    logprobs: int | None = None,
) -> Iterator[Round]:
    """Yield rounds until `max_new_tokens` tokens are out; the consumer stops earlier by no longer asking.

    The text has a sequence of its own, which lives as long as this iterator and holds all tokens but the last: each
    round feeds that one first, followed by the drafted ones.
    `schedule` says how many; without one it is the same number every round. logprobs: how many of the likeliest tokens
    come with each token's log-probability; None for neither.
    What is drafted, by whom and how much of it, changes nothing in the text: see sampling.py.
    Raises LogitsError where the target or the draft computes no numbers.
    """
    schedule = schedule or Constant()
    tokens = list(prompt)
    started = time.perf_counter()
    sequence = target.new_sequence(len(prompt) + max_new_tokens)
    logits = target.extend(sequence, tokens)
    passed = time.perf_counter()
    new, _ = verify(choices(logits, sampling, tokens), [], len(tokens))
    listed = of_rows(logits, new, logprobs)
    ended = time.perf_counter()
    tokens += new
    yield Round(new, target_s=ended - started, prompt=True, choose_s=ended - passed, logprobs=listed)

    end = len(prompt) + max_new_tokens
    while len(tokens) < end:
        started = time.perf_counter()
        # One token of every round is the target's own: drafting the last one would be in vain.
        remaining = end - len(tokens)
        proposal = Proposal([])
        if draft is not None and remaining > 1:
            plan = schedule.plan(RoundState(len(tokens), remaining, draft.unread(tokens)))
            k = min(plan.k, remaining - 1)
            if k > 0:
                proposal = draft.propose(tokens, k, min_confidence=plan.min_confidence, context=plan.context)
        drafted = time.perf_counter()
        logits = target.extend(sequence, [tokens[-1], *proposal.tokens], last=len(proposal.tokens) + 1)
        passed = time.perf_counter()
        chosen = choices(logits, sampling, tokens, proposal.tokens)
        new, accepted = verify(chosen, proposal.tokens, len(tokens))
        listed = of_rows(logits, new, logprobs)
        choose_s = time.perf_counter() - passed
        if draft is not None and proposal.tokens:
            draft.accept(accepted)
        tokens += new
        sequence.truncate(len(tokens) - 1)
        draft_s, target_s = drafted - started, time.perf_counter() - drafted
        if draft is not None and remaining > 1:
            schedule.observe(RoundResult(len(proposal.tokens), accepted, proposal.confidence, draft_s, target_s))
        counts = len(proposal.tokens), accepted, draft_s, target_s
        yield Round(new, *counts, plain_s=schedule.plain_s, choose_s=choose_s, logprobs=listed)
