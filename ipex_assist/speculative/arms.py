"""What each assistant promises for the next pass, and which of them drafts in it. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ipex_assist.speculative.contexts import USUAL_TOKENS, Contexts, choose_contexts, parts_pay
from ipex_assist.speculative.costs.adapter_acceptance import mean_of
from ipex_assist.speculative.draft_lengths import DraftLength, best_group, best_length
from ipex_assist.speculative.pass_drafts import PassDrafts, RequestDraft
from ipex_assist.speculative.planned_assistant import KNOWN_TOKENS, WORTH, PlannedAssistant

# An arm that promises nothing, or less than another, is tried again when that costs at most this share of the time
# since it was tried: texts become easier, and an assistant may become the better one. It is paid from the account.
EXPLORED_SHARE = 0.02


@dataclass
class Arm:
    """An assistant, how long its drafts would be, and for which requests.

    token_s: expected seconds for each token of all requests. promised: all of the requests together would gain, though
    of drafts after all of a context few were seen.
    """

    each: PlannedAssistant
    length: DraftLength
    contexts: Contexts
    token_s: float
    promised: bool = False


def arm_of(made: PassDrafts, each: PlannedAssistant, drafts: Sequence[RequestDraft], balance_s: float) -> Arm:
    """Return what an assistant promises: requests whose adapters it suits, and that may read what they lack."""
    costs, longest = made.costs_of(each.live), max(draft.most for draft in drafts)
    pay = parts_pay(made, each, drafts, longest, balance_s)
    known = [each.rates(draft, part=pay and each.skips(draft)) for draft in drafts]
    suited, length = best_group(drafts, known, costs, longest, overhead_s=each.overhead_s)
    if length.gain <= WORTH:
        return Arm(each, length, Contexts(), 1 / length.rate)
    found = choose_contexts(made, each, suited, length, balance_s, parts_pay=pay)
    if found.reads and len(found.reads) < len(drafts):
        known = [each.rates(of.draft, part=each.skips(of.draft) and of.context is not None) for of in found.reads]
        length = best_length(mean_of(known), costs, len(found.reads), longest, overhead_s=each.overhead_s)
    tokens = sum(min(USUAL_TOKENS / 2, of.draft.now.remaining) for of in found.reads)
    promised = each.rates(suited[0], part=False).seen < KNOWN_TOKENS
    return Arm(each, length, found, 1 / length.rate + found.seconds / max(1.0, tokens), promised)


def next_arm(made: PassDrafts, arms: Sequence[Arm]) -> Arm:
    """Return the arm of the next pass: the one with fewer seconds a token, or now and then another."""
    promising = [arm for arm in arms if arm.length.gain > WORTH and arm.contexts.reads]
    if not promising:
        return arms[0]
    best = min(promising, key=lambda arm: arm.token_s)
    for arm in promising:
        pass_s = arm.length.tokens / arm.length.rate + arm.contexts.seconds
        lost_s = max(pass_s - arm.length.tokens * best.token_s, made.costs.plain_s / 10)
        waited_s = min(arm.each.unasked_s, USUAL_TOKENS * made.costs.plain_s)
        if arm is not best and waited_s * EXPLORED_SHARE >= lost_s:
            return arm
    return best
