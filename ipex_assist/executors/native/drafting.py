"""Drafts of several sequences: a model's own, a head's over its target's keys and values, and blocks."""

from __future__ import annotations

import ctypes
from collections import abc

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import DraftInput, check_rows
from ipex_assist.executors.native.drafts import CoreDrafts, check_draft, context_rows, draft_rows
from ipex_assist.executors.native.passes import NativePasses
from ipex_assist.executors.native.segments import TokenSegment, cut_into_passes
from ipex_assist.executors.native.sequence import NativeSequence
from ipex_assist.models.draft_head import HeadSpec
from ipex_assist.native.rows import PASS_ROWS, PENDING_ROWS

Draft = tuple[list[int], list[float]]  # tokens, and the probability of each


def draft_many(model: NativePasses, requests: abc.Sequence[DraftInput], vocabulary: int | None = None) -> list[Draft]:
    """`Model.draft_many` (executors/interface.py) of a native model."""
    head = model.spec.head
    blocks = head is not None and head.kind == "dflash"
    over_target = head is not None and head.kind == "shared_kv"
    wants = [(model.own(each.sequence), context_rows(each) if blocks else draft_rows(each)) for each in requests]
    for (own, rows), each in zip(wants, requests, strict=True):
        check_rows(own, rows)
        if not each.tokens or each.count < 1:
            raise IpexAssistError(f"{each.count} tokens to draft after {len(each.tokens)}: both must be at least 1")
        check_draft(model.spec, each)
    if not over_target:
        model.reserve([(own, rows + model.spare) for own, rows in wants])
    if blocks:
        assert head is not None
        return _draft_blocks(model, head, requests, vocabulary)
    draft = _draft_over_target if over_target else _draft
    drafts: list[Draft] = []
    for first in range(0, len(requests), PASS_ROWS):
        drafts += draft(model, requests[first : first + PASS_ROWS], vocabulary)
    return drafts


def _draft(model: NativePasses, requests: abc.Sequence[DraftInput], vocabulary: int | None) -> list[Draft]:
    """`draft_many` of at most PASS_ROWS sequences. Tokens that do not fit into one pass go through earlier ones."""
    segments, before = [], []
    for each in requests:
        own, count = model.own(each.sequence), len(each.tokens)
        own.begin(count)
        keep = min(count, PASS_ROWS // len(requests))
        hidden = (None, None) if each.hidden is None else (each.hidden[:-keep], each.hidden[-keep:])
        if keep < count:
            before.append(TokenSegment(own, each.tokens[:-keep], own.length, 0, hidden[0]))
        segments.append(TokenSegment(own, each.tokens[-keep:], own.length + count - keep, 1, hidden[1]))
    for group in cut_into_passes(before, model.pass_rows):
        model.append(group)
    batch, _keep = model.batch(segments, vocabulary or model.spec.vocab_size, [each.count for each in requests])
    drafts = CoreDrafts(requests, model.target_tokens, batch.vocabulary)

    def lengthen(segments: abc.Sequence[TokenSegment]) -> None:
        for index, segment in enumerate(segments):
            # The last token was not fed back. Truncating frees blocks reserved for tokens that were not drafted.
            end = segment.start + len(segment.tokens)
            segment.sequence.length = end + drafts.drafted[index] - 1
            if (state := segment.sequence.state) is not None:  # as drafting.cpp moves it on
                settle = state.after(segment.start, end, end + requests[index].count - 1)
                state.settled = max(settle, segment.sequence.length - PENDING_ROWS)
            segment.sequence.free_unused()

    model.run("ia_draft", batch, ctypes.byref(drafts.struct), appended=segments, after=lengthen)
    return drafts.all()


def _draft_over_target(model: NativePasses, requests: abc.Sequence[DraftInput], vocabulary: int | None) -> list[Draft]:
    """`_draft` of a head whose rows are all after the last one of its target's sequence, whose blocks it reads."""
    segments, targets = [], set()
    for each in requests:
        known = each.shared_kv
        assert isinstance(known, NativeSequence), f"keys and values of {type(known).__name__}"
        assert isinstance(known.model, NativePasses)
        targets.add(known.model)
        if model.rotary is not None:
            model.rotary.reach(known.length + 1)
        segments.append(TokenSegment(known, each.tokens, known.length, 1, each.hidden))
    [target] = targets
    counts = [each.count for each in requests]
    batch, _keep = model.batch(segments, vocabulary or model.spec.vocab_size, counts, target.memory)
    drafts = CoreDrafts(requests, model.token_order)
    model.run("ia_draft", batch, ctypes.byref(drafts.struct))
    return drafts.all()


def _draft_blocks(
    model: NativePasses, head: HeadSpec, requests: abc.Sequence[DraftInput], vocabulary: int | None
) -> list[Draft]:
    """Of a head that drafts blocks: hidden states become keys and values, then blocks pass at once."""
    context, blocks = [], []
    for each in requests:
        own, rows = model.own(each.sequence), context_rows(each)
        if rows:
            own.begin(rows)
            context.append(TokenSegment(own, [head.mask_token] * rows, own.length, 0, each.hidden))
        tokens = [*each.tokens, *[head.mask_token] * (head.block_rows - 1)]
        after = head.block_size - 1 - each.count
        blocks.append(TokenSegment(own, tokens, own.length + rows, each.count, None, after))
    for group in cut_into_passes(context, model.pass_rows):
        model.append(group)
    found: list[Draft] = []
    together = PASS_ROWS // head.block_rows
    for first in range(0, len(blocks), together):
        batch, _keep = model.batch(blocks[first : first + together], vocabulary or model.spec.vocab_size)
        drafts = CoreDrafts(requests[first : first + together], model.target_tokens)
        model.run("ia_draft", batch, ctypes.byref(drafts.struct))
        found += drafts.all()
    for segment in blocks:
        segment.sequence.free_unused()  # the rows of its block are not the sequence's
    return found
