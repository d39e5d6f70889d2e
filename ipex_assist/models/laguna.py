"""Laguna: gated attention with heads, windows and positions of its own in each layer, and experts by sigmoid scores."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models.common import (
    FULL,
    SLIDING,
    experts,
    layer_count,
    layer_kinds,
    llama_like,
    refuse,
    ropes_by_kind,
    sparse_kinds,
    windows,
)
from ipex_assist.models.config import Config
from ipex_assist.models.layers import with_attention
from ipex_assist.models.names import (
    HEAD_NORMS,
    LLAMA_LINEARS,
    LLAMA_NORMS,
    SHARED_EXPERTS,
    ExpertNames,
    also_named,
    named,
)
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "LagunaForCausalLM"
EXAMPLES = ("poolside/laguna-XS.2",)
NAMES = {"norm_eps": "rms_norm_eps"}
_BIAS = "e_score_correction_bias"
_EXPERTS = ExpertNames(shared=SHARED_EXPERTS, correction_bias=(f"mlp.experts.{_BIAS}", f"mlp.gate.{_BIAS}"))
_ROPES = {
    FULL: {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
}


def spec(config: Config) -> DecoderSpec:
    """Gates are one a head, or one a value; a cap of the router's logits, and biases, are not computed."""
    refuse(config, attention_bias=False, moe_apply_router_weight_on_input=False, moe_router_logit_softcapping=0.0)
    kinds, head_dim = layer_kinds(config, lambda layer: False), config.integer("head_dim", 128)
    given = config.part("rope_parameters")
    ropes = {kind: Config({"rope_parameters": given.get(kind, usual)}) for kind, usual in _ROPES.items()}
    heads = config.integers("num_attention_heads_per_layer")
    sparse = sparse_kinds(config)
    made = experts(
        config,
        scores="sigmoid",
        correction_bias=True,
        scaling=config.number("moe_routed_scaling_factor", 1.0),
        shared_size=config.integer("shared_expert_intermediate_size", 512),
    )
    alike = llama_like(
        "laguna",
        config,
        head_dim=head_dim,
        qk_norm="head",
        output_gate=True,
        gate_activation="softplus",
        gate_per_head=config.values.get("gating") in (None, True, "per-head"),
        **ropes_by_kind(ropes, kinds, head_dim),
        sliding_windows=windows(config, kinds, 512),
        **({"experts": made, "sparse": sparse} if any(sparse) else {}),
    )
    own = heads or (config.integer("num_attention_heads"),) * layer_count(config)
    return replace(alike, layers=with_attention(alike.layers, "heads", own))


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Qwen's names of experts; the shared one has two."""
    linears = {**LLAMA_LINEARS, "g_proj": "self_attn.g_proj"}
    sources = named(spec, linears=linears, norms={**LLAMA_NORMS, **HEAD_NORMS}, experts=_EXPERTS)
    return also_named(sources, {"mlp.shared_experts.": "mlp.shared_expert."})
