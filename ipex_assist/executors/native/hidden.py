"""Hidden states into and out of the native core: a draft head's input, and what a pass gives of its rows."""

from __future__ import annotations

import ctypes
from collections import abc
from collections.abc import Sized
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import HiddenRows
from ipex_assist.models.draft_head import HeadSpec
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.native.batch_structures import Batch, CTaps

Floats = NDArray[np.float32]
_STREAMS = {None: 0, "mean": 1, "all": 2}


class HasTokens(Protocol):
    """What has tokens, a row of hidden states for each."""

    @property
    def tokens(self) -> Sized:
        """Their ids."""
        ...

    @property
    def last(self) -> int:
        """How many rows have logits, the last ones."""
        ...


class TappedRows:
    """Hidden states of one call's rows, which its passes fill one after the other."""

    def __init__(self, hidden: HiddenRows, spec: DecoderSpec, rows: int) -> None:
        taps = hidden.taps
        if max(taps.layers) > spec.num_hidden_layers or min(taps.layers) < 0:
            raise IpexAssistError(
                f"hidden states of layers {taps.layers}: the model has those that enter its {spec.num_hidden_layers} "
                f"layers, and number {spec.num_hidden_layers}, which leaves the last one"
            )
        self._options = taps.normed, hidden.of_logit_rows, _STREAMS[taps.streams]
        self._of_logit_rows = hidden.of_logit_rows
        self._layers = (ctypes.c_int32 * len(taps.layers))(*taps.layers)
        self._rows = np.empty((rows, len(taps.layers) * spec.tap_width(taps)), np.float32)
        self._done = 0
        hidden.rows = self._rows

    @classmethod
    def of(cls, hidden: HiddenRows | None, spec: DecoderSpec, segments: abc.Sequence[HasTokens]) -> TappedRows | None:
        """Those that a call asks for; None where it asks for none."""
        if hidden is None:
            return None
        return cls(hidden, spec, sum(each.last if hidden.of_logit_rows else len(each.tokens) for each in segments))

    def next_pass(self, batch: Batch) -> None:
        """Ask the next pass for those of its rows."""
        rows = batch.logit_row_count if self._of_logit_rows else batch.rows
        part = self._rows[self._done : self._done + rows]
        batch.taps = CTaps(self._layers, len(self._layers), *self._options, part.ctypes.data)
        self._done += rows


def own_states(spec: DecoderSpec, hidden: Floats) -> bool:
    """Whether these are hidden states that an EAGLE-3 head computed itself: others are not told apart."""
    head = spec.head
    return head is not None and head.kind == "eagle3" and hidden.shape[1] != head.input_size


def check_hidden(spec: DecoderSpec, hidden: Floats | None, rows: int) -> None:
    """Raise IpexAssistError unless a draft head, and no other model, gets hidden states of `rows` rows."""
    head = spec.head
    if head is None:
        if hidden is not None:
            raise IpexAssistError("hidden states for a model that is no draft head")
        return
    widths = _widths(spec, head)
    if hidden is None or hidden.ndim != 2 or hidden.shape[0] != rows or hidden.shape[1] not in widths:
        given = "none" if hidden is None else str(hidden.shape)
        raise IpexAssistError(
            f"a draft head reads hidden states ({rows}, {' or '.join(str(width) for width in widths)}): {given} given"
        )


def check_logits(spec: DecoderSpec, last: int) -> None:
    """Raise IpexAssistError where logits are asked of a head that drafts blocks: hidden states alone have none."""
    if last and spec.head is not None and spec.head.kind == "dflash":
        raise IpexAssistError(f"logits of {last} rows of hidden states, which become keys and values alone")


def _widths(spec: DecoderSpec, head: HeadSpec) -> tuple[int, ...]:
    return (head.input_size, spec.hidden_size) if head.kind == "eagle3" else (head.input_size,)


def give_hidden(batch: Batch, spec: DecoderSpec, parts: abc.Sequence[Floats | None]) -> object:
    """Point a batch to the hidden states of its segments; returns what must live as long as it."""
    given = [np.ascontiguousarray(part, np.float32) for part in parts if part is not None]
    if not given:
        return None
    if len({part.shape[1] for part in given}) > 1:
        raise IpexAssistError("hidden states of the target and of the draft head itself in one pass")
    whole = given[0] if len(given) == 1 else np.concatenate(given)
    batch.hidden, batch.own_hidden = whole.ctypes.data, own_states(spec, whole)
    return whole
