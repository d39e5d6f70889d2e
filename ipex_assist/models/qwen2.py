"""Qwen2 and Qwen2.5: Llama with a bias on query, key and value."""

from __future__ import annotations

from ipex_assist.models.common import llama_like, with_windows
from ipex_assist.models.common import llama_weights as weights
from ipex_assist.models.config import Config
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "NAMES", "spec", "weights"]

ARCHITECTURE = "Qwen2ForCausalLM"
NAMES = {"norm_eps": "rms_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """The bias is part of the architecture; the config does not name it."""
    return with_windows(llama_like("qwen2", config, qkv_bias=True), config)
