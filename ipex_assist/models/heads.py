"""Which draft head a checkpoint holds: that inside a target's own, or a head's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipex_assist.models import find
from ipex_assist.models.config import NotComputed
from ipex_assist.models.mtp import mtp_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ipex_assist.models.head_common import DraftHead


def own_head(architecture: str, config: Mapping[str, Any], names: Collection[str]) -> DraftHead | None:
    """The head that a target's checkpoint with tensors of these names brings; None where it brings none we run."""
    known = find(architecture)
    try:
        return None if known is None else mtp_of(known, config, names)
    except NotComputed:
        return None
