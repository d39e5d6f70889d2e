"""Loads both models as a command's flags ask, and checks that they fit and start as planned."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from typing import Any

from ipex_assist import launch
from ipex_assist.commands.memory_need import check_memory, estimate_need
from ipex_assist.commands.messages import quiet_stderr
from ipex_assist.speculative.schedule import DraftOptions

log = logging.getLogger("ipex_assist")


def load_models(args: argparse.Namespace, assistant: str | None) -> tuple[Any, list[str]]:
    """Load both models; return them, and what is not as the launcher planned it."""
    precision = args.precision
    from ipex_assist.executors.choose import compute_threads, resolve_executor

    executor = resolve_executor(args.executor, precision, args.assistant_precision if assistant else None)
    # Before the download, too: hours of it are a high price for learning that the model does not fit.
    need = estimate_need(
        args.model,
        assistant,
        precision or (None if executor == "native" else "bf16"),
        args.assistant_precision,
        args.max_new_tokens,
        args.revision,
        offline=args.offline,
    )
    check_memory(need)
    with quiet_stderr(not args.verbose):
        import torch

        if executor == "ipex":
            import intel_extension_for_pytorch  # noqa: F401
    plan = launch.inherited_plan(os.environ)
    if plan is not None or args.threads is not None:
        torch.set_num_threads(plan.threads if plan is not None else args.threads)

    import ipex_assist

    started = time.perf_counter()
    model = ipex_assist.load(
        args.model,
        assistant,
        precision=precision,
        assistant_precision=args.assistant_precision,
        executor=executor,
        revision=args.revision,
        offline=args.offline,
        progress=sys.stderr.isatty(),
        cache_packed=args.cache_packed,
        universal=args.universal,
        draft_vocabulary=args.draft_vocabulary,
        calibrate=DraftOptions(args.assisted, args.num_assistant_tokens, args.num_assistant_tokens_schedule).adapts,
        recalibrate=args.recalibrate,
    )
    log.info("loaded in %.1f s", time.perf_counter() - started)
    found = launch.check_start(plan, compute_threads()) if plan else []
    for line in found:
        log.warning(line)
    return model, found
