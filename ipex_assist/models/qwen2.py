"""Qwen2 and Qwen2.5: Llama with a bias on query, key and value."""

from __future__ import annotations

from ipex_assist.models.common import llama_like, qwen_windows
from ipex_assist.models.config import Config
from ipex_assist.models.names import llama_weights as weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "Qwen2ForCausalLM"
EXAMPLES = ("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-Coder-32B-Instruct")
NAMES = {"norm_eps": "rms_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """The bias is part of the architecture; the config does not name it."""
    return llama_like("qwen2", config, qkv_bias=True, sliding_windows=qwen_windows(config))
