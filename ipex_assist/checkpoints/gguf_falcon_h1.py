"""GGUF of Falcon-H1. Source: conversion/falcon_h1.py of llama.cpp, and src/models/falcon-h1.cpp.

Its multipliers are parts of the weights.
"""

from __future__ import annotations

from ipex_assist.checkpoints.gguf_file import GgufHeader
from ipex_assist.checkpoints.gguf_recurrent import mamba2_layer
from ipex_assist.checkpoints.gguf_tables import ATTENTION, EMBEDDING, HEAD, MLP, Config, GgufTable, Parts, has, same

_TABLE = GgufTable(
    layer=(
        *same({**ATTENTION, **{theirs.replace("mlp.", "feed_forward."): ours for theirs, ours in MLP.items()}}),
        *same({"input_layernorm": "attn_norm", "pre_ff_layernorm": "ffn_norm"}),
        ("pre_ff_layernorm.weight", Parts.of("ffn_norm")),  # as the converter calls it
        *mamba2_layer("mamba"),
    ),
    outside=(*EMBEDDING, *HEAD, *same({"model.final_layernorm": "output_norm"})),
)


def _config(header: GgufHeader, config: Config) -> Config:
    """A norm, where there is one, is after the gate, as llama.cpp computes it."""
    inner, heads = header.required("ssm.inner_size"), header.required("ssm.time_step_rank")
    return {
        "mamba_d_ssm": inner,
        "mamba_n_heads": heads,
        "mamba_d_head": inner // max(heads, 1),
        "mamba_n_groups": header.required("ssm.group_count"),
        "mamba_d_state": header.required("ssm.state_size"),
        "mamba_d_conv": header.required("ssm.conv_kernel"),
        "mamba_conv_bias": has(header, "ssm_conv1d.bias"),
        "mamba_proj_bias": has(header, "ssm_in.bias"),
        "projectors_bias": has(header, "ssm_out.bias"),
        "mamba_rms_norm": has(header, "ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "attention_bias": has(header, "attn_q.bias"),
        "mlp_bias": has(header, "ffn_up.bias"),
    }


ARCHITECTURES = {"falcon-h1": ("FalconH1ForCausalLM", "falcon_h1", _TABLE)}
CONFIGS = {"falcon-h1": _config}
