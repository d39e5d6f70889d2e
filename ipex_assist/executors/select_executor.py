"""Selects the executor: the one named on the command line, or the first that works on this machine."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.env.errors import UsageError
from ipex_assist.env.versions import install_command
from ipex_assist.executors.registry import EXECUTORS
from ipex_assist.quantization.precision import LINEAR_BYTES

if TYPE_CHECKING:
    from ipex_assist.checkpoints.base import Checkpoint

log = logging.getLogger("ipex_assist")


def resolve_executor(executor: str, *precisions: str | None) -> str:
    """The name of the executor to use; "auto" becomes the first that works here. A precision of None is not checked.

    Raises UsageError where the executor is not available or lacks one of the precisions.
    """
    chosen = _first_available() if executor == "auto" else executor
    if executor != "auto" and (reason := EXECUTORS[executor].unavailable()):
        raise UsageError(f"--executor {executor}: {reason}; or use --executor {library_executor()}")
    known = EXECUTORS[chosen].precisions
    for precision in precisions:
        if precision is not None and precision not in known:
            raise UsageError(
                f"the {chosen} executor has no {precision} (only {', '.join(known)}): use native"
                f" or, with intel-extension-for-pytorch installed ({install_command('ipex')}), --executor ipex; "
                "or choose another --precision"
            )
    return chosen


def stored_precision(checkpoint: Checkpoint, executor: str) -> str | None:
    """The precision at which an already quantized checkpoint is loaded; None for one that is not quantized.

    Where the executor cannot keep it as it is stored, it is bf16, with a warning.
    """
    from ipex_assist.checkpoints.gguf import GgufCheckpoint
    from ipex_assist.checkpoints.mxfp4 import Mxfp4Checkpoint
    from ipex_assist.checkpoints.quantized import QuantizedCheckpoint

    if isinstance(checkpoint, GgufCheckpoint) and executor != "native":
        return None
    quantized = isinstance(checkpoint, (QuantizedCheckpoint, Mxfp4Checkpoint, GgufCheckpoint))
    if not quantized or checkpoint.why_not_ours():
        return None
    stored = checkpoint.stored_precision
    if stored is not None and stored in EXECUTORS[executor].precisions and executor == "native":
        return stored
    if isinstance(checkpoint, GgufCheckpoint):
        return None
    if isinstance(checkpoint, QuantizedCheckpoint) and stored is None:
        if not checkpoint.modules:
            return None
        log.warning(
            "%s: its linears are %s, which the native core does not keep as they are: they become bf16 "
            "(--precision int8 or int4 rounds them again)",
            short_name(checkpoint.source),
            checkpoint.described,
        )
        return "bf16"
    bits = 8 if stored is not None and LINEAR_BYTES[stored] >= 1 else 4
    log.warning(
        "%s is quantized to %d bits, which the %s executor does not read: its weights become bf16, %d times as large "
        "(--executor native keeps them)",
        short_name(checkpoint.source),
        bits,
        executor,
        16 // bits,
    )
    return "bf16"


def compute_threads() -> int:
    """How many threads models run on: the native core's where it is in use, else torch's."""
    from ipex_assist.deferred_imports import torch_module
    from ipex_assist.native.library import pool_threads

    return pool_threads() or int(torch_module().get_num_threads())


def library_executor() -> str:
    """The best executor here that runs on a library (IPEX, else torch). Models that transformers runs use it, too."""
    return next(name for name, executor in EXECUTORS.items() if name != "native" and executor.available())


def _first_available() -> str:
    for name, executor in EXECUTORS.items():
        reason = executor.unavailable()
        if reason is None:
            return name
        if name == "native":  # nobody chose to do without it, and it is faster: say why it is missing
            log.warning("using --executor %s: %s", library_executor(), reason)
    raise AssertionError("torch is always there")
