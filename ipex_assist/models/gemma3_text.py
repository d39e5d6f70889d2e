"""Gemma 3, the models of text alone (270M, 1B): windows, with positions of their own, in five layers of six."""

from __future__ import annotations

from ipex_assist.models.common import FULL, SLIDING, layer_kinds, llama_like, number_or_none, refuse, rope, windows
from ipex_assist.models.config import Config, ConfigError
from ipex_assist.models.gemma2 import shared, weights
from ipex_assist.models.rope_spec import Rope
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "Gemma3ForCausalLM"
EXAMPLES = ("google/gemma-3-1b-it", "google/gemma-3-270m")
NAMES = {"norm_eps": "rms_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """`rope_scaling` is that of layers that see everything; the others' base is rope_local_base_freq."""
    refuse(config, attn_logit_softcapping=None)  # which transformers does not read
    every = config.integer("sliding_window_pattern", 6)
    if every < 1:
        raise ConfigError("sliding_window_pattern", every, "at least 1")
    kinds = layer_kinds(config, lambda layer: (layer + 1) % every != 0)
    return llama_like(
        "gemma3_text",
        config,
        **shared(config),
        qk_norm="head",
        ropes=(rope(config, 1e6, kind=FULL), local_rope(config)),
        layer_ropes=tuple(1 if kind == SLIDING else 0 for kind in kinds),
        sliding_windows=windows(config, kinds, 4096),
        logit_cap=number_or_none(config, "final_logit_softcapping", None),
    )


def local_rope(config: Config) -> Rope:
    """Of layers with windows."""
    parameters = config.part("rope_parameters").get(SLIDING)
    if isinstance(parameters, dict):
        return rope(Config({"rope_parameters": parameters}))
    return Rope(config.number("rope_local_base_freq", 10000.0))
