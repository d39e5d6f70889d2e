"""Ministral 3: Llama with yarn, and queries that grow with the logarithm of their position."""

from __future__ import annotations

from ipex_assist.models.common import every_layer, llama_like, rope
from ipex_assist.models.config import Config
from ipex_assist.models.names import llama_weights as weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "Ministral3ForCausalLM"
EXAMPLES = ("mistralai/Ministral-3-8B-Base-2512",)
NAMES = {"norm_eps": "rms_norm_eps"}
_ROPE = {
    **{"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16384},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
}


def spec(config: Config) -> DecoderSpec:
    """How queries grow, `llama_4_scaling_beta` says among the numbers of the rope."""
    given = config.part("rope_parameters") or config.part("rope_scaling")
    if not given:
        config, given = Config({**config.values, "rope_parameters": _ROPE}, config.other_names), _ROPE
    numbers = Config(given)
    return llama_like(
        "ministral3",
        config,
        num_key_value_heads=config.integer("num_key_value_heads", 8),
        head_dim=config.integer("head_dim", 128),
        norm_eps=config.number("norm_eps", 1e-5),
        ropes=(rope(config, 1000000.0),),
        sliding_windows=every_layer(config, config.optional_integer("sliding_window")),
        query_growth=numbers.number("llama_4_scaling_beta", 0.0),
        query_growth_step=numbers.optional_integer("original_max_position_embeddings"),
    )
