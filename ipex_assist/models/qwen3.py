"""Qwen3 (dense): Llama with an RMS norm over each head of query and key, and an explicit head_dim."""

from __future__ import annotations

from ipex_assist.models.common import llama_like, qwen_windows
from ipex_assist.models.config import Config
from ipex_assist.models.names import llama_weights as weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "Qwen3ForCausalLM"
EXAMPLES = ("Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B")
NAMES = {"norm_eps": "rms_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """A config without head_dim has 128, whatever hidden_size ÷ heads gives."""
    bias = config.flag("attention_bias", False)
    return llama_like(
        "qwen3",
        config,
        head_dim=config.integer("head_dim", 128),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="head",
        sliding_windows=qwen_windows(config),
    )
