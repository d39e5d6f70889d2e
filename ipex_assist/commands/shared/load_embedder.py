"""Loads an embedding model or a reranker for a command or a worker, if that is what the model is or is to be."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ipex_assist import launch
from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.commands.shared.load import leave_cores_to_native, memory_need
from ipex_assist.commands.shared.memory_need import check_memory
from ipex_assist.commands.shared.messages import quiet_stderr
from ipex_assist.commands.shared.relaunch import set_threads
from ipex_assist.embedding.task import GENERATE, task_of
from ipex_assist.env.phases import phase
from ipex_assist.generation.load_options import LoadOptions

if TYPE_CHECKING:
    from ipex_assist.embedding.model import EmbeddingModel

log = logging.getLogger("ipex_assist")


def load_for_task(
    options: LoadOptions,
    task: str,
    threads: int | None = None,
    *,
    matryoshka: bool = False,
    verbose: bool = False,
    lengths: Sequence[int] = (),
) -> EmbeddingModel | None:
    """The embedding model that `options` name; None where it is to write text.

    task: of embedding/task.py. threads: where no launcher has planned them. lengths: in tokens, of texts that are read
    at a time. Raises UsageError for a model that gives no vectors, IpexAssistError where it cannot be loaded.
    """
    if task == GENERATE or options.target is None:
        return None
    checkpoints = OpenCheckpoints()
    found = task_of(checkpoints.open(options.target, revision=options.revision, offline=options.offline), task)
    if found == GENERATE:
        return None
    with phase("importing torch"), quiet_stderr(not verbose):
        import torch  # noqa: F401
    from ipex_assist.embedding.loading import load_embedder
    from ipex_assist.embedding.settled import without_assistant
    from ipex_assist.executors.select_executor import compute_threads

    options = without_assistant(options)
    check_memory(memory_need(options, 1, offline=options.offline, checkpoints=checkpoints, lengths=lengths))
    set_threads(threads)
    plan, started = launch.inherited_plan(os.environ), time.perf_counter()
    model = load_embedder(options, found, checkpoints, matryoshka=matryoshka)
    log.info("loaded in %.1f s", time.perf_counter() - started)
    launch.restore_affinity(plan)
    leave_cores_to_native()
    for line in launch.check_start(plan, compute_threads()) if plan else ():
        log.warning(line)
    return model
