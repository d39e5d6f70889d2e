"""Qwen1.5-MoE and Qwen2-MoE: Qwen2 with many small experts, and a shared one that a sigmoid weights."""

from __future__ import annotations

from ipex_assist.models.common import experts, llama_like, refuse
from ipex_assist.models.config import Config
from ipex_assist.models.names import ExpertNames, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Qwen2MoeForCausalLM"
EXAMPLES = ("Qwen/Qwen2-57B-A14B-Instruct", "Qwen/Qwen1.5-MoE-A2.7B-Chat")
NAMES = {"norm_eps": "rms_norm_eps", "intermediate_size": "moe_intermediate_size"}


def spec(config: Config) -> DecoderSpec:
    """Layers without experts are refused, and so are windows, whose layers differ between releases of transformers."""
    refuse(config, decoder_sparse_step=1, mlp_only_layers=[], use_sliding_window=False)
    return llama_like(
        "qwen2_moe",
        config,
        qkv_bias=config.flag("qkv_bias", True),
        experts=experts(
            config,
            normalised=config.flag("norm_topk_prob", False),
            shared_size=config.integer("shared_expert_intermediate_size"),
            shared_gate=True,
        ),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names, and Qwen's of experts."""
    return named(spec, experts=ExpertNames())
