"""A.X K2: DeepSeek-V3.2's sparse attention, whose values are gated, between norms that gate what they give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_assist.models.common import deepseek_experts, layer_count, refuse, sparse_kinds
from ipex_assist.models.config import Config, ConfigError
from ipex_assist.models.latent import check_layer_types, latent_decoder, latent_weights, with_indexers
from ipex_assist.models.layers import with_attention
from ipex_assist.models.names import MIXER_GATE, MLP_GATE, also_named, renamed
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "AXK2ForCausalLM"
EXAMPLES = ("skt/A.X-K2",)
NAMES = {"norm_eps": "rms_norm_eps", "num_experts": "n_routed_experts"}
SIZES = {"kv_lora_rank": 128, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 64, "q_lora_rank": 384}
_GATES = {
    **dict(zip(MIXER_GATE, ("input_layernorm.W_down", "input_layernorm.W_up"), strict=True)),
    **dict(zip(MLP_GATE, ("post_attention_layernorm.W_down", "post_attention_layernorm.W_up"), strict=True)),
}
_RENAMED = {"q_b_proj": "q_gate_proj", "W_down": "mlp.fc1", "W_up": "mlp.fc2"}


def spec(config: Config) -> DecoderSpec:
    """Experts are in groups where the config says in how many."""
    refuse(config, moe_layer_freq=1)
    check_layer_types(config)
    groups, of_token = (config.optional_integer(name) for name in ("n_group", "topk_group"))
    if (groups is None) != (of_token is None):
        raise ConfigError("topk_group", of_token, f"given where n_group is, which is {groups}")
    routed = deepseek_experts(
        config,
        shared=config.integer("n_shared_experts", 1),
        groups=groups or 1,
        groups_per_token=of_token or 1,
        scaling=config.number("routed_scaling_factor", 2.5),
    )
    sparse = sparse_kinds(config)
    made = latent_decoder("axk2", config, SIZES, experts=routed, sparse=sparse, output_gate=True)
    latent = made.layers[0].attention.latent
    assert latent is not None
    if latent.query_rank is None:
        raise ConfigError("q_lora_rank", None, "given: queries and gates are made of that row")
    whole = [replace(latent, reads_unnormed=True)] * made.num_hidden_layers
    made = replace(made, layers=with_attention(made.layers, "latent", whole))
    made = with_indexers(made, config, [False] * layer_count(config), heads=16)
    rank = config.integer("gated_norm_rank", 16)
    layers = (replace(layer, mixer_gate_rank=rank, mlp_gate_rank=rank if layer.experts else 0) for layer in made.layers)
    return replace(made, layers=tuple(layers))


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Queries and gates are of one tensor, head by head; transformers calls it and the gates of norms otherwise."""
    latent = spec.layers[0].attention.latent
    assert latent is not None
    query = latent.nope_dim + latent.rope_dim
    width = query + latent.value_dim
    fields: dict[str, dict[str, Any]] = {
        "q_nope_proj": {"interleaved": (0, latent.nope_dim, width)},
        "q_rope_proj": {"interleaved": (latent.nope_dim, query, width), "pairs": latent.rope_dim},
        "g_proj": {"interleaved": (query, width, width)},
    }
    sources = latent_weights(spec, linears={"g_proj": "self_attn.q_b_proj", **_GATES}, fields=fields)
    for number, layer in enumerate(spec.layers):
        for leaf, gated in (("attention_norm", layer.mixer_gate_rank), ("mlp_norm", layer.mlp_gate_rank)):
            name = f"layers.{number}.{leaf}.weight"
            if gated:
                sources[name] = renamed(sources[name], _of_gated_norm)
    return also_named(sources, _RENAMED)


def _of_gated_norm(name: str) -> list[str]:
    return [name.replace("layernorm.", "layernorm.norm.")]
