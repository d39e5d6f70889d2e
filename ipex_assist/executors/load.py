"""Loads a checkpoint's weights on an executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.interface import Model
from ipex_assist.executors.registry import EXECUTORS, LoadRequest
from ipex_assist.models import find
from ipex_assist.models.weights import NotFiniteError, stored_form
from ipex_assist.quantization.precision import INT4_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipex_assist.checkpoints.base import Checkpoint
    from ipex_assist.executors.kv_memory import KvMemory


def load_model(
    checkpoint: Checkpoint,
    precision: str,
    executor: str,
    *,
    progress: bool = False,
    exact: bool = True,
    cache_packed: bool | None = False,
    table_of: Model | None = None,
    group: int = INT4_GROUP,
    kv_memory: KvMemory | None = None,
    kv_precision: str | None = None,
    quick: bool = False,
    before_packing: Callable[[], object] | None = None,
) -> Model:
    """Load and pack a checkpoint whose architecture is one of ours.

    exact: find which row counts give equal bits, as a target must have it; a draft needs none of that (nor does the
    native core, which is exact by its construction). cache_packed: keep the native core's packed weights on disk, and
    take them from there; None: where there is much room. table_of: a model of the same checkpoint, whose embedding is
    used where that can be. group: input columns that share an int4 scale, unless the checkpoint comes in groups of its
    own.
    kv_memory: what its keys and values may take, together with those of the models it works with. kv_precision: theirs,
    one of KV_PRECISIONS; None: that of attention. quick: be ready as soon as a first pass can run, though the passes
    behind it take a little longer then. before_packing: called before weights are read and packed, which takes long;
    what it raises ends the loading.
    Raises IpexAssistError where the checkpoint is not whole, or holds what is no number; UsageError for a precision its
    model cannot have.
    """
    spec, architecture = checkpoint.decoder_spec(), find(checkpoint.architecture)
    assert architecture is not None, checkpoint.architecture
    if precision == "mxfp4" and spec.experts is None:
        raise UsageError(f"{checkpoint.source} has no experts, and mxfp4 is theirs: choose another --precision")
    checkpoint.check_weights()  # before memory is taken for shapes that only the config has
    sources = stored_form(architecture.weights(spec), checkpoint.names())
    request = LoadRequest(
        checkpoint,
        spec,
        sources,
        precision,
        progress,
        exact,
        cache_packed,
        table_of,
        group,
        kv_memory,
        kv_precision,
        quick,
        before_packing,
    )
    try:
        return EXECUTORS[executor].load(request)
    except NotFiniteError as error:
        raise IpexAssistError(f"{checkpoint.source}: {error}") from None
