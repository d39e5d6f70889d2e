"""Ling 3: Kimi Delta Attention with bounded decays, gated latent attention in every sixth layer, DeepSeek's experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ipex_assist.models import kimi_linear
from ipex_assist.models.common import (
    FULL,
    activation,
    by_either_name,
    check_kinds,
    deepseek_experts,
    layer_count,
    refuse,
    rope,
    sparse_kinds,
)
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.gated_delta import LINEAR
from ipex_assist.models.kimi_linear import in_forget_gate
from ipex_assist.models.latent import DEEPSEEK_EXPERTS, latent_decoder
from ipex_assist.models.layers import with_mixers
from ipex_assist.models.names import renamed
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "BailingHybridForCausalLM"
EXAMPLES = ("inclusionAI/Ling-3.0-Flash",)
NAMES = {
    **{"norm_eps": "rms_norm_eps", "max_position_embeddings": "model_max_length", "norm_topk_prob": "moe_renormalize"},
    **{"num_experts_per_tok": "num_experts_per_token", "n_group": "num_expert_group"},
    **{"n_shared_experts": "num_shared_experts", "linear_num_value_heads": "linear_num_heads"},
    "linear_key_head_dim": "linear_head_dim",
}
_SIZES = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
_RECURRENT = {**{f"{part}_in": f"{part}_proj" for part in "qkvb"}, "mixer_out": "o_proj", "gated_norm": "o_norm.weight"}
_RECURRENT |= {"a_in": "f_proj", "z_in": "g_proj", "a_log": "A_log", "dt_bias": "dt_bias"}
_LIMITS = "expert_swiglu_limit_list"
_CONVS = {f"{part}_conv": f"{part}_conv1d.weight" for part in "qkv"}


def spec(config: Config) -> DecoderSpec:
    refuse(config, tie_word_embeddings=False)  # transformers would not tie them
    config = by_either_name(
        config,
        **{name: name for name in ("max_position_embeddings", "norm_topk_prob", "num_experts_per_tok", "n_group")},
        n_shared_experts="n_shared_experts",
    )
    if activation(config.text("hidden_act", "silu")) != "silu":
        raise NotComputed("Kimi Delta Attention with another activation than silu is not supported")
    sparse = sparse_kinds(config, 2)
    routed = deepseek_experts(
        config,
        shared=config.integer("n_shared_experts", 1),
        groups=config.integer("n_group", 8),
        groups_per_token=config.integer("topk_group", 4),
        scaling=config.number("routed_scaling_factor", 2.5),
    )
    experts: dict[str, Any] = {"experts": routed, "sparse": sparse} if any(sparse) else {}
    # `head_dim` is of Kimi Delta Attention, or what transformers has made of it.
    others = Config({name: value for name, value in config.values.items() if name != "head_dim"}, config.other_names)
    alike = latent_decoder(
        *("bailing_hybrid", others, _SIZES),
        positions=rope(config, 6_000_000.0),
        max_position_embeddings=config.integer("max_position_embeddings", 1 << 18),
        output_gate=True,
        gate_per_head=True,
        **experts,
    )
    mixer = _kimi_delta(config)
    made = with_mixers(alike, [mixer if kind == LINEAR else None for kind in _mixer_kinds(config)])
    return replace(made, layers=_limited(config, made.layers))


def layer_after(config: Config, number: int) -> LayerSpec:
    """The layer that predicts further tokens with this number, from 0 on: of attention, and experts."""
    count, more = layer_count(config), number + 1
    kinds = ["sparse" if sparse else "dense" for sparse in sparse_kinds(config, 2)]
    longer = {
        "num_hidden_layers": count + more,
        "layer_types": [*_mixer_kinds(config), *[FULL] * more],
        "mlp_layer_types": [*kinds, *["sparse"] * more],
    }
    return spec(config.but(**longer)).layers[-1]


def _limited(config: Config, layers: Sequence[LayerSpec]) -> tuple[LayerSpec, ...]:
    """With the limits of experts, as published configs list them and the maker's own code computes them; transformers
    leaves them out. 0 is none.
    """
    listed = [_limits(config, name, len(layers)) for name in (_LIMITS, f"share_{_LIMITS}")]
    made = []
    for layer, limit, shared in zip(layers, *listed, strict=True):
        experts = layer.experts and replace(layer.experts, limit=limit, shared_limit=shared)
        made.append(replace(layer, mlp=experts or layer.mlp))
    return tuple(made)


def _limits(config: Config, name: str, count: int) -> list[float | None]:
    """Of each layer; none beyond the list."""
    listed = config.values.get(name) or []
    if not isinstance(listed, list):
        raise ConfigError(name, listed, "a list of numbers")
    each = [Config({name: value}).optional_number(name) or None for value in listed[:count]]
    return [*each, *[None] * (count - len(each))]


def _kimi_delta(config: Config) -> RecurrentSpec:
    """Of published names, or of those that transformers writes beside them, which are before them."""
    heads = config.integer("linear_num_value_heads", config.integer("num_attention_heads"))
    dim = config.integer("linear_key_head_dim", config.integer("head_dim", 128))
    kernel = config.integer("linear_conv_kernel_dim", config.integer("short_conv_kernel_size", 4))
    bound = config.number("kda_lower_bound", -5.0) if config.flag("kda_safe_gate", True) else None
    return RecurrentSpec("kimi_delta", heads, heads, dim, dim, kernel, decay_bound=bound)


def _mixer_kinds(config: Config) -> list[str]:
    """Of layers: as they are listed, or attention in the last one of each group."""
    each = config.integer("layer_group_size", 6)
    if each < 1:
        raise ConfigError("layer_group_size", each, "at least 1")
    kinds = config.optional_texts("layer_types")
    if kinds is None:
        kinds = [LINEAR if (layer + 1) % each else FULL for layer in range(layer_count(config))]
    check_kinds(kinds, FULL, LINEAR)
    return kinds


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """By published names, and by those that transformers has while it runs."""
    gates = {"g_proj": "self_attn.g_proj"}
    made = kimi_linear.delta_weights(spec, DEEPSEEK_EXPERTS, _RECURRENT | _CONVS, gates, pairs=True)
    return {ours: renamed(source, _names) for ours, source in made.items()}


_PUBLISHED = {"model.embed_tokens.": "model.word_embeddings.", "self_attn.o_proj": "attention.dense"}
_PUBLISHED |= {"self_attn.": "attention.", "gate.e_score_correction_bias": "gate.expert_bias"}


def _names(name: str) -> list[str]:
    published = name
    for ours, theirs in _PUBLISHED.items():
        published = published.replace(ours, theirs)
    return [published, published.replace("attention.dense", "attention.o_proj"), in_forget_gate(name), name]
