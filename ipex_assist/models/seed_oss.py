"""Seed-OSS: Llama with a bias on query, key and value, and heads wider than the residual stream's share."""

from __future__ import annotations

from ipex_assist.models.common import llama_like
from ipex_assist.models.config import Config
from ipex_assist.models.names import llama_weights as weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "SeedOssForCausalLM"
EXAMPLES = ("ByteDance-Seed/Seed-OSS-36B-Instruct",)
NAMES = {"norm_eps": "rms_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """`attention_bias` is that of query, key and value, `attention_out_bias` of the output."""
    head_dim = {} if "head_dim" in config.values else {"head_dim": 128}
    return llama_like(
        "seed_oss",
        config,
        **head_dim,
        qkv_bias=config.flag("attention_bias", True),
        output_bias=config.flag("attention_out_bias", False),
        mlp_bias=config.flag("mlp_bias", False),
    )
