"""GGUF of Jamba: Mamba-1 in most layers, attention in the others, and experts in some.

Source: conversion/jamba.py of llama.cpp.
"""

from __future__ import annotations

from ipex_assist.checkpoints.gguf_file import GgufHeader
from ipex_assist.checkpoints.gguf_recurrent import mamba1_layer
from ipex_assist.checkpoints.gguf_tables import (
    ATTENTION,
    EMBEDDING,
    HEAD,
    MLP,
    Config,
    GgufTable,
    has,
    layers_with,
    same,
)
from ipex_assist.env.errors import IpexAssistError

_MLPS = {theirs.removeprefix("mlp."): ours for theirs, ours in MLP.items()}
_TABLE = GgufTable(
    layer=(
        *same({**ATTENTION, **{f"feed_forward.{theirs}": ours for theirs, ours in _MLPS.items()}}),
        *same({"input_layernorm": "attn_norm", "pre_ff_layernorm": "ffn_norm", "feed_forward.router": "ffn_gate_inp"}),
        *mamba1_layer("mamba"),
        *same({f"mamba.{leaf}_layernorm": f"ssm_{leaf}_norm" for leaf in ("dt", "b", "c")}),
    ),
    outside=(*EMBEDDING, *HEAD, *same({"model.final_layernorm": "output_norm"})),
    experts={
        f"feed_forward.experts.{{}}.{theirs}.weight": f"{ours}_exps.{{}}.weight" for theirs, ours in _MLPS.items()
    },
)


def _period(header: GgufHeader, name: str, tensor: str, count: int) -> Config:
    """Every how many layers one has this tensor, and from which on. Raises IpexAssistError where that is no rule."""
    there = layers_with(header, tensor, count)
    found = [layer for layer, each in enumerate(there) if each] or [count]
    period = found[1] - found[0] if len(found) > 1 else max(count, found[0] + 1)
    if there != [layer % period == found[0] for layer in range(count)]:
        raise IpexAssistError(
            f"{header.path}: layers {', '.join(map(str, found))} have {tensor}, which are not every so many. Pass the "
            "model's Hugging Face id or folder instead."
        )
    return {f"{name}_period": period, f"{name}_offset": found[0]}


def _config(header: GgufHeader, config: Config) -> Config:
    count = config["num_hidden_layers"]
    return {
        **_period(header, "attn_layer", "attn_q.weight", count),
        **_period(header, "expert_layer", "ffn_gate_inp.weight", count),
        "num_experts": header.get("{arch}.expert_count") or 1,
        "num_experts_per_tok": header.get("{arch}.expert_used_count") or 1,
        "mamba_d_state": header.required("ssm.state_size"),
        "mamba_d_conv": header.required("ssm.conv_kernel"),
        "mamba_dt_rank": header.required("ssm.time_step_rank"),
        "mamba_expand": header.required("ssm.inner_size") // config["hidden_size"],
        "mamba_conv_bias": has(header, "ssm_conv1d.bias"),
        "mamba_proj_bias": has(header, "ssm_in.bias"),
    }


ARCHITECTURES = {"jamba": ("JambaForCausalLM", "jamba", _TABLE)}
CONFIGS = {"jamba": _config}
