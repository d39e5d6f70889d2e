"""How much of a request's context an assistant reads before it drafts: all of it, the last part, or nothing yet.

No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from ipex_assist.speculative.costs.adapter_acceptance import mean_of
from ipex_assist.speculative.draft_lengths import DraftLength, best_length, first_token
from ipex_assist.speculative.pass_drafts import PassDrafts, RequestDraft
from ipex_assist.speculative.planned_assistant import KNOWN_TOKENS, MOST_ERRORS, WORTH, PlannedAssistant
from ipex_assist.speculative.schedule import ALL_UNREAD

READY = 8  # a source with at most this many unread tokens is ready to draft
# Last tokens of the context from which a draft starts where reading all of it is not covered: its tokens are right less
# often, but cost little.
PARTS = (64, 32, 16, 8)
USUAL_TOKENS = 128  # of the tokens that may still come, those that reading is spread over: a request may end early
# Of the balance that a longer part may take, or the first drafts of several requests: one right draft in three does to
# gain, if they are made.
PART_SHARE = 0.3
# All of a context is worth waiting for where so many plain passes allow it: meanwhile there is more to be read.
SOON_PASSES = 8
READING_SHARE = 0.75  # share of the expected gain that reading may cost …
REREADING_SHARE = 0.25  # … and where drafts from a part already gain: how much more all of it brings is not known


class ReadContext(NamedTuple):
    """A request that drafts, what it reads before (see DraftPlan.context), and the seconds of that."""

    draft: RequestDraft
    context: int | None
    seconds: float = 0.0


@dataclass
class Contexts:
    """What an assistant would read, and the seconds of it.

    needs_s: the balance from which all that it would be worthwhile for may draft; infinite where there is nobody.
    """

    reads: Sequence[ReadContext] = ()
    seconds: float = 0.0
    needs_s: float = math.inf


def won_s(made: PassDrafts, draft: RequestDraft, gain: float) -> float:
    """Return the seconds that drafts of this gain should save a request."""
    return min(draft.now.remaining, USUAL_TOKENS) * made.token_s * (1 - WORTH / gain)


def parts_pay(
    made: PassDrafts, each: PlannedAssistant, drafts: Sequence[RequestDraft], longest: int, balance_s: float
) -> bool:
    """Whether drafts from a part of the context are expected to be worthwhile.

    After a wrong one, all of the context is read where the balance soon covers that: the part may be too short.
    """
    skipping = [draft for draft in drafts if each.skips(draft)]
    if not skipping and all(draft.now.unread[each.number] <= READY for draft in drafts):
        return True
    if each.part_errors >= MOST_ERRORS:
        return False
    if each.part_errors > 0 and skipping:
        whole_s, draft = min(((each.reading_s(made, of.now.length), of) for of in skipping), key=lambda each: each[0])
        gain = best_length(each.rates(draft, part=False), made.costs_of(each.live), len(drafts), longest).gain
        worth_s = READING_SHARE * won_s(made, draft, gain)
        if whole_s <= min(worth_s, balance_s + made.allowed_s(SOON_PASSES) - each.loss_s(made, 1, 1)):
            return False
    known = mean_of([each.rates(draft, part=True) for draft in drafts])
    return best_length(known, made.costs_of(each.live), len(drafts), longest).gain > WORTH


def choose_contexts(
    made: PassDrafts,
    each: PlannedAssistant,
    drafts: Sequence[RequestDraft],
    length: DraftLength,
    balance_s: float,
    *,
    parts_pay: bool,
) -> Contexts:
    """Return what each request may read, within the balance that also covers a first draft.

    Who reads all should gain more than that costs. Where the balance does not cover what all would read, the dearest
    takes less, or nothing: many that draft from parts share the draft's passes, a few that read all do not.
    parts_pay: drafts from a part of the context are expected to be worthwhile.
    """
    draft_s = each.loss_s(made, len(drafts), 1)
    options = [of for draft in drafts if (of := list(_options(made, each, draft, length, balance_s, parts_pay)))]
    likely = [first_token(each.rates(of[0].draft, part=False)) for of in options]
    dearest = [(-of[0].seconds, likely[place], place, 0) for place, of in enumerate(options)]
    heapify(dearest)
    first = len(options) > 1 and each.rates(drafts[0], part=parts_pay).seen < KNOWN_TOKENS
    share = PART_SHARE if first else 1.0
    total, room_s = sum(of[0].seconds for of in options), share * balance_s - draft_s
    while dearest and total > room_s and dearest[0][0] < 0:
        seconds, _, place, at = heappop(dearest)
        total += seconds
        if at + 1 < len(options[place]):
            total += options[place][at + 1].seconds
            heappush(dearest, (-options[place][at + 1].seconds, likely[place], place, at + 1))
    reads = [options[place][at] for *_, place, at in sorted(dearest, key=lambda each: each[2])]
    return Contexts(
        reads, sum(each.seconds for each in reads), (draft_s + sum(of[-1].seconds for of in options)) / share
    )


def _options(
    made: PassDrafts,
    each: PlannedAssistant,
    draft: RequestDraft,
    length: DraftLength,
    balance_s: float,
    parts_pay: bool,
) -> Iterator[ReadContext]:
    """Yield what the assistant could read of a request, the best first."""
    unread, skips = draft.now.unread[each.number], each.skips(draft)
    wins_s = won_s(made, draft, length.gain)
    if skips:
        whole_s = each.reading_s(made, draft.now.length)
        if whole_s < (min(REREADING_SHARE * wins_s, balance_s / 2) if parts_pay else READING_SHARE * wins_s):
            yield ReadContext(draft, None, whole_s)
        if not parts_pay:
            return
    seconds = each.reading_s(made, unread)
    if unread <= READY:
        yield ReadContext(draft, ALL_UNREAD)
    elif seconds < READING_SHARE * wins_s or each.rates(draft, part=skips).seen < KNOWN_TOKENS:
        yield ReadContext(draft, ALL_UNREAD, seconds)
    soon = unread <= PARTS[0] and seconds + each.loss_s(made, 1, 1) <= balance_s + made.allowed_s(SOON_PASSES)
    if parts_pay and (skips or not soon):
        for size in PARTS:
            seconds = each.reading_s(made, size)
            if size < unread and (seconds <= PART_SHARE * balance_s or size == PARTS[-1]):
                yield ReadContext(draft, size, seconds)
