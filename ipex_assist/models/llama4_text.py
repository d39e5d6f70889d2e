"""Llama 4, the text part: chunks in three of four layers, all positions and no rotation in the fourth; experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_assist.models.common import layer_count, llama_like, rope
from ipex_assist.models.config import Config
from ipex_assist.models.llama4_layers import head_dim, routed, sparse_layers, with_positions
from ipex_assist.models.names import LLAMA_LINEARS, MLP, ExpertNames, named, rotated_by_pairs, transposed_experts
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Llama4ForCausalLM"
EXAMPLES = ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "meta-llama/Llama-4-Maverick-17B-128E-Instruct")
NAMES = {
    **{"norm_eps": "rms_norm_eps", "num_experts": "num_local_experts", "moe_intermediate_size": "intermediate_size"},
    **{"intermediate_size": "intermediate_size_mlp", "llama_4_scaling_beta": "attn_scale"},
}
_PLACE = "feed_forward"
_BOTH, _DOWN = f"{_PLACE}.experts.gate_up_proj", f"{_PLACE}.experts.down_proj"
_EXPERTS = ExpertNames(
    (f"{_PLACE}.router",),
    {"gate_proj": _BOTH, "up_proj": _BOTH, "down_proj": _DOWN},
    {leaf: f"{_PLACE}.shared_expert.{leaf}" for leaf in MLP},
    together=f"{_PLACE}.experts",
)


def spec(config: Config) -> DecoderSpec:
    """Layers that rotate (`no_rope_layers` 1) may norm their heads; in the others queries may grow with positions."""
    count, bias = layer_count(config), config.flag("attention_bias", False)
    with_experts = sparse_layers(config, count)
    fields: dict[str, Any] = {"intermediate_size": config.integer("intermediate_size", 16384)}
    if any(with_experts):
        fields |= {"experts": routed(config), "sparse": with_experts}
    alike = llama_like(
        "llama4_text",
        config,
        num_key_value_heads=config.integer("num_key_value_heads", config.integer("num_attention_heads")),
        head_dim=head_dim(config),
        norm_eps=config.number("norm_eps", 1e-5),
        max_position_embeddings=config.integer("max_position_embeddings", 1 << 17),
        qkv_bias=bias,
        output_bias=bias,
        norm_after_rope=True,
        ropes=(rope(config, 500000.0),),
        query_growth_step=config.integer("floor_scale", 8192),
        query_growth_shift=1,
        **fields,
    )
    return replace(alike, layers=with_positions(config, alike.layers))


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """All experts' matrices lie in two tensors, (in, out), gate before up; some checkpoints have each by itself."""
    linears = {**LLAMA_LINEARS, **{leaf: f"{_PLACE}.{leaf}" for leaf in MLP}}
    return transposed_experts(spec, named(spec, linears=linears, fields=rotated_by_pairs(spec), experts=_EXPERTS))
