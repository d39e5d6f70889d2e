"""Which draft head a checkpoint holds: that inside a target's own, or a head's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipex_assist.models import find
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.dflash import dflash_of, is_dflash
from ipex_assist.models.dspark_deepseek_v4 import deepseek_v4_dspark_of, is_deepseek_v4_dspark
from ipex_assist.models.eagle3 import eagle3_of, is_eagle3
from ipex_assist.models.gemma4_assistant import gemma4_assistant_of, is_gemma4_assistant
from ipex_assist.models.mtp import mtp_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ipex_assist.models.head_common import DraftHead
    from ipex_assist.models.spec import DecoderSpec


def own_head(architecture: str, config: Mapping[str, Any], names: Collection[str]) -> DraftHead | None:
    """The head that a target's checkpoint with tensors of these names brings; None where it brings none we run."""
    known = find(architecture)
    try:
        own = deepseek_v4_dspark_of(config, names) if known is not None and known.model_type == "deepseek_v4" else None
        return own if own is not None or known is None else mtp_of(known, config, names)
    except NotComputed:
        return None


def is_head(config: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether a checkpoint with such a config and tensors of these names is a draft head, not a whole model."""
    known = is_gemma4_assistant(config) or is_dflash(config) or is_eagle3(config, names)
    known = known or is_deepseek_v4_dspark(config)
    return known or "speculators_model_type" in config


def is_trained_mtp(config: Mapping[str, Any]) -> bool:
    """Whether a checkpoint is the layer of a target's own that predicts further tokens, as `speculators` trained it."""
    return config.get("speculators_model_type") == "mtp"


def published_head(config: Mapping[str, Any], names: Collection[str], target: DecoderSpec) -> DraftHead:
    """The head that a checkpoint of its own holds, for this target. Raises NotComputed, and ConfigError."""
    if is_gemma4_assistant(config):
        return gemma4_assistant_of(Config(config), target)
    if is_dflash(config):
        return dflash_of(Config(config), names, target)
    if is_eagle3(config, names):
        return eagle3_of(Config(config), names, target)
    if is_deepseek_v4_dspark(config) and (found := deepseek_v4_dspark_of(config, names)) is not None:
        return found
    kind = config.get("speculators_model_type")
    known = "a kind we run (EAGLE-3, DFlash, DSpark, Gemma 4's assistants)"
    raise NotComputed(f"it is no draft head of {known}{f', but {kind!r}' if kind else ''}")
