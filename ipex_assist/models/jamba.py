"""Jamba: Mamba-1 in most layers, attention without positions in the others, and experts in every second one."""

from __future__ import annotations

from typing import Any

from ipex_assist.models.common import even_head_dim, expert_count, experts, layer_count, llama_like
from ipex_assist.models.config import Config, ConfigError
from ipex_assist.models.layers import with_mixers
from ipex_assist.models.mamba_layers import kv_heads, selective_fields, selective_mixer, selective_names
from ipex_assist.models.names import LLAMA_LINEARS, LLAMA_OUTSIDE, MLP, ExpertNames, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "JambaForCausalLM"
EXAMPLES = ("ai21labs/AI21-Jamba-Mini-1.7", "ai21labs/AI21-Jamba-Reasoning-3B", "ai21labs/Jamba-v0.1")
NAMES = {
    **{"norm_eps": "rms_norm_eps", "moe_intermediate_size": "intermediate_size", "gate_rank": "mamba_dt_rank"},
    **{"linear_key_head_dim": "mamba_d_state", "linear_conv_kernel_dim": "mamba_d_conv"},
}
_PLACE = "feed_forward"
_EXPERTS = ExpertNames(
    (f"{_PLACE}.router",),
    {leaf: f"{_PLACE}.experts.{{}}.{leaf}" for leaf in MLP},
    together=f"{_PLACE}.experts",
)


def spec(config: Config) -> DecoderSpec:
    """Layers with attention, and those with experts, come once in a period each, from an offset on."""
    count = layer_count(config)
    attention = _every(config, count, "attn_layer", 8, 4)
    sparse = _every(config, count, "expert_layer", 2, 1)
    fields: dict[str, Any] = {}
    if any(sparse) and expert_count(Config({"num_experts": 16, **config.values})) > 1:
        config = Config({"num_experts": 16, "num_experts_per_tok": 2, **config.values}, config.other_names)
        fields = {"experts": experts(config, normalised=False), "sparse": sparse}
    alike = llama_like(
        "jamba",
        config,
        head_dim=config.optional_integer("head_dim") or even_head_dim(config),
        num_key_value_heads=kv_heads(config),
        max_position_embeddings=config.integer("max_position_embeddings", 1 << 18),
        ropes=(),
        **fields,
    )
    mixer = None if all(attention) else selective_mixer(config, selection_norm="weighted")
    return with_mixers(alike, [None if each else mixer for each in attention])


def _every(config: Config, count: int, name: str, period: int, offset: int) -> list[bool]:
    """Of each layer, whether it is one that the config's period and offset name."""
    period, offset = config.integer(f"{name}_period", period), config.integer(f"{name}_offset", offset)
    if period < 1:
        raise ConfigError(f"{name}_period", period, "1 at least")
    if not 0 <= offset < period:
        raise ConfigError(f"{name}_offset", offset, f"from 0 to {period - 1}, below the period")
    return [layer % period == offset for layer in range(count)]


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names of attention; an MLP, a router and experts have one place."""
    return named(
        spec,
        linears={**LLAMA_LINEARS, **{leaf: f"{_PLACE}.{leaf}" for leaf in MLP}},
        norms={"attention_norm": "input_layernorm", "mlp_norm": "pre_ff_layernorm"},
        outside={**LLAMA_OUTSIDE, "final_norm": "model.final_layernorm"},
        fields=selective_fields(spec.recurrents[0] if spec.recurrents else None),
        experts=_EXPERTS,
        recurrent=selective_names("mamba"),
    )
