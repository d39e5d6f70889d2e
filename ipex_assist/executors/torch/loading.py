"""Loads a model for the torch executor, or for the ipex executor, which differs in its kernels."""

from __future__ import annotations

import logging
import time

import torch

from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.env.phases import phase
from ipex_assist.executors.load_request import HeadRequest, LoadRequest
from ipex_assist.executors.tensor_stream import stream_tensors
from ipex_assist.executors.torch.exactness import find_plan, unchecked_plan
from ipex_assist.executors.torch.head import TorchHead
from ipex_assist.executors.torch.kernels import Kernels
from ipex_assist.executors.torch.model import TorchModel
from ipex_assist.executors.torch.weights import load_weights

log = logging.getLogger("ipex_assist")


@torch.inference_mode()
def load_torch(request: LoadRequest, kernels: Kernels, executor: str) -> TorchModel:
    """Pack a checkpoint's weights for `kernels`, and find the row counts that give equal bits with them."""
    started = time.perf_counter()
    if request.before_packing is not None:
        request.before_packing()
    spec, sources, table_of = request.spec, request.sources, request.table_of
    names, tensors = stream_tensors(request.checkpoint, sources, request.precision)
    target = request.target if isinstance(request, HeadRequest) else None
    assert target is None or isinstance(target, TorchModel), "a head on another executor than its target"
    weights = load_weights(spec, sources, names, tensors, kernels, None if target is None else target.weights)
    if isinstance(table_of, TorchModel) and table_of.kernels.dtype == kernels.dtype:
        weights.embed_tokens = table_of.weights.embed_tokens
    loaded = time.perf_counter()
    kv_precision = request.kv_precision
    with phase("finding which passes give equal bits"):
        plan = find_plan(spec, weights, kernels, kv_precision) if request.exact else unchecked_plan(kernels)
    log.info(
        "%s: %s on %s in %.1f s; passes of %s rows, keys by %d (%.2f s)",
        short_name(request.checkpoint.source),
        request.precision,
        executor,
        loaded - started,
        " or ".join(map(str, plan.sizes)),
        plan.key_block,
        time.perf_counter() - loaded,
    )
    made = TorchModel if spec.head is None else TorchHead
    model = made(spec, weights, kernels, plan, kv_precision)
    model.weight_names = frozenset(sources)
    return model
