"""Rows of sequences as segments of passes: which pass each goes in, and what a sequence has after one."""

from __future__ import annotations

import contextlib
from collections import abc
from collections.abc import Iterator
from typing import NamedTuple

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import Tokens
from ipex_assist.executors.native.sequence import NativeSequence
from ipex_assist.executors.rope import Floats
from ipex_assist.native.rows import PASS_ROWS


class TokenSegment(NamedTuple):
    """Consecutive tokens of one sequence in a pass, from position `start` on; `last` of them get logits."""

    sequence: NativeSequence
    tokens: Tokens
    start: int
    last: int
    hidden: Floats | None = None  # of a draft head's rows, as in Rows
    after: int = 0  # tokens after those that get logits


def cut_into_passes(segments: abc.Sequence[TokenSegment], most: int) -> Iterator[list[TokenSegment]]:
    """Segments grouped into passes, in order, cut where a pass has `most` rows, or PASS_ROWS with logits."""
    whole = sum([len(each.tokens) for each in segments])
    if segments and whole <= most and (whole <= PASS_ROWS or sum([each.last for each in segments]) <= PASS_ROWS):
        yield list(segments)
        return
    group: list[TokenSegment] = []
    room, logits = most, PASS_ROWS
    for each in segments:
        done, count = 0, len(each.tokens)
        while done < count:
            # Rows without logits come first.
            rows = min(count - done, room, max(0, count - done - each.last) + logits)
            if (images := each.sequence.images) is not None and rows < count - done:
                fitting = images.whole_rows(each.start + done, rows)
                if fitting > rows:  # an image that is read in one pass, the next one
                    if not group:
                        raise IpexAssistError(f"an image of {fitting} rows, and a pass has room for {rows}")
                    yield group
                    group, room, logits = [], most, PASS_ROWS
                    continue
                rows = fitting
            last = min(rows, max(0, each.last - (count - done - rows)))
            tokens, hidden = each.tokens[done : done + rows], each.hidden
            part = hidden if hidden is None else hidden[done : done + rows]
            group.append(TokenSegment(each.sequence, tokens, each.start + done, last, part))
            done, room, logits = done + rows, room - rows, logits - last
            if room == 0 or logits == 0:
                yield group
                group, room, logits = [], most, PASS_ROWS
    if group:
        yield group


@contextlib.contextmanager
def whole_states(segments: abc.Sequence[TokenSegment]) -> Iterator[None]:
    """Clear sequences with states where a signal ends the block: nobody knows whether the core has moved them on."""
    try:
        yield
    except IpexAssistError:  # the core refused the pass before it began
        raise
    except BaseException:
        for each in segments:
            if each.sequence.state is not None:
                each.sequence.truncate(0)
        raise


def lengthen(segments: abc.Sequence[TokenSegment]) -> None:
    """After a pass: its rows are their sequences'."""
    for each in segments:
        end = each.start + len(each.tokens)
        if (state := each.sequence.state) is not None:
            state.settled = state.after(each.start, end, end)
        each.sequence.length = end
