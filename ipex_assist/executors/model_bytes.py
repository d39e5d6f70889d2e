"""How many bytes a model takes on an executor, before it is loaded: weights, keys and values, buffers of its passes.

Never imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from ipex_assist import launch
from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.checkpoints.gguf import GgufCheckpoint
from ipex_assist.checkpoints.quantized import QuantizedCheckpoint
from ipex_assist.executors.planned_bytes import ModelBytes
from ipex_assist.executors.traffic import linear_bytes, per_layer_table_bytes, table_bytes
from ipex_assist.models import Source, find
from ipex_assist.models.head_common import DraftHead
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import stored_form
from ipex_assist.native.library import memory_nodes
from ipex_assist.native.rows import BLOCK
from ipex_assist.native.sizes import PlannedPasses, core_sizes
from ipex_assist.quantization.precision import INT4_GROUP, float_head_precision, kv_precision_of, kv_sizes


def native_bytes(
    spec: DecoderSpec,
    precision: str,
    *,
    wanted: int,
    longest: int | None = None,
    group: int = INT4_GROUP,
    outer_precision: str | None = None,
    kv_precision: str | None = None,
    formats: Mapping[str, int] = MappingProxyType({}),
    resident: int | None = None,
) -> ModelBytes:
    """Of the native core, as it says itself. wanted: rows of a pass whose logits are wanted. longest: tokens of a text;
    as many as the model reads where None. kv_precision: of keys and values, that of attention where None. formats: of
    weights that have one of their own. resident: bytes of weights that are in memory, as far as these are experts.

    Raises IpexAssistError where the core cannot run it.
    """
    context = spec.context_length
    length = context if longest is None else min(longest, context)
    largest = PlannedPasses(wanted, length, planned_threads(), planned_nodes())
    sizes = core_sizes(
        *(spec, precision, group, largest),
        outer_precision=outer_precision,
        kv_precision=kv_precision,
        formats=formats,
        resident=resident or 0,
    )
    return ModelBytes(
        weights=sizes.image,
        table=0 if spec.learned_positions else table_bytes(spec, precision) - per_layer_table_bytes(spec, precision),
        unit=BLOCK,
        unit_bytes=sizes.block,
        context=context,
        workspace=sizes.workspace,
        state_bytes=sizes.state,
    )


def library_bytes(spec: DecoderSpec, precision: str, *, kv_precision: str | None = None) -> ModelBytes:
    """Of the other executors, whose keys and values are as long as the text."""
    weights = linear_bytes(spec, precision) + table_bytes(spec, precision)
    per_token = spec.kv_bytes_per_token(*kv_sizes(kv_precision_of(precision, kv_precision)))
    states = sum(each.recurrent.state_bytes for each in spec.layers if each.recurrent is not None)
    return ModelBytes(weights, 0, 1, per_token, spec.context_length, 0, states)


def checkpoint_bytes(
    checkpoint: Checkpoint,
    precision: str,
    *,
    wanted: int,
    longest: int | None = None,
    group: int = INT4_GROUP,
    kv_precision: str | None = None,
    resident: int | None = None,
) -> ModelBytes:
    """`native_bytes` of a checkpoint at the precision that it will have; what is stored so keeps its groups."""
    spec, architecture = checkpoint.config_spec(), find(checkpoint.architecture)
    assert architecture is not None, checkpoint.architecture
    if isinstance(checkpoint, (GgufCheckpoint, QuantizedCheckpoint)) and precision == "stored":
        formats = checkpoint.block_formats(spec, stored_form(architecture.weights(spec), checkpoint.names()))
        sizes = native_bytes(
            *(spec, precision),
            wanted=wanted,
            longest=longest,
            kv_precision=kv_precision,
            formats=formats,
            resident=resident if spec.experts is not None else None,
        )
        return replace(sizes, table=0)  # which is shared by nobody, or the head
    if not isinstance(checkpoint, QuantizedCheckpoint) or precision != checkpoint.stored_precision:
        return native_bytes(spec, precision, wanted=wanted, longest=longest, group=group, kv_precision=kv_precision)
    return native_bytes(
        spec,
        precision,
        wanted=wanted,
        longest=longest,
        group=stored_group(checkpoint),
        outer_precision=stored_outer_precision(checkpoint, architecture.weights(spec)),
        kv_precision=kv_precision,
    )


def head_bytes(
    checkpoint: Checkpoint,
    head: DraftHead,
    precision: str,
    *,
    wanted: int,
    longest: int | None = None,
    group: int = INT4_GROUP,
    kv_precision: str | None = None,
) -> ModelBytes:
    """`native_bytes` of a draft head in a checkpoint, without what it shares with its target."""
    formats: Mapping[str, int] = {}
    if isinstance(checkpoint, (GgufCheckpoint, QuantizedCheckpoint)) and precision == "stored":
        formats = checkpoint.block_formats(head.spec, stored_form(head.sources, checkpoint.names()))
    return native_bytes(
        *(head.spec, precision),
        wanted=wanted,
        longest=longest,
        group=group,
        kv_precision=kv_precision,
        formats=formats,
    )


def stored_outer_precision(checkpoint: QuantizedCheckpoint, sources: dict[str, Source]) -> str:
    """The precision of the head of a checkpoint that is kept as it is stored."""
    head = sources.get("lm_head.weight")
    quantized = head is not None and any(name in checkpoint.modules for name in (head.name, *head.alternatives))
    return checkpoint.stored_precision or "bf16" if quantized else float_head_precision(checkpoint.stored_precision)


def stored_group(checkpoint: QuantizedCheckpoint) -> int:
    """The group size of the core's int4 for a checkpoint that is kept as it is stored."""
    return checkpoint.core_group() if checkpoint.stored_precision == "int4" else INT4_GROUP


def planned_threads() -> int:
    """Threads that the launcher has planned for this process; as many as it may run on where there is no plan."""
    plan = launch.inherited_plan(os.environ)
    return plan.threads if plan is not None else len(os.sched_getaffinity(0))


def planned_nodes() -> int:
    """Memory nodes of the CPUs that the launcher has planned; 1 without a plan, as threads then have no place."""
    plan = launch.inherited_plan(os.environ)
    return memory_nodes(plan.cpus) if plan is not None else 1
