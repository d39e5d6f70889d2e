"""Which executor runs, and a decoder loaded on it."""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ipex_assist.env.errors import UsageError
from ipex_assist.executors import Decoder
from ipex_assist.models import find

if TYPE_CHECKING:
    import torch

    from ipex_assist.checkpoint import Checkpoint
    from ipex_assist.executors.kernels import Kernels

log = logging.getLogger("ipex_assist")

PRECISIONS = {"ipex": ("bf16", "fp32", "int8", "int4"), "torch": ("bf16", "fp32")}


def resolve_executor(executor: str, *precisions: str | None) -> str:
    """auto is ipex where it is installed, else torch. UsageError where it is missing or lacks a precision."""
    installed = importlib.util.find_spec("intel_extension_for_pytorch") is not None
    if executor == "ipex" and not installed:
        raise UsageError(
            "--executor ipex needs intel-extension-for-pytorch, which is not installed here: "
            "pip install 'ipex-assist[ipex]', or use --executor torch"
        )
    chosen = ("ipex" if installed else "torch") if executor == "auto" else executor
    for precision in precisions:
        if precision is not None and precision not in PRECISIONS[chosen]:
            raise UsageError(
                f"the {chosen} executor has no {precision} (only {', '.join(PRECISIONS[chosen])}): "
                "pip install 'ipex-assist[ipex]' and use --executor ipex, or choose another --precision"
            )
    return chosen


def make_kernels(executor: str, precision: str) -> Kernels:
    """The kernels of a resolved executor. Importing IPEX takes seconds, so it happens only here."""
    import torch

    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    if executor == "torch":
        from ipex_assist.executors.kernels import TorchKernels

        return TorchKernels(dtype)
    from ipex_assist.executors.ipex_kernels import IpexKernels, WeightOnlyKernels

    return IpexKernels(dtype) if precision in ("bf16", "fp32") else WeightOnlyKernels(precision)


def load_decoder(
    checkpoint: Checkpoint, precision: str, executor: str, *, progress: bool = False, exact: bool = True
) -> Decoder:
    """Load and pack a checkpoint whose architecture is one of ours.

    exact: find which row counts give equal bits, as a target must have it; a draft needs none of that.
    """
    import torch

    from ipex_assist.executors.decoder import TorchDecoder
    from ipex_assist.executors.exactness import find_plan, unchecked_plan
    from ipex_assist.executors.weights import load_weights, resolve

    architecture = find(checkpoint.architecture)
    assert architecture is not None, checkpoint.architecture
    spec = architecture.spec(checkpoint.config)
    sources = architecture.weights(spec)
    kernels = make_kernels(executor, precision)
    started = time.perf_counter()
    with torch.inference_mode():
        names = checkpoint.names()
        wanted = resolve(sources, names)
        tensors = _with_progress(checkpoint.tensors(wanted), len(wanted), checkpoint.source, progress)
        weights = load_weights(spec, sources, names, tensors, kernels)
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


def _with_progress(
    tensors: Iterator[tuple[str, torch.Tensor]], count: int, name: str, progress: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    if not progress:
        return tensors
    from tqdm import tqdm

    return iter(tqdm(tensors, total=count, desc=f"loading {name}", unit=" tensors", leave=False))
