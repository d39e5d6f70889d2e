"""Recurrent mixers, one token at a time: the readable reference of what the native core computes.

A kind has a file of its own with the arithmetic of one token; here is the walk over rows, states and padding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from ipex_assist.executors.torch.mixers.gated_delta import GatedDelta
from ipex_assist.executors.torch.mixers.kimi_delta import KimiDelta
from ipex_assist.executors.torch.mixers.layer_rows import LayerRows
from ipex_assist.executors.torch.mixers.mamba1 import Mamba1
from ipex_assist.executors.torch.mixers.mamba2 import Mamba2
from ipex_assist.executors.torch.mixers.ngram_conv import Ngrams
from ipex_assist.executors.torch.mixers.recurrence import Recurrence, Vectors
from ipex_assist.executors.torch.mixers.rg_lru import RgLru
from ipex_assist.executors.torch.mixers.short_conv import ShortConv
from ipex_assist.executors.torch.mixers.states import LayerState
from ipex_assist.executors.torch.weights import Layer
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.native.rows import PENDING_ROWS

RECURRENCES: dict[str, type[Recurrence]] = {
    "gated_delta": GatedDelta,
    "kimi_delta": KimiDelta,
    "mamba1": Mamba1,
    "mamba2": Mamba2,
    "ngram_rows": Ngrams,
    "rg_lru": RgLru,
    "short_conv": ShortConv,
}


def mix_by_recurrence(x: torch.Tensor, rows: LayerRows) -> torch.Tensor:
    """Rows x (rows, hidden) → (rows, value_size)."""
    spec, layer, eps = rows.spec.layers[rows.index].recurrent, rows.weights, rows.spec.norm_eps
    assert spec is not None
    assert rows.states is not None, "a recurrent layer without states"
    state, start = rows.states.layers[rows.index], rows.metadata.start
    inputs = mixer_rows(spec, layer, x, eps, partial(convolved_values, spec, layer.vectors, state, start))
    parts = inputs.split(list(spec.all_parts.values()), 1)[: len(spec.input_parts)]
    rows.see("qkv_linear", "qkv", *(reversed(parts) if RECURRENCES[spec.kind].reversed_in_core else parts))
    return run_recurrent(spec, layer.vectors, eps, inputs, state, start, rows.metadata.count)


def run_recurrent(
    spec: RecurrentSpec,
    weights: Vectors,
    eps: float,
    rows: torch.Tensor,
    states: LayerState,
    start: int,
    count: int,
) -> torch.Tensor:
    """Rows (rows, columns) of the input linears, from position `start` on → (rows, value_size) for the output linear.

    The first `count` rows are the sequence's; those after them are padding, and leave nothing behind.
    """
    mixer, window = RECURRENCES[spec.kind](spec, weights, eps), spec.conv_kernel - 1
    known = rows.float()
    inputs = [*states.inputs, *known]
    at = {states.first + i: row for i, row in enumerate(inputs)}
    state, outputs = states.state, []
    settle = max(states.settled, min(states.confirmed, start), start + count - PENDING_ROWS)
    settled_state = state
    for position in range(states.settled, start + len(rows)):
        if position == settle:
            settled_state = state
        last_rows = [at.get(position - window + t) for t in range(spec.conv_kernel)]
        out, state = mixer.step(last_rows, state)
        if position >= start:
            outputs.append(mixer.gated(out, at[position]))
    if settle == start + len(rows):
        settled_state = state
    states.state, states.settled = settled_state, settle
    first = max(0, settle - window)
    states.inputs = [at[position] for position in range(first, start + count)]
    states.first = first
    return torch.stack(outputs).to(rows.dtype)


def mixer_rows(
    spec: RecurrentSpec,
    layer: Layer,
    x: torch.Tensor,
    eps: float,
    convolve: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Rows x (rows, hidden) → (rows, columns), all parts that the scan reads (RecurrentSpec.all_parts)."""
    return RECURRENCES[spec.kind](spec, layer.vectors, eps).inputs(layer, layer.qkv(x), convolve)


def convolved_values(
    spec: RecurrentSpec, weights: Vectors, states: LayerState, start: int, values: torch.Tensor
) -> torch.Tensor:
    """Rows of values (rows, value_size), from position `start` on, which are convolved before linears read them."""
    mixer = RECURRENCES[spec.kind](spec, weights, 0.0)
    known = [*(row[: spec.value_size] for row in states.inputs), *values.float()]
    at = {states.first + i: row for i, row in enumerate(known)}
    made = []
    for position in range(start, start + len(values)):
        last_rows = [at.get(position - spec.conv_kernel + 1 + t) for t in range(spec.conv_kernel)]
        made.append(mixer.convolved("v_in", last_rows))
    return torch.stack(made).to(values.dtype)
