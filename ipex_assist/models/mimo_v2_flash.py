"""MiMo-V2-Flash: values narrower than keys, windows with sinks in five of six layers, and DeepSeek's experts."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models.common import (
    FULL,
    SLIDING,
    check_kinds,
    deepseek_experts,
    layer_count,
    llama_like,
    number_or_none,
    refuse,
    ropes_by_kind,
    sparse_kinds,
)
from ipex_assist.models.config import Config
from ipex_assist.models.layers import with_attention
from ipex_assist.models.names import ExpertNames, named, renamed, sinks
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "MiMoV2FlashForCausalLM"
EXAMPLES = ("XiaomiMiMo/MiMo-V2-Flash",)
NAMES = {"norm_eps": "rms_norm_eps", "num_experts": "n_routed_experts"}
_ROTATED = 0.334
_THETAS = {FULL: ("rope_theta", 5000000.0), SLIDING: ("swa_rope_theta", 10000.0)}


def spec(config: Config) -> DecoderSpec:
    """Layers with windows have twice the key/value heads of the others. A published window leaves out a row's own."""
    refuse(config, scoring_func="sigmoid", n_shared_experts=0, add_full_attention_sink_bias=False)
    refuse(config, add_swa_attention_sink_bias=True)
    kinds, head_dim = _kinds(config), config.integer("head_dim", 192)
    before = config.optional_integer("sliding_window_size")
    window = config.integer("sliding_window", 129) if before is None else before + 1
    given = config.part("rope_parameters")
    ropes = {
        kind: Config({"rope_parameters": given.get(kind, {"rope_theta": config.number(*theta)})})
        for kind, theta in _THETAS.items()
    }
    kv_heads, sparse = config.integer("num_key_value_heads", 4), _sparse(config)
    scale = number_or_none(config, "attention_value_scale", 0.707)
    alike = llama_like(
        "mimo_v2_flash",
        config,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=config.integer("v_head_dim", 128),
        attention_value_scale=scale,
        norm_eps=config.number("norm_eps", config.number("layernorm_epsilon", 1e-5)),
        qkv_bias=config.flag("attention_bias", False),
        **ropes_by_kind(ropes, kinds, head_dim, config.number("partial_rotary_factor", _ROTATED)),
        sliding_windows=tuple(window if kind == SLIDING else None for kind in kinds),
        **({"experts": deepseek_experts(config), "sparse": sparse} if any(sparse) else {}),
    )
    of_windows = config.integer("swa_num_key_value_heads", 2 * kv_heads)
    layers = with_attention(alike.layers, "kv_heads", [of_windows if kind == SLIDING else kv_heads for kind in kinds])
    return replace(alike, layers=with_attention(layers, "sinks", [kind == SLIDING for kind in kinds]))


def layer_after(config: Config, number: int) -> LayerSpec:
    """With a window, and dense."""
    return spec(config.but(num_hidden_layers=1, layer_types=[SLIDING], mlp_layer_types=["dense"])).layers[0]


def _kinds(config: Config) -> list[str]:
    """What the maker's config calls a pattern of 0 and 1; else the first layer and every sixth see everything."""
    pattern = config.optional_flags("hybrid_layer_pattern")
    usual = pattern or [layer > 0 and (layer + 1) % 6 != 0 for layer in range(layer_count(config))]
    kinds = config.optional_texts("layer_types") or [SLIDING if window else FULL for window in usual]
    check_kinds(kinds, FULL, SLIDING)
    return kinds


def _sparse(config: Config) -> list[bool]:
    """Which layers have experts; the maker's config says it by 0 and 1, too."""
    listed = isinstance(config.values.get("moe_layer_freq"), list) and config.values.get("mlp_layer_types") is None
    return (config.optional_flags("moe_layer_freq") if listed else None) or sparse_kinds(config)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Qwen's names of experts; sinks have a name of their own."""
    made = {ours: renamed(source, _published) for ours, source in sinks(spec).items()}
    return named(spec, experts=ExpertNames()) | made


def _published(name: str) -> list[str]:
    return [name.replace("sinks", "attention_sink_bias"), name]
