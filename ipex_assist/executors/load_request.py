"""What an executor is asked to load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.executors.interface import Model
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.models import Source, find
from ipex_assist.models.head_common import DraftHead
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import stored_form
from ipex_assist.quantization.precision import INT4_GROUP

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class LoadRequest:
    """A checkpoint whose architecture is one of ours, and how it is to be loaded.

    executor: a name in `registry.EXECUTORS`. exact: find the row counts that give equal bits, as a target needs; a
    draft model does not, and the native core is exact by construction. cache_packed: keep the native core's packed
    weights on disk and take them from there; None: where the disk has much room. table_of: a model of the same
    checkpoint, whose embedding is shared where possible. group: input columns that share an int4 scale, unless the
    checkpoint comes in groups of its own.
    kv_memory: limit of its keys and values, together with those of the models it works with. kv_precision: theirs, one
    of KV_PRECISIONS; None: that of attention. resident: bytes of its weights in memory at most, where experts are read
    as they are needed; None: all are in memory. quick: be ready as soon as a first pass can run, even if the passes
    after it take a little longer at first. aside: called when the core is about to check a packed copy, to start what
    this process can do meanwhile. before_packing: called before weights are read and packed, which takes long; an
    exception in it ends the loading. later: gets what a first token need not wait for, to be called by whoever gave the
    list; None: all is done at once.
    """

    checkpoint: Checkpoint
    precision: str
    executor: str
    exact: bool = True
    cache_packed: bool | None = False
    table_of: Model | None = None
    group: int = INT4_GROUP
    kv_memory: KvMemory | None = None
    kv_precision: str | None = None
    resident: int | None = None
    quick: bool = False
    aside: Callable[[], object] | None = None
    before_packing: Callable[[], object] | None = None
    later: list[Callable[[], object]] | None = None

    @cached_property
    def spec(self) -> DecoderSpec:
        """What the checkpoint's config says."""
        return self.checkpoint.decoder_spec()

    @cached_property
    def sources(self) -> dict[str, Source]:
        """Where in the checkpoint each of our weights is."""
        architecture = find(self.checkpoint.architecture)
        assert architecture is not None, self.checkpoint.architecture
        return stored_form(architecture.weights(self.spec), self.checkpoint.names())


@dataclass(frozen=True)
class HeadRequest(LoadRequest):
    """A draft head in a checkpoint, which may be its target's own.

    target: the loaded model whose hidden states it reads; it shares the embedding and lm_head where the head says so.
    token_order: of a head with clusters, as in Model.
    """

    head: DraftHead | None = None
    target: Model | None = None
    token_order: NDArray[np.int32] | None = None

    @cached_property
    def spec(self) -> DecoderSpec:
        """What the head's config says."""
        assert self.head is not None, "a request for no head"
        return self.head.spec

    @cached_property
    def sources(self) -> dict[str, Source]:
        """Where in the checkpoint each of its own weights is."""
        assert self.head is not None, "a request for no head"
        return stored_form(self.head.sources, self.checkpoint.names())
