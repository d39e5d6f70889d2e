"""Bytes that a model takes on the core, told by the core itself before anything is loaded. Never imports torch."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.native.library import kernels, last_error, library
from ipex_assist.native.rows import PASS_ROWS
from ipex_assist.native.structures import PRECISIONS, layer_specs, model_spec
from ipex_assist.quantization.precision import INT4_GROUP, kv_precision_of

_ROTATION_ROWS = 1024  # that a table of rotations has at least


@dataclass(frozen=True)
class PlannedPasses:
    """The passes that a plan of memory is for.

    wanted: rows of a pass whose logits are wanted. context: tokens of a text. threads, nodes: who runs them, and on how
    many memory nodes. rows: of a pass at most.
    """

    wanted: int
    context: int
    threads: int
    nodes: int = 1
    rows: int = PASS_ROWS


@dataclass(frozen=True)
class CoreSizes:
    """image: packed weights in memory. block: keys and values of 256 positions. state: of a text, in all layers.

    workspace: buffers, logits and tables of passes, without what adapters need.
    """

    image: int
    block: int
    state: int
    workspace: int


def core_sizes(
    spec: DecoderSpec,
    precision: str,
    group: int,
    largest: PlannedPasses,
    *,
    outer_precision: str | None = None,
    kv_precision: str | None = None,
    formats: Mapping[str, int] = MappingProxyType({}),
    resident: int = 0,
) -> CoreSizes:
    """What a PackedModel of these arguments takes, with keys and values in this precision (None: that of attention).

    Raises IpexAssistError where the core cannot run it.
    """
    core, kv = library(), PRECISIONS[kv_precision_of(precision, kv_precision)]
    with _model(spec, precision, group, outer_precision, formats, resident) as handle:
        return CoreSizes(
            int(core.ia_model_resident_bytes(handle)),
            int(core.ia_block_bytes(handle, kv)),
            int(core.ia_state_bytes(handle, kv)),
            workspace_bytes(handle, spec, largest),
        )


def weight_formats(spec: DecoderSpec, formats: Mapping[str, int]) -> dict[str, int]:
    """The formats that weights have in the core where they are to have these: bf16 beside parts of a linear in floats.

    Raises IpexAssistError where the core cannot run it.
    """
    with _model(spec, "stored", INT4_GROUP, None, formats) as handle:
        return {name: int(library().ia_model_format(handle, name.encode())) for name in formats}


@contextmanager
def _model(
    spec: DecoderSpec,
    precision: str,
    group: int,
    outer_precision: str | None,
    formats: Mapping[str, int],
    resident: int = 0,
) -> Iterator[int]:
    handle = new_model(spec, precision, group, outer_precision, formats=formats, resident=resident)
    try:
        yield handle
    finally:
        library().ia_model_delete(handle)


def new_model(
    spec: DecoderSpec,
    precision: str,
    group: int,
    outer_precision: str | None = None,
    ordered: bool = False,
    formats: Mapping[str, int] = MappingProxyType({}),
    resident: int = 0,
) -> int:
    """A handle of the core's for a model without memory. Raises IpexAssistError where the core refuses it.

    formats: of our weights that have one of their own, such as "layers.3.q_proj.weight", the core's numbers. resident:
    bytes of weights in memory at most, where routed experts are read as they are needed; 0: all are in memory.
    """
    layers = layer_specs(spec, precision)
    model = model_spec(spec, precision, group, outer_precision, ordered)
    names = (ctypes.c_char_p * len(formats))(*(name.removesuffix(".weight").encode() for name in formats))
    numbers = (ctypes.c_int32 * len(formats))(*formats.values())
    handle = library().ia_model_new(kernels(), ctypes.byref(model), layers, names, numbers, len(formats), resident)
    if not handle:
        raise IpexAssistError(f"the native core failed: {last_error()}")
    return int(handle)


def buffer_bytes(handle: int, largest: PlannedPasses) -> int:
    """Bytes of the core's buffers for such passes. Raises IpexAssistError where there are none."""
    passes = largest.rows, largest.wanted, largest.context, largest.threads, largest.nodes
    found = int(library().ia_workspace_bytes(handle, *passes))
    if found < 0:
        raise IpexAssistError(f"the native core failed: {last_error()}")
    return found


def workspace_bytes(handle: int, spec: DecoderSpec, largest: PlannedPasses) -> int:
    """Bytes that passes take beside weights, keys and values, and states.

    The core's buffers, tables of rotations, logits, of which a sampler makes as much again, and the hidden states that
    a draft head is given.
    """
    logits = 4 * largest.wanted * -(-spec.lm_head_rows // 16) * 16
    rotations = 4 * 2 * spec.rotary_width * max(largest.context, _ROTATION_ROWS)
    hidden = 4 * largest.rows * spec.head.input_size if spec.head is not None else 0
    return buffer_bytes(handle, largest) + 2 * logits + rotations + hidden
