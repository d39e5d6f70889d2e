"""GGUF of Cohere's mixtures. Source: conversion/command_r.py of llama.cpp, and src/models/cohere2moe.cpp."""

from __future__ import annotations

from ipex_assist.checkpoints.gguf_deepseek import SHARED
from ipex_assist.checkpoints.gguf_families import layer_types
from ipex_assist.checkpoints.gguf_file import GgufHeader, rounded
from ipex_assist.checkpoints.gguf_tables import (
    ATTENTION,
    EXPERTS,
    MLP,
    OUTSIDE,
    Config,
    GgufTable,
    mlp_layer_types,
    same,
)

_TABLE = GgufTable(
    layer=(
        *same({**ATTENTION, **MLP, "input_layernorm": "attn_norm", "mlp.gate": "ffn_gate_inp"}),
        *same({f"mlp.shared_experts.{leaf}": f"{name}_shexp" for leaf, name in SHARED.items()}),
    ),
    outside=OUTSIDE,
    experts=EXPERTS,
)
_SOFTMAX = 1


def _config(header: GgufHeader, config: Config) -> Config:
    """Dense first layers have positions, whatever they see; a shared expert and the others are averaged."""
    scores = header.get("{arch}.expert_gating_func") or 0
    return {
        "intermediate_size": header.required("expert_feed_forward_length"),
        "prefix_dense_intermediate_size": config["intermediate_size"],
        "mlp_layer_types": mlp_layer_types(header, config["num_hidden_layers"]),
        "layer_types": layer_types(header, config, 4),
        "sliding_window": header.required("attention.sliding_window"),
        "prefix_dense_sliding_window_pattern": 1,
        "num_experts": header.required("expert_count"),
        "num_experts_per_tok": header.required("expert_used_count"),
        "num_shared_experts": header.get("{arch}.expert_shared_count") or 0,
        "shared_expert_combination_strategy": "average",
        "expert_selection_fn": "softmax" if scores == _SOFTMAX else "sigmoid",
        "norm_topk_prob": header.get("{arch}.expert_weights_norm", False),
        "logit_scale": rounded(header.get("{arch}.logit_scale", 0.0625)),
        "attention_bias": False,
    }


ARCHITECTURES = {"cohere2moe": ("Cohere2MoeForCausalLM", "cohere2_moe", _TABLE)}
CONFIGS = {"cohere2moe": _config}
