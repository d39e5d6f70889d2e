"""GGUF of Llama 4. Source: conversion/llama.py of llama.cpp, and src/models/llama4.cpp for what files do not state."""

from __future__ import annotations

from ipex_assist.checkpoints.gguf_file import GgufHeader
from ipex_assist.checkpoints.gguf_tables import ATTENTION, MLP, OUTSIDE, Config, GgufTable, has, layers_with, same

_MLPS = {theirs.replace("mlp.", ""): ours for theirs, ours in MLP.items()}
_TABLE = GgufTable(
    layer=(
        *same({**ATTENTION, "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}),
        *same({f"feed_forward.{theirs}": ours for theirs, ours in _MLPS.items()}),
        *same({f"feed_forward.shared_expert.{theirs}": f"{ours}_shexp" for theirs, ours in _MLPS.items()}),
        *same({"feed_forward.router": "ffn_gate_inp"}),
    ),
    outside=OUTSIDE,
    experts={
        f"feed_forward.experts.{{}}.{theirs}.weight": f"{ours}_exps.{{}}.weight" for theirs, ours in _MLPS.items()
    },
)
_UNNORMED_EXPERTS = 128  # of Maverick, which alone does not norm its heads
_CHUNK = 8192


def _config(header: GgufHeader, config: Config) -> Config:
    """Chunks in three of four layers; in none of a file that has a window of 0, whose layers all rotate."""
    layers, experts = config["num_hidden_layers"], header.required("expert_count")
    whole = header.get("{arch}.attention.sliding_window") == 0
    sparse = layers_with(header, "ffn_gate_inp.weight", layers)
    return {
        "intermediate_size": header.required("expert_feed_forward_length"),
        "intermediate_size_mlp": config["intermediate_size"],
        "num_local_experts": experts,
        "num_experts_per_tok": header.required("expert_used_count"),
        "moe_layers": [layer for layer, each in enumerate(sparse) if each],
        "no_rope_layers": [int(whole or (layer + 1) % 4 != 0) for layer in range(layers)],
        "layer_types": ["full_attention"] * layers if whole else None,
        "attention_chunk_size": _CHUNK,
        "floor_scale": _CHUNK,
        "attn_scale": 0.1,
        "attn_temperature_tuning": True,
        "use_qk_norm": experts != _UNNORMED_EXPERTS,
        "attention_bias": has(header, "attn_q.bias"),
    }


ARCHITECTURES = {"llama4": ("Llama4ForCausalLM", "llama4_text", _TABLE)}
CONFIGS = {"llama4": _config}
