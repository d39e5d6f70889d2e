"""Nemotron-H and Nemotron 3 Nano: blocks of Mamba-2, attention without positions, an MLP or experts, in any order."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

from ipex_assist.models.common import FULL, activation, deepseek_experts, llama_like, refuse
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.gated_delta import LINEAR
from ipex_assist.models.mamba_layers import kv_heads, mamba2_mixer, mamba_fields, mamba_names
from ipex_assist.models.mlp_spec import Experts
from ipex_assist.models.names import ExpertNames, named, renamed
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "NemotronHForCausalLM"
EXAMPLES = ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
NAMES = {
    **{"norm_eps": "layer_norm_epsilon", "num_experts": "n_routed_experts", "num_hidden_layers": "layers_block_type"},
    **{"linear_num_value_heads": "mamba_num_heads", "linear_num_key_heads": "n_groups"},
    **{"linear_key_head_dim": "ssm_state_size", "linear_value_head_dim": "mamba_head_dim"},
    **{"linear_conv_kernel_dim": "conv_kernel"},
    "shared_expert_intermediate_size": "moe_shared_expert_intermediate_size",
}
_KINDS = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe", "mamba": LINEAR, "attention": FULL}
# Names of older files.
_OLD_NAMES = {
    **{"mamba_n_groups": "n_groups", "mamba_d_conv": "conv_kernel"},
    **{"mamba_dt_min": "time_step_min", "mamba_conv_bias": "use_conv_bias", "layer_types": "layers_block_type"},
}
_UP_DOWN = ("up_proj", "down_proj")
_EXPERTS = ExpertNames(
    ("mixer.gate",),
    {leaf: f"mixer.experts.{{}}.{leaf}" for leaf in _UP_DOWN},
    {leaf: f"mixer.shared_experts.{leaf}" for leaf in _UP_DOWN},
    correction_bias=("mixer.gate.e_score_correction_bias",),
    together="mixer.experts",
)
_LINEARS = {f"{leaf}_proj": f"mixer.{leaf}_proj" for leaf in ("q", "k", "v", "o", "up", "down")}


def spec(config: Config) -> DecoderSpec:
    """A layer of ours is a mixer, and the MLP after it, if there is one. Experts in a latent space are not computed."""
    older = {new: config.values[old] for old, new in _OLD_NAMES.items() if old in config.values}
    config = Config({**config.values, **older}, config.other_names)
    alike = llama_like("nemotron_h", config, num_hidden_layers=1, ropes=(), **_sizes(config))
    steps = config.number("time_step_min", 0.001), math.inf
    mamba = mamba2_mixer(config, config.text("mamba_hidden_act", "silu"), steps)
    mixers = {LINEAR: mamba, FULL: alike.layers[0].mixer}
    layers: list[LayerSpec] = []
    for kind in _kinds(config):
        if kind in mixers:
            layers.append(LayerSpec(mixers[kind], None))
        elif not layers or layers[-1].mlp is not None:
            raise NotComputed(f"a block of {kind!r} that follows no mixer is not supported")
        else:
            layers[-1] = replace(layers[-1], mlp=_experts(config) if kind == "moe" else alike.layers[0].mlp)
    return replace(alike, layers=tuple(layers))


def _kinds(config: Config) -> list[str]:
    pattern = config.text("hybrid_override_pattern", "")
    kinds = config.optional_texts("layers_block_type") or list(pattern) or [LINEAR, "moe", FULL, "mlp"]
    kinds = [_KINDS.get(kind, kind) for kind in kinds]
    if unknown := sorted(set(kinds) - set(_KINDS.values())):
        raise NotComputed(f"blocks of the type {unknown[0]!r} are not supported")
    return kinds


def _sizes(config: Config) -> dict[str, Any]:
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


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """A layer's MLP is a block of its own in the checkpoint, after that of its mixer; each has one norm."""
    sources = named(
        spec,
        prefix="",
        layers="backbone.layers.",
        linears=_LINEARS,
        norms={"attention_norm": "norm", "mlp_norm": "norm"},
        outside={"embed_tokens": "backbone.embeddings", "final_norm": "backbone.norm_f", "lm_head": "lm_head"},
        fields=mamba_fields(spec.recurrents[0] if spec.recurrents else None),
        experts=_EXPERTS,
        recurrent=mamba_names("mixer"),
    )
    first = [0]
    for layer in spec.layers:
        first.append(first[-1] + (1 if layer.mlp is None else 2))
    return {ours: renamed(source, partial(_in_block, ours, first)) for ours, source in sources.items()}


def _in_block(ours: str, first: list[int], name: str) -> list[str]:
    """A tensor's names in the block where it is, before and since transformers 5. first: of each layer."""
    place, _, rest = ours.partition(".")
    if place == "layers":
        number, leaf = int(rest.split(".")[0]), rest.split(".")[1]
        block = first[number] + (leaf in (*_UP_DOWN, "mlp_norm", "router", "correction_bias", "experts", "shared"))
        name = name.replace(f"layers.{number}.", f"layers.{block}.", 1)
    return [name, name.replace("backbone.", "model.", 1)]
