"""Nemotron-H and Nemotron 3 Nano: blocks of Mamba-2, attention without positions, an MLP or experts, in any order."""

from __future__ import annotations

import math
from dataclasses import replace

from ipex_assist.models.common import llama_like
from ipex_assist.models.config import Config
from ipex_assist.models.mamba_layers import mamba2_mixer, mamba_fields, mamba_names
from ipex_assist.models.names import ExpertNames, named, renamed, renumbered
from ipex_assist.models.nemotron_h_layers import layers_of, sizes, with_new_names
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
    config = with_new_names(config)
    alike = llama_like("nemotron_h", config, num_hidden_layers=1, ropes=(), **sizes(config))
    steps = config.number("time_step_min", 0.001), math.inf
    mamba = mamba2_mixer(config, config.text("mamba_hidden_act", "silu"), steps)
    return replace(alike, layers=layers_of(config, mamba, alike.layers[0]))


def layer_after(config: Config, number: int) -> LayerSpec:
    """The blocks of a pattern of its own."""
    kinds = dict.fromkeys(("layers_block_type", "layer_types"), config.values.get("mtp_layers_block_type"))
    pattern = config.text("mtp_hybrid_override_pattern", "*E")
    return spec(config.but(**kinds, hybrid_override_pattern=pattern)).layers[0]


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

    def block(layer: int, leaf: str) -> int:
        return first[layer] + (leaf in (*_UP_DOWN, "mlp_norm", "router", "correction_bias", "experts", "shared"))

    return {ours: renamed(source, _both_names) for ours, source in renumbered(sources, block).items()}


def _both_names(name: str) -> list[str]:
    """A tensor's names before and since transformers 5."""
    return [name, name.replace("backbone.", "model.", 1)]
