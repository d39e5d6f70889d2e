"""Loads a checkpoint's weights on an executor."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import Decoder
from ipex_assist.models import Source, find
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import NotFiniteError
from ipex_assist.quantization.precision import INT4_GROUP

if TYPE_CHECKING:
    from ipex_assist.checkpoints.base import Checkpoint
    from ipex_assist.executors.kernels import Kernels

log = logging.getLogger("ipex_assist")


def make_kernels(executor: str, precision: str, group: int = INT4_GROUP) -> Kernels:
    """The kernels of a resolved executor, int4 in groups of `group` input columns.

    Importing IPEX takes seconds, so it happens only here.
    """
    import torch

    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    if executor == "torch":
        from ipex_assist.executors.kernels import TorchKernels

        return TorchKernels(dtype)
    from ipex_assist.executors.ipex_kernels import IpexKernels, WeightOnlyKernels

    return IpexKernels(dtype) if precision in ("bf16", "fp32") else WeightOnlyKernels(precision, group)


def load_decoder(
    checkpoint: Checkpoint,
    precision: str,
    executor: str,
    *,
    progress: bool = False,
    exact: bool = True,
    cache_packed: bool = False,
    table_of: Decoder | None = None,
    group: int = INT4_GROUP,
) -> Decoder:
    """Load and pack a checkpoint whose architecture is one of ours.

    exact: find which row counts give equal bits, as a target must have it; a draft needs none of that (nor does the
    native core, which is exact by its construction). cache_packed: keep the native core's packed weights on disk, and
    take them from there. table_of: a decoder of the same checkpoint, whose embedding is used where that can be.
    group: input columns that share an int4 scale, unless the checkpoint comes in groups of its own. Raises
    IpexAssistError where the checkpoint is not whole, or holds what is no number.
    """
    try:
        return _load(checkpoint, precision, executor, progress, exact, cache_packed, table_of, group)
    except NotFiniteError as error:
        raise IpexAssistError(f"{checkpoint.source}: {error}") from None


def _load(
    checkpoint: Checkpoint,
    precision: str,
    executor: str,
    progress: bool,
    exact: bool,
    cache_packed: bool,
    table_of: Decoder | None,
    group: int,
) -> Decoder:
    import torch

    spec, architecture = checkpoint.decoder_spec(), find(checkpoint.architecture)
    assert architecture is not None, checkpoint.architecture
    checkpoint.check_weights()  # before memory is taken for shapes that only the config has
    sources = architecture.weights(spec)
    started = time.perf_counter()
    with torch.inference_mode():
        if executor == "native":
            return _load_native(checkpoint, precision, spec, sources, progress, cache_packed, table_of, group)
        from ipex_assist.executors.decoder import TorchDecoder
        from ipex_assist.executors.exactness import find_plan, unchecked_plan
        from ipex_assist.executors.weights import load_weights

        kernels = make_kernels(executor, precision, group)
        names, tensors = _stream(checkpoint, sources, progress)
        weights = load_weights(spec, sources, names, tensors, kernels)
        if isinstance(table_of, TorchDecoder) and table_of.kernels.dtype == kernels.dtype:
            weights.embed_tokens = table_of.weights.embed_tokens
        loaded = time.perf_counter()
        plan = find_plan(spec, weights, kernels) if exact else unchecked_plan(kernels)
    log.info(
        "%s: %s on %s in %.1f s; passes of %s rows, keys by %d (%.2f s)",
        checkpoint.source,
        precision,
        executor,
        loaded - started,
        " or ".join(map(str, plan.sizes)),
        plan.key_block,
        time.perf_counter() - loaded,
    )
    return TorchDecoder(spec, weights, kernels, plan)


def _load_native(
    checkpoint: Checkpoint,
    precision: str,
    spec: DecoderSpec,
    sources: dict[str, Source],
    progress: bool,
    cache_packed: bool,
    table_of: Decoder | None,
    group: int,
) -> Decoder:
    import torch

    from ipex_assist.checkpoints.quantized import QuantizedCheckpoint
    from ipex_assist.env.memory import release_free_memory
    from ipex_assist.executors.native import NativeDecoder
    from ipex_assist.executors.native_int4 import int4_model, pack_stored
    from ipex_assist.executors.native_loading import pack_weights, planned_pool, spans_nodes
    from ipex_assist.executors.packed_cache import load_packed, packed_path, save_packed
    from ipex_assist.native.library import instruction_set
    from ipex_assist.native.model import NativeModel

    started = time.perf_counter()
    pool = planned_pool()
    # With one thread torch starts no pool of its own, which would spin against the core's.
    torch.set_num_threads(1)
    stored = checkpoint if precision == "int4" and isinstance(checkpoint, QuantizedCheckpoint) else None
    model = NativeModel(spec, precision, pool, group) if stored is None else int4_model(stored, spec, sources, pool)
    kept = packed_path(checkpoint, model) if cache_packed else None
    from_cache = kept is not None and load_packed(model, kept, copy=spans_nodes())
    # What is kept on disk must be whole; a mapped table takes no memory until it is read.
    if kept is None and isinstance(table_of, NativeDecoder):
        model.share_table(table_of.model)
    if not from_cache:
        if stored is not None:
            _, weights = _stream(stored, sources, progress, stored.stored)
            pack_stored(model, stored, sources, weights)
        else:
            names, tensors = _stream(checkpoint, sources, progress)
            pack_weights(model, sources, names, tensors)
        release_free_memory()
        if kept is not None:
            save_packed(model, kept)
    log.info(
        "%s: %s %s (%.2f GB) in %.1f s; native core with %s, %d threads",
        checkpoint.source,
        precision,
        f"from {kept}" if from_cache else "packed",
        model.nbytes / 1e9,
        time.perf_counter() - started,
        instruction_set(),
        pool.threads,
    )
    return NativeDecoder(model)


def _stream(
    checkpoint: Checkpoint,
    sources: dict[str, Source],
    progress: bool,
    read: Callable[[Iterable[str]], Iterator[tuple[str, Any]]] | None = None,
) -> tuple[list[str], Iterator[tuple[str, Any]]]:
    """All names of a checkpoint, and the tensors that `sources` needs of it (or what `read` gives by their names)."""
    from ipex_assist.models.weights import resolve

    names = list(checkpoint.names())
    wanted = resolve(sources, names)
    return names, _with_progress((read or checkpoint.tensors)(wanted), len(wanted), checkpoint.source, progress)


def _with_progress(
    tensors: Iterator[tuple[str, Any]], count: int, name: str, progress: bool
) -> Iterator[tuple[str, Any]]:
    if not progress:
        return tensors
    from tqdm import tqdm

    return iter(tqdm(tensors, total=count, desc=f"loading {name}", unit=" tensors", leave=False))
