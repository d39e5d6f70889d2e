"""Falcon Mamba: Mamba with norms of its B, its C and what its steps are made of, which have no weights."""

from __future__ import annotations

from ipex_assist.models.config import Config
from ipex_assist.models.mamba import NAMES as _NAMES
from ipex_assist.models.mamba import recurrent_alone, weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "FalconMambaForCausalLM"
EXAMPLES = ("tiiuae/falcon-mamba-7b", "tiiuae/Falcon3-Mamba-7B-Base")
NAMES = {**_NAMES, "mixer_norm_eps": "mixer_rms_eps"}


def spec(config: Config) -> DecoderSpec:
    """Norms of the selection have an epsilon of their own."""
    return recurrent_alone(
        "falcon_mamba", config, selection_norm="unweighted", norm_eps=config.number("mixer_norm_eps", 1e-6)
    )
