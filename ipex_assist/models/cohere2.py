"""Cohere's Command R7B and Command A: Command R with positions in windowed layers alone."""

from __future__ import annotations

from ipex_assist.models.cohere import shared, weights
from ipex_assist.models.common import SLIDING, layer_kinds, llama_like, windows
from ipex_assist.models.config import Config, ConfigError
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "Cohere2ForCausalLM"
EXAMPLES = ("CohereLabs/c4ai-command-r7b-12-2024",)
NAMES = {"norm_eps": "layer_norm_eps", "logit_multiplier": "logit_scale"}


def spec(config: Config) -> DecoderSpec:
    """Three layers with a window and positions to each that sees everything and has none."""
    every = config.integer("sliding_window_pattern", 4)
    if every < 1:
        raise ConfigError("sliding_window_pattern", every, "at least 1")
    kinds = layer_kinds(config, lambda layer: (layer + 1) % every != 0)
    return llama_like(
        "cohere2",
        config,
        **shared(config),
        layer_ropes=tuple(0 if kind == SLIDING else None for kind in kinds),
        sliding_windows=windows(config, kinds, 4096),
    )
