"""What models with Mamba-2 layers, or Mamba-1, share: the mixer of a config, its weights' names, and models of such
layers alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ipex_assist.models.common import FULL, activation, check_kinds, layer_count
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.gated_delta import LINEAR
from ipex_assist.models.layers import repeated
from ipex_assist.models.mixers.mamba1 import LOW_NORMS
from ipex_assist.models.names import named, stacked
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import Source

# What Bamba's config.json, and Granite 4's, call the numbers of a mixer.
BAMBA_NAMES = {
    "linear_num_value_heads": "mamba_n_heads",
    "linear_num_key_heads": "mamba_n_groups",
    "linear_key_head_dim": "mamba_d_state",
    "linear_value_head_dim": "mamba_d_head",
    "linear_conv_kernel_dim": "mamba_d_conv",
    "n_groups": "mamba_n_groups",
}
CONTEXT = 1 << 20  # tokens of a sequence where all layers are recurrent: a state has no end, but tables have one
_OLD_KINDS = {"mamba": LINEAR, "attention": FULL}


def mamba_kinds(config: Config, usual: str = LINEAR) -> list[str]:
    """`layer_types`, `usual` where there are none. Raises NotComputed for other kinds than the two."""
    kinds = config.optional_texts("layer_types") or [usual] * layer_count(config)
    kinds = [_OLD_KINDS.get(kind, kind) for kind in kinds]
    check_kinds(kinds, FULL, LINEAR)
    return kinds


def bamba_mixer(config: Config, width: int | None = None) -> RecurrentSpec:
    """The mixer of a config with Bamba's names, whose heads together are `mamba_expand` times as wide as the model.

    width: of the heads together, where the config says it otherwise.
    """
    width = config.integer("mamba_expand", 2) * config.integer("hidden_size") if width is None else width
    heads = "linear_num_value_heads"
    count, name = config.integer(heads, 128), "linear_value_head_dim"
    stored = config.values.get(config.stored_name(name))
    head_dim = width // max(count, 1) if stored in (None, "auto") else config.integer(name)
    if count * head_dim != width:
        raise ConfigError(config.stored_name(heads), count, f"so many that heads of {head_dim} are {width:,} together")
    return mamba_mixer(
        config,
        config.text("hidden_act", "silu"),
        heads=count,
        value_dim=head_dim,
        key_heads=config.integer("linear_num_key_heads", 1),
        key_dim=config.integer("linear_key_head_dim", 256),
        conv_bias=config.flag("mamba_conv_bias", True),
        bias=config.flag("mamba_proj_bias", False),
        step_limit=config.ends("time_step_limit", (0.0, math.inf)),
    )


def mamba_mixer(config: Config, act: str, *, bias: bool, key_heads: int, **fields: Any) -> RecurrentSpec:
    """A Mamba-2 mixer whose norm has the groups of its states; act: the convolution's and the gate's activation."""
    if activation(act) != "silu":
        raise NotComputed("Mamba-2 layers with another activation than silu are not supported")
    return RecurrentSpec(
        "mamba2",
        conv_kernel=config.integer("linear_conv_kernel_dim", 4),
        key_heads=key_heads,
        norm_groups=key_heads,
        input_bias=bias,
        output_bias=bias,
        **fields,
    )


def mamba2_mixer(config: Config, act: str, step_limit: tuple[float, float]) -> RecurrentSpec:
    """The mixer of a config with the names and the defaults of Mamba-2's, which Nemotron-H has, too."""
    return mamba_mixer(
        config,
        act,
        heads=config.integer("linear_num_value_heads", 128),
        value_dim=config.integer("linear_value_head_dim", 64),
        key_heads=config.integer("linear_num_key_heads", 8),
        key_dim=config.integer("linear_key_head_dim", 128),
        conv_bias=config.flag("use_conv_bias", True),
        bias=config.flag("use_bias", False),
        step_limit=step_limit,
    )


def selective_mixer(config: Config, value_dim: int | None = None, **norm: Any) -> RecurrentSpec:
    """The Mamba-1 mixer of a config with Jamba's names, or those that its `other_names` give for them.

    value_dim: its channels, where the config says them otherwise than by `mamba_expand`. norm: fields of RecurrentSpec.
    """
    if activation(config.text("hidden_act", "silu")) != "silu":
        raise NotComputed("Mamba layers with another activation than silu are not supported")
    hidden, bias = config.integer("hidden_size"), config.flag("mamba_proj_bias", False)
    given = config.values.get(config.stored_name("gate_rank"))
    rank = -(-hidden // 16) if given in (None, "auto") else config.integer("gate_rank")
    expand = config.integer("mamba_expand", 2)
    for name, value in (("hidden_size", hidden), ("gate_rank", rank), ("mamba_expand", expand)):
        if value < 1:
            raise ConfigError(name, value, "1 at least")
    return RecurrentSpec(
        "mamba1",
        heads=1,
        key_heads=1,
        key_dim=config.integer("linear_key_head_dim", 16),
        value_dim=expand * hidden if value_dim is None else value_dim,
        conv_kernel=config.integer("linear_conv_kernel_dim", 4),
        conv_bias=config.flag("mamba_conv_bias", True),
        input_bias=bias,
        output_bias=bias,
        gate_rank=rank,
        **norm,
    )


def selective_names(place: str) -> dict[str, str]:
    """Our names of a Mamba-1 mixer's weights to a checkpoint's, which begin with `place`."""
    names = {"v_in": "in_proj", "z_in": "in_proj", "a_in": "dt_proj", "mixer_out": "out_proj"}
    names |= dict.fromkeys(("a_low_in", "k_in", "q_in"), "x_proj")
    names |= {"v_conv": "conv1d.weight", "a_log": "A_log", "dt_bias": "dt_proj.bias", "skip": "D"}
    norms = {"a_low_in": "dt", "k_in": "b", "q_in": "c"}
    names |= {LOW_NORMS[leaf]: f"{name}_layernorm.weight" for leaf, name in norms.items()}
    return {leaf: f"{place}.{name}" for leaf, name in names.items()}


def selective_fields(mixer: RecurrentSpec | None) -> dict[str, dict[str, Any]]:
    """Which rows of the tensors of a Mamba-1 mixer, if there is one, are whose."""
    if mixer is None:
        return {}
    flat = {"v_conv": {"flat": True}, "a_log": {"flat": True}}
    return {**stacked(mixer.input_parts), **stacked(mixer.low_parts), **flat}


def kv_heads(config: Config) -> int:
    """Key/value heads of a config: 8 where it does not say it, as many as heads where it says null."""
    null = "num_key_value_heads" in config.values
    return config.integer("num_key_value_heads", config.integer("num_attention_heads") if null else 8)


def mamba_names(place: str) -> dict[str, str]:
    """Our names of a mixer's weights to a checkpoint's, which begin with `place`."""
    inputs = dict.fromkeys(("z_in", "v_in", "k_in", "q_in", "a_in"), "in_proj")
    convolutions = dict.fromkeys(("v_conv", "k_conv", "q_conv"), "conv1d.weight")
    vectors = {"a_log": "A_log", "dt_bias": "dt_bias", "skip": "D", "gated_norm": "norm.weight"}
    names = {**inputs, **convolutions, **vectors, "mixer_out": "out_proj"}
    return {leaf: f"{place}.{name}" for leaf, name in names.items()}


def mamba_fields(mixer: RecurrentSpec | None) -> dict[str, dict[str, Any]]:
    """Which rows of the tensors of a mixer, if there is one, are whose: gate, x, B, C and dt of its input linear."""
    if mixer is None:
        return {}
    keys, values = mixer.key_size, mixer.value_size
    inputs = stacked({"z_in": values, "v_in": values, "k_in": keys, "q_in": keys, "a_in": mixer.heads})
    convolutions = stacked({"v_conv": values, "k_conv": keys, "q_conv": keys})
    return {**inputs, **{leaf: {**rows, "flat": True} for leaf, rows in convolutions.items()}}


def mixers_alone(model_type: str, config: Config, mixer: RecurrentSpec, *, tied: bool) -> DecoderSpec:
    """A model of such layers alone. tied: whether the head is the embedding where the config does not say."""
    return DecoderSpec(
        model_type=model_type,
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        layers=repeated(LayerSpec(mixer, None), layer_count(config)),
        max_position_embeddings=CONTEXT,
        norm_eps=config.number("norm_eps", 1e-5),
        tied_head=config.flag("tie_word_embeddings", tied),
    )


def weights_alone(
    spec: DecoderSpec, fields: Mapping[str, Mapping[str, Any]], recurrent: Mapping[str, str]
) -> dict[str, Source]:
    """Where the weights of a model of such layers alone are: each layer has one norm. See `named`."""
    return named(
        spec,
        prefix="backbone.",
        layers="backbone.layers.",
        linears={},
        norms={"attention_norm": "norm"},
        outside={"embed_tokens": "backbone.embeddings", "final_norm": "backbone.norm_f", "lm_head": "lm_head"},
        fields=fields,
        recurrent=recurrent,
    )
