"""One pass of the target over one text, as whoever reads the text hears of it."""

from __future__ import annotations

from dataclasses import dataclass

from ipex_assist.executors.interface import TokenLogprob


@dataclass(frozen=True)
class Round:
    """The tokens that one pass of the target brought: the accepted drafted tokens, then one of its own.

    `prompt` marks the first round, the pass over the prompt. Times are in seconds; plain_s is what a pass with nothing
    drafted takes at this time, by the schedule's measurements, or None. choose_s: the part of target_s in which tokens
    were chosen, the logits being there; None where that is not told apart. logprobs: of each of the tokens, where they
    are wanted. prompt_logprobs: likewise, of each token of the prompt but the first, in the first round.
    """

    tokens: list[int]
    drafted: int = 0
    accepted: int = 0
    draft_s: float = 0.0
    target_s: float = 0.0
    prompt: bool = False
    plain_s: float | None = None
    choose_s: float | None = None
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
