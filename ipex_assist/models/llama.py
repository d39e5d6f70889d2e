"""Llama, Llama 2, Llama 3, TinyLlama, CodeLlama, SmolLM2, Vicuna, Guanaco, …"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipex_assist.models.common import llama_like
from ipex_assist.models.common import llama_weights as weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "spec", "weights"]

ARCHITECTURE = "LlamaForCausalLM"


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """`attention_bias` puts a bias on all four projections of attention, `mlp_bias` on all three of the MLP."""
    bias = bool(config.get("attention_bias", False))
    return llama_like("llama", config, qkv_bias=bias, output_bias=bias, mlp_bias=bool(config.get("mlp_bias", False)))
