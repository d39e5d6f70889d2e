"""Sarvam 30B: GLM-4.5's mixture, with whole heads rotated, by other names."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import glm4_moe
from ipex_assist.models.common import by_either_name, refuse
from ipex_assist.models.config import Config
from ipex_assist.models.names import also_named, stacked_qkv
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "SarvamMoEForCausalLM"
EXAMPLES = ("sarvamai/sarvam-30b",)
NAMES = {
    **{"norm_eps": "rms_norm_eps", "n_shared_experts": "num_shared_experts", "attention_bias": "use_qkv_bias"},
}
_PUBLISHED = {
    **{"embed_tokens": "word_embeddings", "self_attn.o_proj": "attention.dense"},
    **{"self_attn.q_norm": "attention.query_layernorm", "self_attn.k_norm": "attention.key_layernorm"},
    **{"self_attn.": "attention.", "gate.e_score_correction_bias": "gate.expert_bias"},
}


def spec(config: Config) -> DecoderSpec:
    """Fields and tensors have their maker's names, or GLM's, whose class runs them in transformers."""
    refuse(config, score_function="sigmoid")
    config = by_either_name(
        config,
        num_experts="n_routed_experts",
        n_shared_experts="n_shared_experts",
        attention_bias="attention_bias",
    )
    return glm4_moe.glm_like(
        "sarvam_moe",
        config,
        head_dim=config.integer("head_dim", 64),
        norm_eps=config.number("norm_eps", 1e-6),
        theta=8000000.0,
        rotated=1.0,
        qk_norm="head" if config.flag("use_qk_norm", True) else None,
        scaling=config.number("routed_scaling_factor", 2.5),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Its maker's names, with query, key and value in one tensor; or GLM's."""
    sources = also_named(glm4_moe.weights(spec), _PUBLISHED)
    for leaf, rows in stacked_qkv(spec).items():
        for ours, source in sources.items():
            if f".{leaf}." in ours:
                fused = source.name.replace(leaf, "query_key_value")
                apart = replace(source, name=source.alternatives[0], alternatives=source.alternatives[1:])
                sources[ours] = replace(source, name=fused, alternatives=(), otherwise=apart, **rows)
    return sources
