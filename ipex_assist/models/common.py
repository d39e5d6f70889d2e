"""What the model files share: reading configs, and the checkpoint names of the Llama family."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.spec import ACTIVATIONS, ROPE_RANGES, Activation, DecoderSpec, Rope, RopeKind
from ipex_assist.models.weights import Source

ROPE_KINDS: tuple[RopeKind, ...] = get_args(RopeKind)


def activation(name: str) -> Activation:
    """Our name of an activation; NotComputed for one we do not have."""
    if name not in ACTIVATIONS:
        raise NotComputed(f"activation {name!r} is not supported; known: {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]


def rope(config: Config, default_theta: float = 10000.0) -> Rope:
    """Rotary positions of a config, as written by transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters).

    Raises ConfigError for values that cannot be, NotComputed for rules we do not have.
    """
    part = Config(config.part("rope_parameters") or config.part("rope_scaling"))
    kind = part.text("rope_type", part.text("type", "default"))
    if kind not in ROPE_KINDS:
        raise NotComputed(f"rope type {kind!r} is not supported; known: {', '.join(ROPE_KINDS)}")
    if any(isinstance(value, dict) for value in part.values.values()):
        raise NotComputed("rotary positions that differ by the kind of layer are not supported")
    if part.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0)) != 1.0:
        raise NotComputed("rotary positions over a part of each head (partial_rotary_factor) are not supported")
    theta = part.number("rope_theta", config.number("rope_theta", default_theta))
    scaling: dict[str, Any] = {}
    for name in ROPE_RANGES:
        if name != "rope_theta" and (value := part.optional_number(name)) is not None:
            scaling[name] = value
    if kind == "yarn":
        scaling["truncate"] = part.flag("truncate", True)
        trained = part.optional_number("original_max_position_embeddings")
        if "factor" not in scaling and trained:
            scaling["factor"] = config.integer("max_position_embeddings") / trained
    return Rope(theta=float(theta), kind=kind, scaling=scaling)


def with_windows(spec: DecoderSpec, config: Config) -> DecoderSpec:
    """Return the spec with each layer's window, by Qwen's layer_types or max_window_layers. Raises NotComputed."""
    window = config.optional_integer("sliding_window")
    if not config.flag("use_sliding_window", False) or window is None:
        return spec
    layers = spec.num_hidden_layers
    first = config.integer("max_window_layers", layers)
    kinds = config.optional_texts("layer_types") or [
        "full_attention" if layer < first else "sliding_attention" for layer in range(layers)
    ]
    if unknown := sorted(set(kinds) - {"full_attention", "sliding_attention"}):
        raise NotComputed(f"layers of the type {unknown[0]!r} are not supported")
    return replace(spec, sliding_windows=tuple(window if kind == "sliding_attention" else None for kind in kinds))


def even_head_dim(config: Config) -> int:
    """Return hidden_size ÷ heads, where the config gives no head_dim. Raises ConfigError where it is not whole."""
    hidden_size, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if heads < 1 or hidden_size % heads:
        raise ConfigError(config.stored_name("num_attention_heads"), heads, f"a divisor of the width, {hidden_size:,}")
    return hidden_size // heads


def llama_like(model_type: str, config: Config, **differences: Any) -> DecoderSpec:
    """The spec of a model that is Llama but for `differences`."""
    heads, head_dim = config.integer("num_attention_heads"), config.optional_integer("head_dim")
    if head_dim is None and "head_dim" not in differences:
        head_dim = even_head_dim(config)
    fields: dict[str, Any] = {
        "model_type": model_type,
        "vocab_size": config.integer("vocab_size"),
        "hidden_size": config.integer("hidden_size"),
        "intermediate_size": config.integer("intermediate_size"),
        "num_hidden_layers": config.integer("num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": config.integer("num_key_value_heads", heads),
        "head_dim": head_dim,
        "max_position_embeddings": config.integer("max_position_embeddings", 2048),
        "norm_eps": config.number("norm_eps", 1e-6),
        "activation": activation(config.text("hidden_act", "silu")),
        "rope": rope(config),
        "tied_head": config.flag("tie_word_embeddings", False),
    }
    return DecoderSpec(**{**fields, **differences})


def llama_weights(spec: DecoderSpec) -> dict[str, Source]:
    """Checkpoint names of every weight of a Llama-like model."""
    biased = {
        "q_proj": spec.qkv_bias,
        "k_proj": spec.qkv_bias,
        "v_proj": spec.qkv_bias,
        "o_proj": spec.output_bias,
        "gate_proj": spec.mlp_bias,
        "up_proj": spec.mlp_bias,
        "down_proj": spec.mlp_bias,
    }
    names = {"embed_tokens.weight": "model.embed_tokens.weight", "final_norm.weight": "model.norm.weight"}
    if not spec.tied_head:
        names["lm_head.weight"] = "lm_head.weight"
    for layer in range(spec.num_hidden_layers):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        names[ours + "attention_norm.weight"] = theirs + "input_layernorm.weight"
        names[ours + "mlp_norm.weight"] = theirs + "post_attention_layernorm.weight"
        for projection, bias in biased.items():
            block = "self_attn." if projection in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp."
            names[f"{ours}{projection}.weight"] = f"{theirs}{block}{projection}.weight"
            if bias:
                names[f"{ours}{projection}.bias"] = f"{theirs}{block}{projection}.bias"
        if spec.qk_norm:
            names[ours + "q_norm.weight"] = theirs + "self_attn.q_norm.weight"
            names[ours + "k_norm.weight"] = theirs + "self_attn.k_norm.weight"
    # Checkpoints saved from the bare model lack the "model." prefix.
    return {ours: Source(name, alternatives=(name.removeprefix("model."),)) for ours, name in names.items()}
