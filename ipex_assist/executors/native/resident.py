"""Which mixtures may be larger than memory: their experts are read from the file as they are needed."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from ipex_assist.checkpoints.gguf import GgufCheckpoint
from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.env.errors import UsageError
from ipex_assist.env.memory import gib
from ipex_assist.native.library import memory_nodes

if TYPE_CHECKING:
    from ipex_assist.executors.load_request import LoadRequest
    from ipex_assist.native.library import Pool
    from ipex_assist.native.model import PackedModel

_EXPERT = re.compile(r"layers\.\d+\.experts\.\d+\.\w+_proj\.weight")


def check_resident(request: LoadRequest) -> None:
    """UsageError for a request with `resident` that is for no mixture in a GGUF file, or not kept as it is there."""
    name = short_name(request.checkpoint.source)
    if request.executor != "native" or request.precision != "stored":
        raise UsageError(
            f"--resident reads experts as a GGUF file has them, by --executor native and --precision stored: {name} "
            f"would run on {request.executor} in {request.precision}"
        )
    if not isinstance(request.checkpoint, GgufCheckpoint):
        raise UsageError(f"--resident reads experts from a GGUF file, and {name} is none: leave it out, or take one")
    if request.spec.experts is None:
        raise UsageError(f"--resident is for mixtures of experts, and {name} is none: all of it must be in memory")


def is_expert(ours: str) -> bool:
    """Whether one of our weights is a routed expert's matrix."""
    return _EXPERT.fullmatch(ours) is not None


def check_experts(source: str, weights: Collection[str], in_blocks: Collection[str], pool: Pool) -> None:
    """UsageError where experts are not read as they are needed. weights: of ours, of which these are kept in blocks."""
    floats = [each for each in weights if is_expert(each) and each not in in_blocks]
    if floats:
        raise UsageError(
            f"--resident: {len(floats)} matrices of experts of {short_name(source)} are not in blocks that are "
            f"computed as they are stored, the first is {floats[0]}: leave it out, or take another file"
        )
    if (nodes := memory_nodes(pool.cpus)) > 1:
        raise UsageError(
            f"--resident works on one memory node, and these threads are on {nodes}: choose one by --numa-node"
        )


def check_least(source: str, model: PackedModel, asked: int) -> None:
    """UsageError where the places for as many experts as a token uses take more than what was asked for."""
    if model.resident_bytes > asked:
        raise UsageError(
            f"--resident {gib(asked, 2)}: {short_name(source)} takes {gib(model.resident_bytes, 2)} at least, "
            f"{gib(model.nbytes, 2)} beside experts and the rest for those of one token: give more"
        )
