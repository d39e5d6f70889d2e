"""What passes of a mixture find of experts that are read from its file as they are needed."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from ipex_assist.native.model import PackedModel


class ExpertCounts(NamedTuple):
    """What passes wanted of experts so far, each once a pass and layer.

    found: of these, those in memory; ahead: and of those, what had been asked for just before, as it was expected.
    read_bytes: of the file. waited: seconds, by passes.
    """

    wanted: int
    found: int
    ahead: int
    read_bytes: int
    waited: float


def expert_reads(model: PackedModel) -> ExpertCounts:
    """Of all passes of a model so far; zeros where all of it is in memory."""
    counts = (ctypes.c_int64 * 5)()
    model.library.ia_expert_reads(model.handle, counts)
    wanted, found, ahead, size, waited = counts
    return ExpertCounts(wanted, found, ahead, size, waited / 1e9)
