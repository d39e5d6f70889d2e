"""Qwen1.5-MoE and Qwen2-MoE: Qwen2 with many small experts, and a shared one that a sigmoid weights."""

from __future__ import annotations

from ipex_assist.models.common import llama_like, refuse, sparse_layers
from ipex_assist.models.config import Config
from ipex_assist.models.names import ExpertNames, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Qwen2MoeForCausalLM"
EXAMPLES = ("Qwen/Qwen2-57B-A14B-Instruct", "Qwen/Qwen1.5-MoE-A2.7B-Chat")
NAMES = {"norm_eps": "rms_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """Windows are refused: which layers have them differs between releases of transformers."""
    refuse(config, use_sliding_window=False)
    return llama_like(
        "qwen2_moe",
        config,
        qkv_bias=config.flag("qkv_bias", True),
        **sparse_layers(
            config,
            normalised=config.flag("norm_topk_prob", False),
            shared_size=config.integer("shared_expert_intermediate_size"),
            shared_gate=True,
        ),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names, and Qwen's of experts."""
    return named(spec, experts=ExpertNames())
