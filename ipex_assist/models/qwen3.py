"""Qwen3 (dense): Llama with an RMS norm over each head of query and key, and an explicit head_dim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipex_assist.models.common import llama_like, sliding_windows
from ipex_assist.models.common import llama_weights as weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "spec", "weights"]

ARCHITECTURE = "Qwen3ForCausalLM"


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """A config without head_dim has 128, whatever hidden_size ÷ heads gives."""
    bias = bool(config.get("attention_bias", False))
    return llama_like(
        "qwen3",
        config,
        head_dim=config.get("head_dim") or 128,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        sliding_windows=sliding_windows(config),
    )
