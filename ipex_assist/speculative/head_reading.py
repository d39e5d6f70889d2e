"""Whether a draft head should read a prompt, which it reads as its target does. No torch here."""

from __future__ import annotations

from ipex_assist.speculative.contexts import READING_SHARE, USUAL_TOKENS
from ipex_assist.speculative.costs.batch_costs import BatchCosts
from ipex_assist.speculative.draft_lengths import best_length
from ipex_assist.speculative.pass_drafts import PlannedRequest, RequestDraft
from ipex_assist.speculative.planned_assistant import KNOWN_TOKENS, WORTH
from ipex_assist.speculative.planner import Planner
from ipex_assist.speculative.schedule import LONGEST_DRAFT, RoundState


def repays_reading(planner: Planner, request: PlannedRequest, now: RoundState, requests: int) -> bool:
    """Whether drafts should repay a draft head's pass over a prompt's unread tokens, in passes of `requests`."""
    planner.grant(request)
    costs, draft = BatchCosts(planner.live.costs_from(requests), requests), RequestDraft(request, now)
    known = [each.rates(draft, part=False) for each in planner.assistants]
    length = best_length(known[0], costs, requests, LONGEST_DRAFT)
    if length.gain <= WORTH:
        return False
    if len(known) > 1 and known[1].seen >= KNOWN_TOKENS:  # another one does better
        other = BatchCosts(planner.assistants[1].live.costs_from(requests), requests)
        if best_length(known[1], other, requests, LONGEST_DRAFT).rate > length.rate:
            return False
    won_s = min(now.remaining, USUAL_TOKENS) * costs.plain_s / requests * (1 - WORTH / length.gain)
    seconds = costs.now.reading(now.unread[0])
    return seconds < planner.account.balance_s / 2 and seconds < READING_SHARE * won_s
