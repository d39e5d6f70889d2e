"""A round: what one pass of the target brought one request."""

from __future__ import annotations

from typing import NamedTuple

from ipex_assist.executors.interface import TokenLogprob


class Round(NamedTuple):
    """The tokens that one pass of the target brought: the accepted drafted tokens, then one of its own.

    prompt: marks the first round, after the prompt was read. Times are in seconds; plain_s: of plain decoding per token
    at this time, by the schedule's measurements, or None. choose_s: the part of target_s after the logits, in which
    tokens were chosen; None if not measured separately. logprobs: of each token, if requested. prompt_logprobs: in the
    first round, if requested, of each prompt token but the first. cached_tokens: in the first round, tokens of the
    prompt that were not read, since the prefix cache had them. drafted_by: the source of the drafted tokens, where
    there are several: lookup, grammar, model, or the kind of a draft head. ended: time.perf_counter() at its end, which
    may be long before it is fetched; None where it is fetched at once.
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
    cached_tokens: int = 0
    drafted_by: str | None = None
    ended: float | None = None
