"""Llama 4, the text part: chunks in three of four layers, all positions and no rotation in the fourth; experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ipex_assist.models.common import FULL, activation, even_head_dim, experts, layer_count, llama_like, rope
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.layers import with_attention
from ipex_assist.models.mlp_spec import Experts
from ipex_assist.models.names import LLAMA_LINEARS, MLP, ExpertNames, named, rotated_by_pairs
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Llama4ForCausalLM"
EXAMPLES = ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "meta-llama/Llama-4-Maverick-17B-128E-Instruct")
NAMES = {
    **{"norm_eps": "rms_norm_eps", "num_experts": "num_local_experts", "moe_intermediate_size": "intermediate_size"},
    **{"intermediate_size": "intermediate_size_mlp", "llama_4_scaling_beta": "attn_scale"},
}
CHUNKED = "chunked_attention"
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
    sparse = _sparse(config, count)
    fields: dict[str, Any] = {"intermediate_size": config.integer("intermediate_size", 16384)}
    if any(sparse):
        fields |= {"experts": _experts(config), "sparse": sparse}
    alike = llama_like(
        "llama4_text",
        config,
        num_key_value_heads=config.integer("num_key_value_heads", config.integer("num_attention_heads")),
        head_dim=_head_dim(config),
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
    rotates = _rotates(config, count)
    grows = config.number("attn_scale", 0.1) if config.flag("attn_temperature_tuning", True) else 0.0
    norm = "unweighted" if config.flag("use_qk_norm", True) else None
    layers: Sequence[Any] = alike.layers
    fields = {
        "rope": [0 if each else None for each in rotates],
        "qk_norm": [norm if each else None for each in rotates],
        "growth": [0.0 if each else grows for each in rotates],
        "chunk": _chunks(config, rotates),
    }
    for name, values in fields.items():
        layers = with_attention(layers, name, values)
    return replace(alike, layers=tuple(layers))


def _head_dim(config: Config) -> int:
    null = "head_dim" in config.values and config.values["head_dim"] is None
    return even_head_dim(config) if null else config.integer("head_dim", 128)


def _rotates(config: Config, count: int) -> list[bool]:
    every = config.integer("no_rope_layer_interval", 4)
    given = config.optional_flags("no_rope_layers")
    return given or [every < 1 or (layer + 1) % every != 0 for layer in range(count)]


def _chunks(config: Config, rotates: list[bool]) -> list[int | None]:
    kinds = config.optional_texts("layer_types") or [CHUNKED if each else FULL for each in rotates]
    if unknown := sorted(set(kinds) - {CHUNKED, FULL}):
        raise NotComputed(f"layers of the type {unknown[0]!r} are not supported")
    given = "attention_chunk_size" in config.values
    size = config.optional_integer("attention_chunk_size") if given else 8192
    if size is None and CHUNKED in kinds:
        raise NotComputed("layers with chunks of attention, and a config that gives no attention_chunk_size")
    return [size if kind == CHUNKED else None for kind in kinds]


def _sparse(config: Config, count: int) -> list[bool]:
    step, given = config.integer("interleave_moe_layer_step", 1), config.values.get("moe_layers")
    if given is None:
        return [step > 0 and (layer + 1) % step == 0 for layer in range(count)]
    listed = config.integers("moe_layers")
    return [layer in listed for layer in range(count)]


def _experts(config: Config) -> Experts:
    """A row's are those of its largest logits, whose sigmoids scale what they read."""
    act = activation(config.text("hidden_act", "silu"))
    size = config.integer("moe_intermediate_size", 8192)
    return experts(config, activation=act, normalised=False, scores="sigmoid", scales_inputs=True, shared_size=size)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """All experts' matrices lie in two tensors, (in, out), gate before up; some checkpoints have each by itself."""
    linears = {**LLAMA_LINEARS, **{leaf: f"{_PLACE}.{leaf}" for leaf in MLP}}
    made = named(spec, linears=linears, fields=rotated_by_pairs(spec), experts=_EXPERTS)
    for ours, source in made.items():
        if source.expert is not None:
            size = spec.layers[int(ours.split(".")[1])].inner_size
            rows = {"gate_proj": (0, size), "up_proj": (size, 2 * size)}.get(ours.split(".")[-2])
            made[ours] = replace(source, transposed=True, rows=rows)
    return made
