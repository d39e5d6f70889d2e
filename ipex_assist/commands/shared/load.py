"""Loads both models for a command, and checks that they fit and start as planned."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ipex_assist import launch
from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.commands.shared.memory_need import MemoryNeed, check_memory, estimate_need, with_adapters, within
from ipex_assist.commands.shared.messages import quiet_stderr
from ipex_assist.commands.shared.native_runs import runs_native
from ipex_assist.commands.shared.relaunch import set_threads
from ipex_assist.commands.shared.resident_size import with_resident
from ipex_assist.env.phases import phase
from ipex_assist.generation.load_options import LoadOptions

log = logging.getLogger("ipex_assist")


def load_models(
    options: LoadOptions,
    max_new_tokens: int,
    threads: int | None = None,
    *,
    verbose: bool = False,
    checkpoints: OpenCheckpoints | None = None,
    lengths: Sequence[int] = (),
    torch_late: bool = False,
    later: list[Callable[[], object]] | None = None,
    most_tokens: int | None = None,
) -> tuple[Any, list[str]]:
    """Both models, and what is not as the launcher planned it.

    max_new_tokens: of texts to come, for which there must be room. threads: where no launcher has planned them.
    checkpoints: those that are open already. lengths: in tokens, of sequences that run at a time. torch_late: the
    native executor imports torch where it packs, or when a text is drawn, which may be never; else it is there when the
    first text comes. later: gets what need not be done before the first token, and must be called. most_tokens: see
    `load_by`.
    """
    from ipex_assist.executors.select_executor import compute_threads, resolve_executor

    precisions = options.precision, options.assistant_precision if options.assists else None
    options = replace(options, executor=resolve_executor(options.executor, *precisions))
    checkpoints = OpenCheckpoints() if checkpoints is None else checkpoints
    # Before the download, too: hours of it are a high price for learning that the model does not fit.
    need_of = partial(
        memory_need, max_new_tokens=max_new_tokens, offline=options.offline, checkpoints=checkpoints, lengths=lengths
    )
    options, need = with_resident(options, need_of, checkpoints)
    check_memory(need)
    if options.executor != "native" or not torch_late:
        with phase("importing torch"), quiet_stderr(not verbose):
            import torch  # noqa: F401

            if options.executor == "ipex":
                import intel_extension_for_pytorch  # noqa: F401
    set_threads(threads)
    plan = launch.inherited_plan(os.environ)

    from ipex_assist.generation.loading import load_by

    started = time.perf_counter()
    model = load_by(options, checkpoints, later, most_tokens)
    log.info("loaded in %.1f s", time.perf_counter() - started)
    leave_cores_to_native()
    found = launch.check_start(plan, compute_threads()) if plan else []
    for line in found:
        log.warning(line)
    return model, found


def leave_cores_to_native() -> None:
    """Keep torch to one thread for the rest of the process where the native core has its pool of threads on the cores.

    For commands, whose process is theirs alone; `load` leaves torch's threads to its caller.
    """
    from ipex_assist.deferred_imports import keep_torch_to
    from ipex_assist.native.library import pool_threads

    if pool_threads() is not None:
        keep_torch_to(1)


def memory_need(
    options: LoadOptions,
    max_new_tokens: int,
    *,
    offline: bool = True,
    checkpoints: OpenCheckpoints | None = None,
    lengths: Sequence[int] = (),
) -> MemoryNeed:
    """Memory for the models and a sequence, or for sequences of these `lengths` in tokens.

    offline: read only what is on this machine. checkpoints: those that are open already. With options.kv_memory keys
    and values take that in the end, however many sequences there are.
    """
    assert options.target is not None
    native = runs_native(options)
    # Only the native core keeps a quantized checkpoint's 4 bits.
    precision = options.precision or (None if native else "bf16")
    need = estimate_need(
        options.target,
        options.assistant if options.assists else None,
        precision,
        options.assistant_precision,
        max_new_tokens,
        options.revision,
        offline=offline,
        checkpoints=checkpoints,
        lengths=lengths,
        kv_precision=options.kv_precision,
        native=native,
        resident=options.resident,
    )
    need = with_adapters(
        *(need, options.target, options.adapters.values(), precision, options.revision),
        checkpoints=checkpoints,
        native=native,
    )
    return within(need, options.kv_memory)
