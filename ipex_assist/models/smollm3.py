"""SmolLM3: Llama without positions in every fourth layer."""

from __future__ import annotations

from ipex_assist.models.common import SLIDING, layer_count, layer_kinds, llama_like, rope, windows
from ipex_assist.models.config import Config, ConfigError
from ipex_assist.models.names import llama_weights as weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "SmolLM3ForCausalLM"
EXAMPLES = ("HuggingFaceTB/SmolLM3-3B",)
NAMES = {"norm_eps": "rms_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """`no_rope_layers` has a 1 for each layer *with* positions."""
    layers, every = layer_count(config), config.integer("no_rope_layer_interval", 4)
    if every < 1:
        raise ConfigError("no_rope_layer_interval", every, "at least 1")
    rotated = config.optional_flags("no_rope_layers") or [(layer + 1) % every != 0 for layer in range(layers)]
    windowed = config.flag("use_sliding_window", False) and config.optional_integer("sliding_window") is not None
    kinds = layer_kinds(config, lambda layer: windowed and layer < len(rotated) and not rotated[layer])
    bias = config.flag("attention_bias", False)
    return llama_like(
        "smollm3",
        config,
        num_key_value_heads=config.integer("num_key_value_heads", 4),
        ropes=(rope(config, 2000000.0),),
        layer_ropes=tuple(0 if here else None for here in rotated[:layers]),
        sliding_windows=windows(config, kinds) if windowed and SLIDING in kinds else (),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
        tied_head=config.flag("tie_word_embeddings", True),
    )
