"""Qwen3.5-MoE, the text part: Qwen3.5 with many small experts and one that all share."""

from __future__ import annotations

from ipex_assist.models.common import experts
from ipex_assist.models.config import Config
from ipex_assist.models.gated_delta import hybrid
from ipex_assist.models.qwen3_5_text import weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "Qwen3_5MoeForCausalLM"
EXAMPLES = ("Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3.5-122B-A10B")
NAMES = {"norm_eps": "rms_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """Every layer has experts and a shared one that a sigmoid weights."""
    size = config.integer("shared_expert_intermediate_size", 512)
    return hybrid("qwen3_5_moe_text", config, experts=experts(config, shared_size=size, shared_gate=True))
