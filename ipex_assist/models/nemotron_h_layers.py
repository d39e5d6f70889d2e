"""The layers of Nemotron-H: the blocks that its config lists, and the sizes of those that are no Mamba-2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_assist.models.common import FULL, activation, check_kinds, deepseek_experts, refuse
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.gated_delta import LINEAR
from ipex_assist.models.mamba_layers import kv_heads
from ipex_assist.models.mlp_spec import Experts
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import LayerSpec

_KINDS = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe", "mamba": LINEAR, "attention": FULL}
# Names of older files.
_OLD_NAMES = {
    **{"mamba_n_groups": "n_groups", "mamba_d_conv": "conv_kernel"},
    **{"mamba_dt_min": "time_step_min", "mamba_conv_bias": "use_conv_bias", "layer_types": "layers_block_type"},
}


def with_new_names(config: Config) -> Config:
    """The config with today's names beside those of older files."""
    older = {new: config.values[old] for old, new in _OLD_NAMES.items() if old in config.values}
    return Config({**config.values, **older}, config.other_names)


def layers_of(config: Config, mamba: RecurrentSpec, other: LayerSpec) -> tuple[LayerSpec, ...]:
    """The layers that the blocks make. other: the attention, and the MLP, of blocks that are one.

    Raises NotComputed for an MLP that follows no mixer.
    """
    mixers = {LINEAR: mamba, FULL: other.mixer}
    layers: list[LayerSpec] = []
    for kind in _kinds(config):
        if kind in mixers:
            layers.append(LayerSpec(mixers[kind], None))
        elif not layers or layers[-1].mlp is not None:
            raise NotComputed(f"a block of {kind!r} that follows no mixer is not supported")
        else:
            layers[-1] = replace(layers[-1], mlp=_experts(config) if kind == "moe" else other.mlp)
    return tuple(layers)


def _kinds(config: Config) -> list[str]:
    pattern = config.text("hybrid_override_pattern", "")
    kinds = config.optional_texts("layers_block_type") or list(pattern) or [LINEAR, "moe", FULL, "mlp"]
    kinds = [_KINDS.get(kind, kind) for kind in kinds]
    check_kinds(kinds, *_KINDS.values(), what="blocks")
    return kinds


def sizes(config: Config) -> dict[str, Any]:
    """Fields of attention and of the MLP, where they are not Llama's."""
    refuse(config, attention_bias=False, sliding_window=None, tie_word_embeddings=False)
    return {
        "head_dim": config.integer("head_dim", 128),
        "num_key_value_heads": kv_heads(config),
        "norm_eps": config.number("norm_eps", 1e-5),
        "max_position_embeddings": config.integer("max_position_embeddings", 4096),
        "intermediate_size": config.integer("intermediate_size", 21504),
        "activation": activation(config.text("mlp_hidden_act", "relu2")),
        "gated": False,
        "mlp_bias": config.flag("mlp_bias", False),
    }


def _experts(config: Config) -> Experts:
    """Biases are those of shared experts alone, and refused."""
    refuse(config, moe_latent_size=None, mlp_bias=False)
    shared, act = config.integer("shared_expert_intermediate_size", 7688), config.text("mlp_hidden_act", "relu2")
    return deepseek_experts(config, activation=activation(act), gated=False, shared_size=shared)
