"""How much of a mixture's weights is in memory, where all of them do not fit. Never imports torch."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from ipex_assist.checkpoints.gguf import GgufCheckpoint
from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.commands.shared.memory_need import MemoryNeed, missing_bytes
from ipex_assist.commands.shared.native_runs import runs_native
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.env.memory import gib
from ipex_assist.executors.model_bytes import planned_nodes
from ipex_assist.generation.load_options import LoadOptions

log = logging.getLogger("ipex_assist")


def with_resident(
    options: LoadOptions, need_of: Callable[[LoadOptions], MemoryNeed], checkpoints: OpenCheckpoints
) -> tuple[LoadOptions, MemoryNeed]:
    """The options, and what they need; with --resident for what is left, where a mixture does not fit as a whole.

    Those of a model of which nothing can be left out, or not enough, stay as they are.
    """
    need = need_of(options)
    over = missing_bytes(need)
    if options.resident is not None or over <= 0 or need.target is None or not _may_be_read(options, checkpoints):
        return options, need
    smallest = need_of(replace(options, resident=1)).target
    room = need.target - over
    if smallest is None or smallest > room:
        return options, need
    assert options.target is not None
    log.warning(
        "%s takes %s, %s more than there are: %s of its weights are in memory, and other experts are read from the "
        "file as they are needed (--resident SIZE chooses how many)",
        *(short_name(options.target), gib(need.target), gib(over), gib(room)),
    )
    fitting = replace(options, resident=room)
    return fitting, need_of(fitting)


def _may_be_read(options: LoadOptions, checkpoints: OpenCheckpoints) -> bool:
    """Whether it is a mixture whose experts are read as they are needed."""
    if not runs_native(options) or options.precision not in (None, "stored") or planned_nodes() > 1:
        return False
    assert options.target is not None
    try:
        checkpoint = checkpoints.open(options.target, revision=options.revision, offline=True)
        stored = isinstance(checkpoint, GgufCheckpoint) and checkpoint.stored_precision == "stored"
        return stored and not checkpoint.why_not_ours() and checkpoint.config_spec().experts is not None
    except IpexAssistError:
        return False
