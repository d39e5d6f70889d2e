"""Qwen2 and Qwen2.5: Llama with a bias on query, key and value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipex_assist.models.common import llama_like, sliding_windows
from ipex_assist.models.common import llama_weights as weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "spec", "weights"]

ARCHITECTURE = "Qwen2ForCausalLM"


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """The bias is part of the architecture; the config does not name it."""
    return llama_like("qwen2", config, qkv_bias=True, sliding_windows=sliding_windows(config))
