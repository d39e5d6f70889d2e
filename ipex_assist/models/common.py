"""What the model files share: reading configs, and the checkpoint names of the Llama family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models.spec import ACTIVATIONS, Activation, DecoderSpec, Rope
from ipex_assist.models.weights import Source

ROPE_KINDS = ("default", "linear", "dynamic", "yarn", "llama3")


def activation(name: str) -> Activation:
    """Our name of an activation; IpexAssistError for one we do not compute."""
    if name not in ACTIVATIONS:
        raise IpexAssistError(f"activation {name!r} is not supported; known: {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]


def rope(config: Mapping[str, Any], default_theta: float = 10000.0) -> Rope:
    """Rotary positions of a config, as written by transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters)."""
    scaling = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = scaling.pop("rope_theta", None) or config.get("rope_theta") or default_theta
    kind = scaling.pop("rope_type", None) or scaling.pop("type", None) or "default"
    scaling.pop("type", None)
    if kind not in ROPE_KINDS:
        raise IpexAssistError(f"rope type {kind!r} is not supported; known: {', '.join(ROPE_KINDS)}")
    if (scaling.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise IpexAssistError("rotary positions over a part of each head (partial_rotary_factor) are not supported")
    if kind == "yarn" and not scaling.get("factor"):
        scaling["factor"] = config["max_position_embeddings"] / scaling["original_max_position_embeddings"]
    return Rope(theta=float(theta), kind=cast(Any, kind), scaling=scaling)


def sliding_windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """The window of each layer of Qwen's configs: layer_types where given, else the layers after max_window_layers."""
    if not config.get("use_sliding_window") or not config.get("sliding_window"):
        return ()
    layers = config["num_hidden_layers"]
    first = config.get("max_window_layers", layers)
    kinds = config.get("layer_types") or [
        "full_attention" if layer < first else "sliding_attention" for layer in range(layers)
    ]
    windows = tuple(config["sliding_window"] if kind == "sliding_attention" else None for kind in kinds)
    return windows if any(windows) else ()


def llama_like(model_type: str, config: Mapping[str, Any], **differences: Any) -> DecoderSpec:
    """The spec of a model that is Llama but for `differences`."""
    hidden_size, heads = config["hidden_size"], config["num_attention_heads"]
    fields: dict[str, Any] = {
        "model_type": model_type,
        "vocab_size": config["vocab_size"],
        "hidden_size": hidden_size,
        "intermediate_size": config["intermediate_size"],
        "num_hidden_layers": config["num_hidden_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or hidden_size // heads,
        "max_position_embeddings": config.get("max_position_embeddings", 2048),
        "norm_eps": config.get("rms_norm_eps", 1e-6),
        "activation": activation(config.get("hidden_act", "silu")),
        "rope": rope(config),
        "tied_head": bool(config.get("tie_word_embeddings", False)),
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
