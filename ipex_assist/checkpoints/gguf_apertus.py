"""GGUF of Apertus: Llama, but for an activation whose numbers files have in their metadata, by layer.

Source: conversion/apertus.py of llama.cpp.
"""

from __future__ import annotations

from ipex_assist.checkpoints.gguf_file import GgufHeader
from ipex_assist.checkpoints.gguf_tables import ATTENTION, MLP, OUTSIDE, Config, GgufTable, has, same

_TABLE = GgufTable(
    layer=(
        *same({**ATTENTION, **MLP, "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}),
        *same({"attention_layernorm": "attn_norm", "feedforward_layernorm": "ffn_norm"}),
    ),
    outside=OUTSIDE,
    numbers={f"mlp.act_fn.{name}": f"xielu.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps")},
)


def _config(header: GgufHeader, config: Config) -> Config:
    """Positions are said always: those of a config without them are scaled."""
    rope = config["rope_scaling"] or {"rope_type": "default", "rope_theta": config["rope_theta"]}
    return {"hidden_act": "xielu", "attention_bias": has(header, "attn_q.bias"), "rope_scaling": rope}


ARCHITECTURES = {"apertus": ("ApertusForCausalLM", "apertus", _TABLE)}
CONFIGS = {"apertus": _config}
