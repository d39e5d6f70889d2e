"""Which executor runs, and a decoder loaded on it."""

from __future__ import annotations

import importlib.util
import logging
from typing import TYPE_CHECKING

from ipex_assist.env.errors import UsageError

if TYPE_CHECKING:
    from ipex_assist.checkpoints.base import Checkpoint

log = logging.getLogger("ipex_assist")

PRECISIONS = {
    "native": ("bf16", "fp32", "int8", "int4"),
    "ipex": ("bf16", "fp32", "int8", "int4"),
    "torch": ("bf16", "fp32"),
}


EXECUTORS = ("auto", *PRECISIONS)


def resolve_executor(executor: str, *precisions: str | None) -> str:
    """auto is the best of native, ipex and torch that works here. UsageError where one is missing or lacks a precision.

    `precisions` None are ignored.
    """
    chosen = _best_executor() if executor == "auto" else executor
    if executor == "native":
        from ipex_assist.native.library import unavailable

        if reason := unavailable():
            raise UsageError(f"--executor native: {reason}; or use --executor {library_executor()}")
    if executor == "ipex" and not _ipex_installed():
        raise UsageError(
            "--executor ipex needs intel-extension-for-pytorch, which is not installed here: "
            "pip install 'ipex-assist[ipex]', or use --executor torch"
        )
    for precision in precisions:
        if precision is not None and precision not in PRECISIONS[chosen]:
            raise UsageError(
                f"the {chosen} executor has no {precision} (only {', '.join(PRECISIONS[chosen])}): use native"
                " or, with intel-extension-for-pytorch installed (pip install 'ipex-assist[ipex]'), --executor ipex; "
                "or choose another --precision"
            )
    return chosen


def stored_precision(checkpoint: Checkpoint, executor: str) -> str | None:
    """The precision of a checkpoint that is quantized already, where its executor has that; None for any other."""
    from ipex_assist.checkpoints.quantized import QuantizedCheckpoint

    if not isinstance(checkpoint, QuantizedCheckpoint) or checkpoint.why_not_ours():
        return None
    if not checkpoint.modules:
        return None
    if executor == "native":
        return "int4"
    log.warning(
        "%s is quantized to 4 bits, which the %s executor does not read: its weights become bf16, 4 times as large "
        "(--executor native keeps them)",
        checkpoint.source,
        executor,
    )
    return "bf16"


def compute_threads() -> int:
    """Threads that models run on: the native core's where it is in use, else torch's."""
    import torch

    from ipex_assist.native.library import pool_threads

    return pool_threads() or torch.get_num_threads()


def library_executor() -> str:
    """The better of the executors that run on a library: what models without a spec of ours use, too."""
    return "ipex" if _ipex_installed() else "torch"


def _best_executor() -> str:
    from ipex_assist.native.library import unavailable

    reason = unavailable()
    if reason is None:
        return "native"
    log.warning("using --executor %s: %s", library_executor(), reason)
    return library_executor()


def _ipex_installed() -> bool:
    return importlib.util.find_spec("intel_extension_for_pytorch") is not None
