"""Bytes that a model takes on the core, told by the core itself before anything is loaded. Never imports torch."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.native.library import kernels, last_error, library
from ipex_assist.native.structures import PRECISIONS, native_spec
from ipex_assist.quantization.precision import kv_precision_of

PASS_ROWS = 256  # rows of one pass at most: bounds the activations, and is many enough for full speed
_TILE_QUERIES = 64  # pass_plan.cpp
_UP_COLUMNS = 256
_DECODE_ROWS = 16  # kernels.h: DECODE_ROWS
_PADDED_ROWS = 32  # activations.h: PADDED_ROWS
_BLOCK = 256  # kernels.h: BLOCK_POSITIONS
_ROTATION_ROWS = 1024  # that a table of rotations has at least


@dataclass(frozen=True)
class CoreSizes:
    """image: packed weights. block: the keys and values of 256 positions."""

    image: int
    block: int


def core_sizes(
    spec: DecoderSpec, precision: str, group: int, outer_precision: str | None = None, kv_precision: str | None = None
) -> CoreSizes:
    """What a PackedModel of these arguments takes, with keys and values in this precision (None: that of attention).

    Raises IpexAssistError where the core cannot run it.
    """
    handle = new_model(spec, precision, group, outer_precision)
    core, kv = library(), PRECISIONS[kv_precision_of(precision, kv_precision)]
    try:
        return CoreSizes(int(core.ia_model_bytes(handle)), int(core.ia_block_bytes(handle, kv)))
    finally:
        core.ia_model_delete(handle)


def new_model(
    spec: DecoderSpec, precision: str, group: int, outer_precision: str | None = None, ordered: bool = False
) -> int:
    """A handle of the core's for a model without memory. Raises IpexAssistError where the core refuses it."""
    described = native_spec(spec, precision, group, outer_precision, ordered)
    layers = range(spec.num_hidden_layers)
    tables = [-1 if (table := spec.rotation(layer)) is None else table for layer in layers]
    handle = library().ia_model_new(
        kernels(),
        ctypes.byref(described),
        (ctypes.c_int32 * len(layers))(*(spec.window(layer) or 0 for layer in layers)),
        (ctypes.c_int32 * len(layers))(*tables),
        (ctypes.c_float * len(spec.alibi))(*spec.alibi) if spec.alibi else None,
    )
    if not handle:
        raise IpexAssistError(f"the native core failed: {last_error()}")
    return int(handle)


def workspace_bytes(spec: DecoderSpec, threads: int, wanted: int, context: int) -> int:
    """Bytes that buffers and tables of passes take at most: by so many threads, behind `context` tokens at most.

    wanted: rows of a pass whose logits are wanted; what a sampler makes of them counts as much again.
    """
    width = max(spec.hidden_size, spec.embedding_size or 0) + 16
    attended, qkv = spec.query_size + 16, spec.query_size + 2 * spec.key_value_size + 48
    inner, depth = spec.intermediate_size + 16, max(width, spec.intermediate_size, spec.query_size) + 64
    head = spec.head_dim + 32
    rows = PASS_ROWS * (2 * width + qkv + attended + inner + 1.1 * depth) + 1.1 * _PADDED_ROWS * (inner + 128)
    queries = _TILE_QUERIES + spec.num_attention_heads // spec.num_key_value_heads
    own = _DECODE_ROWS * width + 1.1 * _PADDED_ROWS * (width + 128)  # of rows that each thread prepares itself
    scratch = 2 * width + depth + PASS_ROWS * _UP_COLUMNS + queries * (4 * head + 2 * _BLOCK + 32) + own
    partials = -(-context // _BLOCK) * spec.num_attention_heads * _DECODE_ROWS * head
    slots = _slot_floats(spec, width)
    logits = 2 * wanted * (spec.vocab_size + 16)
    rotation = 2 * spec.rotary_size * len(spec.ropes) * max(context, _ROTATION_ROWS)
    return int(4 * (rows + slots + threads * scratch + partials + logits + rotation))


def _slot_floats(spec: DecoderSpec, width: int) -> float:
    """Of the buffers of experts' rows (experts.cpp), where a layer has experts."""
    if spec.experts is None:
        return 0
    chosen, inner = PASS_ROWS * spec.experts.per_token, spec.intermediate_size + 128
    shared, shared_inner = (PASS_ROWS, spec.experts.shared_size + 128) if spec.experts.shared_size else (0, 0)
    padding = 1.1 * _PADDED_ROWS * (width + 128 + inner + shared_inner)
    slots = (chosen + shared) * 2.1 * (width + 128) + 2.1 * (chosen * inner + shared * shared_inner)
    return slots + padding + PASS_ROWS * (spec.experts.count + 48)
