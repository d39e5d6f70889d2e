"""Bytes that a model takes on the core, told by the core itself before anything is loaded. Never imports torch."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models.attention_spec import AttentionSpec, LatentSpec
from ipex_assist.models.draft_head import HeadSpec
from ipex_assist.models.mlp_spec import Experts
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.native.library import kernels, last_error, library
from ipex_assist.native.structures import PRECISIONS, layer_specs, model_spec
from ipex_assist.quantization.precision import kv_precision_of

PASS_ROWS = 256  # rows of one pass at most: bounds the activations, and is many enough for full speed
PENDING_ROWS = 16  # states.h: PENDING_ROWS. Rows of a sequence after the state of its recurrent layers.
_TILE_QUERIES = 64  # pass_plan.cpp
_UP_COLUMNS = 256
_DECODE_ROWS = 16  # kernels.h: DECODE_ROWS
_PADDED_ROWS = 32  # activations.h: PADDED_ROWS
_BLOCK = 256  # kernels.h: BLOCK_POSITIONS
_SPLIT_BLOCKS = 8  # kernels.h: SPLIT_BLOCKS
_HUGE_PAGE_FLOATS = (2 << 20) // 4
_ROTATION_ROWS = 1024  # that a table of rotations has at least


@dataclass(frozen=True)
class CoreSizes:
    """image: packed weights. block: the keys and values of 256 positions. state: of a text's recurrent layers."""

    image: int
    block: int
    state: int


def core_sizes(
    spec: DecoderSpec, precision: str, group: int, outer_precision: str | None = None, kv_precision: str | None = None
) -> CoreSizes:
    """What a PackedModel of these arguments takes, with keys and values in this precision (None: that of attention).

    Raises IpexAssistError where the core cannot run it.
    """
    handle = new_model(spec, precision, group, outer_precision)
    core, kv = library(), PRECISIONS[kv_precision_of(precision, kv_precision)]
    try:
        return CoreSizes(
            int(core.ia_model_bytes(handle)), int(core.ia_block_bytes(handle, kv)), int(core.ia_state_bytes(handle))
        )
    finally:
        core.ia_model_delete(handle)


def new_model(
    spec: DecoderSpec, precision: str, group: int, outer_precision: str | None = None, ordered: bool = False
) -> int:
    """A handle of the core's for a model without memory. Raises IpexAssistError where the core refuses it."""
    layers = layer_specs(spec, precision)
    model = model_spec(spec, precision, group, outer_precision, ordered)
    handle = library().ia_model_new(kernels(), ctypes.byref(model), layers)
    if not handle:
        raise IpexAssistError(f"the native core failed: {last_error()}")
    return int(handle)


def workspace_bytes(spec: DecoderSpec, threads: int, wanted: int, context: int, nodes: int = 1) -> int:
    """Bytes that buffers and tables of passes take at most: by `threads` threads, after `context` tokens at most.

    nodes: memory nodes of the threads; what all threads read is there once for each (operations/activations.h).

    wanted: rows of a pass whose logits are wanted; what a sampler makes of them counts as much again.
    """
    width = max(spec.hidden_size, spec.embedding_size or 0, spec.per_layer_size, _read_size(spec)) + 16
    copied = _node_floats(spec, width) + max(_slot_input_floats(layer, width) for layer in spec.layers)
    return int(
        4
        * (
            _row_floats(spec, width)
            + max(_slot_floats(layer, width) for layer in spec.layers)
            + (copied if nodes == 1 else nodes * (copied + _HUGE_PAGE_FLOATS))
            + threads * _thread_floats(spec, width)
            + max((_partial_floats(each, context) for each in spec.attentions), default=0)
            + 2 * wanted * (spec.lm_head_rows + 16)
            + 2 * spec.rotary_width * max(context, _ROTATION_ROWS)
        )
    )


def _depth(spec: DecoderSpec, width: int) -> int:
    """Columns of the widest rows that a linear reads."""
    inner = max(max(layer.inner_size, layer.mixer_out_size, spec.per_layer_size) for layer in spec.layers)
    rows = max((each.latent.query_rank or 0 for each in spec.attentions if each.latent is not None), default=0)
    return max(width, inner, rows, _entering(spec)) + 64


def _entering(spec: DecoderSpec) -> int:
    """Columns of what enters a draft head: hidden states of its target, or one beside an embedding."""
    return 0 if spec.head is None else max(spec.head.input_size, 2 * spec.hidden_size, 2 * _read_size(spec))


def _read_size(spec: DecoderSpec) -> int:
    """Columns of a hidden state of the target, of a head that gives such rows as well; else 0."""
    return spec.head.input_size if spec.head is not None and spec.head.kind == "shared_kv" else 0


def _row_floats(spec: DecoderSpec, width: int) -> float:
    """Of the rows of a pass between its linears."""
    latents = [each for each in spec.attentions if each.latent is not None]
    attended = max([layer.mixer_out_size for layer in spec.layers] + [a.heads * a.value_width for a in latents]) + 16
    qkv = max([layer.mixer_in_size for layer in spec.layers] + [a.query_size + a.qkv_size for a in latents]) + 96
    inner = max(max(layer.inner_size, spec.per_layer_size) for layer in spec.layers) + 16
    per_layer = spec.num_hidden_layers * spec.per_layer_size + 16
    heads = max((a.heads * _head_columns(a.latent) + 16 for a in latents if a.latent is not None), default=0)
    given = _entering(spec) + (width if spec.head is not None else 0)  # a copy of hidden states, and those fed back
    given += _head_floats(spec.head, width) if spec.head is not None else 0
    return PASS_ROWS * (width + qkv + attended + heads + inner + per_layer + given) + _scan_floats(spec)


def _head_floats(head: HeadSpec, width: int) -> int:
    """Of a row: scores of clusters; what convolutions read, and what scales them; candidates and what chooses them."""
    scales = 2 * head.conv_taps * width // head.conv_group + width if head.conv_taps else 0
    return head.clusters + head.clusters_read + scales + 2 * head.candidates + head.selector_rank + 48


def _head_columns(latent: LatentSpec) -> int:
    """Of a head's query before it is absorbed, and of its values, which lie in the same place."""
    return max(latent.nope_dim + latent.rope_dim, latent.value_dim)


def _scan_floats(spec: DecoderSpec) -> int:
    """Of rows after the convolution of recurrent layers: those of a pass, and of up to 16 segments those before it."""
    widths = [
        (4 if s.kind == "kimi_delta" else 2) * s.key_heads * (s.key_dim + 16)
        + s.heads * (s.value_dim + 18)
        + 32
        + (s.value_size if s.kind == "mamba1" else 0)  # of the channels' steps
        for s in spec.recurrents
        if s.scans
    ]
    return (PASS_ROWS + 16 * PENDING_ROWS) * max(widths, default=0)


def _node_floats(spec: DecoderSpec, width: int) -> float:
    """Of rows that all threads read: the inputs of linears, and what is added to the residual stream."""
    inner = max(max(layer.inner_size, spec.per_layer_size) for layer in spec.layers) + 16
    return PASS_ROWS * (width + 1.1 * _depth(spec, width)) + 1.1 * _PADDED_ROWS * (inner + 128)


def _thread_floats(spec: DecoderSpec, width: int) -> float:
    """Of what each thread has for itself, with the rows that it prepares."""
    own = _DECODE_ROWS * width + 1.1 * _PADDED_ROWS * (width + 128)
    attention: float = max(
        ((_TILE_QUERIES + each.group) * (4 * (each.head_dim + 32) + 2 * _BLOCK + 32) for each in spec.attentions),
        default=0,
    )
    latents = [each.latent for each in spec.attentions if each.latent is not None]
    attention += max((1.1 * PASS_ROWS * (max(each.nope_dim, each.rank) + 128) for each in latents), default=0)
    attention += max((16 * (each.key_dim + 16) for each in spec.recurrents), default=0)
    attention += max(
        (1.1 * PASS_ROWS * (each.gate_rank + 128) for each in spec.recurrents if each.gate_rank), default=0
    )
    return 2 * width + _depth(spec, width) + _entering(spec) + PASS_ROWS * _UP_COLUMNS + attention + own


def _partial_floats(attention: AttentionSpec, context: int) -> int:
    """Of the partials of split KV: of blocks for few rows, of runs of blocks for many."""
    blocks = -(-context // _BLOCK)
    runs = -(-blocks // _SPLIT_BLOCKS)
    partials = max(blocks * _DECODE_ROWS, runs * PASS_ROWS if runs > 1 else 0)
    return partials * attention.heads * (attention.head_dim + 32)


def _slot_floats(layer: LayerSpec, width: int) -> float:
    """Of the outputs of experts (experts.cpp) and the router's logits, where a layer has experts."""
    experts = layer.experts
    if experts is None:
        return 0
    return sum(slots * (width + 128 + inner) for slots, inner in _slots(experts)) + PASS_ROWS * (experts.count + 48)


def _slot_input_floats(layer: LayerSpec, width: int) -> float:
    """Of the inputs of experts' linears, a row for each expert of a token."""
    if layer.experts is None:
        return 0
    slots = _slots(layer.experts)
    rows = sum(count * (width + 128 + inner) for count, inner in slots)
    return 1.1 * (rows + _PADDED_ROWS * (width + 128 + sum(inner for _, inner in slots)))


def _slots(experts: Experts) -> list[tuple[int, int]]:
    """Rows of a full pass, and columns of each: of the experts that tokens are routed to, of those of all tokens."""
    slots = [(PASS_ROWS * experts.per_token, experts.intermediate_size + 128)]
    if experts.shared_size:
        slots.append((PASS_ROWS, experts.shared_size + 128))
    return slots
