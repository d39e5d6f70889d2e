"""Solar Open: Llama's attention, and DeepSeek's mixture of experts in every layer."""

from __future__ import annotations

from ipex_assist.models.common import deepseek_experts, llama_like, rope
from ipex_assist.models.config import Config
from ipex_assist.models.glm4_moe import weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "SolarOpenForCausalLM"
EXAMPLES = ("upstage/Solar-Open-100B",)
NAMES = {"norm_eps": "rms_norm_eps", "num_experts": "n_routed_experts"}


def spec(config: Config) -> DecoderSpec:
    """`attention_bias` puts a bias on query, key and value."""
    return llama_like(
        "solar_open",
        config,
        num_key_value_heads=config.integer("num_key_value_heads", 8),
        head_dim=config.integer("head_dim", 128),
        norm_eps=config.number("norm_eps", 1e-5),
        ropes=(rope(config, 1000000.0),),
        qkv_bias=config.flag("attention_bias", False),
        experts=deepseek_experts(config, shared=config.integer("n_shared_experts", 1)),
    )
