"""Kimi Linear: Kimi Delta Attention in three of four layers, latent attention without positions in the fourth."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ipex_assist.models.common import FULL, activation, check_kinds, layer_count, refuse, sparse_fields
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.gated_delta import LINEAR, convolved_together
from ipex_assist.models.latent import LATENT_NORMS, latent_parts, latent_spec, with_latents
from ipex_assist.models.layers import with_mixers
from ipex_assist.models.mixtral import LINEARS, PLACE
from ipex_assist.models.names import LLAMA_LINEARS, LLAMA_NORMS, MLP, ExpertNames, named, renamed
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "KimiLinearForCausalLM"
EXAMPLES = ("moonshotai/Kimi-Linear-48B-A3B-Instruct", "moonshotai/Kimi-Linear-48B-A3B-Base")
NAMES = {
    **{"norm_eps": "rms_norm_eps", "max_position_embeddings": "model_max_length", "norm_topk_prob": "moe_renormalize"},
    **{"num_experts_per_tok": "num_experts_per_token", "n_group": "num_expert_group"},
    **{"linear_num_value_heads": "linear_num_heads", "linear_key_head_dim": "linear_head_dim"},
}
_SIZES = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
_EXPERTS = ExpertNames(
    (f"{PLACE}.gate",),
    LINEARS,
    {leaf: f"{PLACE}.shared_experts.{leaf}" for leaf in MLP},
    correction_bias=(f"{PLACE}.gate.e_score_correction_bias",),
)
RECURRENT = {**{f"{part}_in": f"{part}_proj" for part in "qkvb"}, "mixer_out": "o_proj", "gated_norm": "o_norm.weight"}
RECURRENT |= {"a_low_in": "f_a_proj", "a_in": "f_b_proj", "z_low_in": "g_a_proj", "z_in": "g_b_proj"}
RECURRENT |= {**{f"{part}_conv": f"{part}_conv1d.weight" for part in "qkv"}, "a_log": "A_log", "dt_bias": "dt_bias"}
# Of `linear_attn_config`, which published configs have in the place of these.
_INNER = {"linear_num_heads": "num_heads", "linear_head_dim": "head_dim"}
_INNER |= {"linear_conv_kernel_dim": "short_conv_kernel_size"}


def spec(config: Config) -> DecoderSpec:
    """`linear_attn_config` counts layers from 1; `layer_types` and `mlp_layer_types` have an entry each."""
    refuse(config, mla_use_nope=True, moe_router_activation_func="sigmoid", moe_layer_freq=1, use_grouped_topk=True)
    heads = config.integer("num_attention_heads")
    refuse(config, num_key_value_heads=heads, tie_word_embeddings=False)  # transformers would not tie them
    config = _with_inner_names(config)
    if activation(config.text("hidden_act", "silu")) != "silu":
        raise NotComputed("Kimi Delta Attention with another activation than silu is not supported")
    latent = latent_spec(config, _SIZES)
    shared, scaling = config.integer("num_shared_experts", 1), config.number("routed_scaling_factor", 2.446)
    fields = {
        "attention_scale": (latent.nope_dim + latent.rope_dim) ** -0.5,
        "norm_eps": config.number("norm_eps", 1e-5),
        "max_position_embeddings": config.integer("max_position_embeddings", 1 << 20),
        **sparse_fields(config, shared=shared, scaling=scaling),
    }
    alike = with_latents("kimi_linear", config, latent, ropes=(), **fields)
    count, dim = config.integer("linear_num_value_heads", 32), config.integer("linear_key_head_dim", 128)
    kernel = config.integer("linear_conv_kernel_dim", 4)
    mixer = RecurrentSpec("kimi_delta", count, count, dim, dim, kernel, gate_rank=dim)
    return with_mixers(alike, [mixer if kind == LINEAR else None for kind in _mixer_kinds(config)])


def _with_inner_names(config: Config) -> Config:
    """The config with what `linear_attn_config` has beside its other values."""
    inner = config.part("linear_attn_config")
    found = {ours: inner[theirs] for ours, theirs in _INNER.items() if theirs in inner}
    return Config({**config.values, **found}, config.other_names)


def _mixer_kinds(config: Config) -> list[str]:
    """Of layers: Kimi Delta Attention or attention. Raises NotComputed for others."""
    inner = Config(config.part("linear_attn_config"))
    kinds, count = config.optional_texts("layer_types"), layer_count(config)
    if kinds is None and {"full_attn_layers", "kda_layers"} <= set(inner.values):
        full, linear = set(inner.integers("full_attn_layers")), set(inner.integers("kda_layers"))
        if full & linear or full | linear != set(range(1, count + 1)):
            raise ConfigError("linear_attn_config", dict(inner.values), f"lists of layers 1 to {count}, each in one")
        kinds = [FULL if layer + 1 in full else LINEAR for layer in range(count)]
    kinds = kinds or [FULL if layer and layer % 4 == 0 else LINEAR for layer in range(count)]
    check_kinds(kinds, FULL, LINEAR)
    return kinds


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """By published names, and by those that transformers has while it runs."""
    return {ours: renamed(source, _names) for ours, source in delta_weights(spec, _EXPERTS, RECURRENT).items()}


def delta_weights(
    spec: DecoderSpec,
    experts: ExpertNames,
    recurrent: Mapping[str, str],
    more_linears: Mapping[str, str] = MappingProxyType({}),
    pairs: bool = False,
) -> dict[str, Source]:
    """Of models with Kimi Delta Attention beside latent attention.

    recurrent: names of the former within `self_attn`. pairs: whether values of the latter are rotated by pairs.
    """
    linears = {**LLAMA_LINEARS, **more_linears}
    fields: dict[str, dict[str, Any]] = {leaf: {"flat": True} for leaf in ("q_conv", "k_conv", "v_conv", "a_log")}
    if spec.attentions and (latent := spec.attentions[0].latent) is not None:
        parts, more = latent_parts(latent, {"pairs": latent.rope_dim} if pairs else {})
        linears |= parts
        fields |= more
    made = named(
        spec,
        linears=linears,
        norms={**LLAMA_NORMS, **LATENT_NORMS},
        fields=fields,
        experts=experts,
        recurrent={leaf: f"self_attn.{name}" for leaf, name in recurrent.items()},
    )
    convolved_together(spec, made, "self_attn.conv1d.weight")
    return made


def _names(name: str) -> list[str]:
    # As transformers has them, and as it saves them, dense ones, too.
    return [name, in_forget_gate(name.replace(f".{PLACE}.", ".mlp.")), name.replace(".mlp.", f".{PLACE}.")]


def in_forget_gate(name: str) -> str:
    """A tensor's name in transformers, whose module that makes decays has its own."""
    for leaf in ("f_proj", "f_a_proj", "f_b_proj", "A_log", "dt_bias"):
        name = name.replace(f".self_attn.{leaf}", f".self_attn.forget_gate.{leaf}")
    return name
