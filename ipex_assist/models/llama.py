"""Llama, Llama 2, Llama 3, TinyLlama, CodeLlama, SmolLM2, Vicuna, Guanaco, …"""

from __future__ import annotations

from ipex_assist.models.common import llama_like
from ipex_assist.models.config import Config
from ipex_assist.models.names import llama_weights as weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "LlamaForCausalLM"
EXAMPLES = ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-2-7b-hf", "HuggingFaceTB/SmolLM2-1.7B-Instruct")
NAMES = {"norm_eps": "rms_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """`attention_bias` puts a bias on all four projections of attention, `mlp_bias` on all three of the MLP."""
    bias = config.flag("attention_bias", False)
    return llama_like("llama", config, qkv_bias=bias, output_bias=bias, mlp_bias=config.flag("mlp_bias", False))
