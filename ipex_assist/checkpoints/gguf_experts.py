"""Mixtures of experts in GGUF: a layer's experts are stacked in three tensors (experts, …), and read one at a time.

Source: conversion/{llama,qwen,olmo,granite}.py of llama.cpp, and src/models/*.cpp for the routing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ipex_assist.checkpoints import gguf_families
from ipex_assist.checkpoints.gguf_file import GgufHeader, rows_of
from ipex_assist.env.errors import IpexAssistError

Config = dict[str, Any]

_SHARED = tuple(f"mlp.shared_expert.{leaf}_proj" for leaf in ("gate", "up", "down"))
_QWEN = gguf_families.modules(*gguf_families.ATTENTION, *gguf_families.PRE_NORMS, "mlp.gate")
_NORMED = (*_QWEN, *(f"model.layers.{{bid}}.{name}" for name in gguf_families.HEAD_NORMS))
_MIXTRAL = gguf_families.modules(*gguf_families.ATTENTION, *gguf_families.PRE_NORMS, "block_sparse_moe.gate")
_GRANITE = gguf_families.modules(*gguf_families.ATTENTION, *gguf_families.PRE_NORMS, "block_sparse_moe.router.layer")
_GPT_OSS = gguf_families.modules(*gguf_families.ATTENTION, *gguf_families.PRE_NORMS, "self_attn.sinks", "mlp.router")

# general.architecture, or "mixtral" for "llama" with experts -> (architectures[0], model_type, Hugging Face modules).
ARCHITECTURES = {
    "mixtral": ("MixtralForCausalLM", "mixtral", _MIXTRAL),
    "qwen2moe": (
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        (*_QWEN, *(f"model.layers.{{bid}}.{name}" for name in (*_SHARED, "mlp.shared_expert_gate"))),
    ),
    "qwen3moe": ("Qwen3MoeForCausalLM", "qwen3_moe", _NORMED),
    "olmoe": ("OlmoeForCausalLM", "olmoe", _NORMED),
    "granitemoe": ("GraniteMoeForCausalLM", "granitemoe", _GRANITE),
    "gpt-oss": ("GptOssForCausalLM", "gpt_oss", _GPT_OSS),
}

# Names of an expert's three linears: Hugging Face's, and for Granite, which stacks its experts, our own.
_LINEARS = {
    "mixtral": {"gate": "block_sparse_moe.experts.{}.w1", "up": "block_sparse_moe.experts.{}.w3"}
    | {"down": "block_sparse_moe.experts.{}.w2"},
    "granitemoe": {leaf: f"block_sparse_moe.experts.{{}}.{leaf}_proj" for leaf in ("gate", "up", "down")},
}
_USUAL = {leaf: f"mlp.experts.{{}}.{leaf}_proj" for leaf in ("gate", "up", "down")}


def _sizes(header: GgufHeader) -> Config:
    count, used = header.required("expert_count"), header.required("expert_used_count")
    return {"num_experts": count, "num_local_experts": count, "num_experts_per_tok": used}


def _qwen2(header: GgufHeader, config: Config) -> Config:
    gate = header.tensors.get("blk.0.ffn_gate_shexp.weight")
    shared = header.get("{arch}.expert_shared_feed_forward_length") or (gate.shape[0] if gate else 0)
    return _qwen(header, normalised=False) | {"shared_expert_intermediate_size": shared}


def _qwen(header: GgufHeader, normalised: bool) -> Config:
    gate = header.tensors.get("blk.0.ffn_gate_exps.0.weight")
    if gate is None:
        raise IpexAssistError(
            f"{header.path}: layer 0 has no experts, and mixtures of which some layers have none are not computed from "
            "GGUF files. Pass the model's Hugging Face id or folder instead."
        )
    return {
        "moe_intermediate_size": header.get("{arch}.expert_feed_forward_length") or gate.shape[0],
        "norm_topk_prob": normalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "qkv_bias": "blk.0.attn_q.bias" in header.tensors,
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
    }


def _gpt_oss(header: GgufHeader, config: Config) -> Config:
    """Fields that files do not state, equal in both sizes. yarn's range is not truncated, unlike in llama.cpp."""
    window, scaling = header.get("{arch}.attention.sliding_window"), config["rope_scaling"]
    layers = range(config["num_hidden_layers"])
    return {
        "rope_scaling": scaling and scaling | {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "intermediate_size": header.get("{arch}.expert_feed_forward_length") or config["intermediate_size"],
        "sliding_window": window,
        "layer_types": ["full_attention" if layer % 2 else "sliding_attention" for layer in layers],
    }


def _olmoe(header: GgufHeader, config: Config) -> Config:
    return {"norm_topk_prob": False, "clip_qkv": header.get("{arch}.attention.clamp_kqv") or None}


CONFIGS: dict[str, Callable[[GgufHeader, Config], Config]] = {
    "mixtral": lambda header, config: {"sliding_window": header.get("{arch}.attention.sliding_window")},
    "qwen2moe": _qwen2,
    "qwen3moe": lambda header, config: _qwen(header, normalised=True),
    "olmoe": _olmoe,
    "granitemoe": gguf_families.CONFIGS["granite"],
    "gpt-oss": _gpt_oss,
}
# Metadata of routing variants that no family above has, with the values that mean "not used".
_USUAL_ROUTING: dict[str, tuple[Any, ...]] = {
    "expert_gating_func": (None, 0, 1),  # softmax
    "expert_weights_scale": (None, 0.0, 1.0),
    "expert_group_count": (None, 0, 1),
    "leading_dense_block_count": (None, 0),
    "interleave_moe_layer_step": (None, 0, 1),
    "moe_every_n_layers": (None, 0, 1),
    "nextn_predict_layers": (None, 0),
}


def config_of(header: GgufHeader, family: str, config: Config) -> Config:
    """The config keys of a mixture that differ from Llama's. Raises IpexAssistError for an unsupported routing."""
    for key, usual in _USUAL_ROUTING.items():
        if (value := header.get(f"{{arch}}.{key}")) not in usual:
            raise IpexAssistError(
                f"{header.path}: {key} is {value!r}, a routing of experts that is not computed for GGUF files. "
                "Pass the model's Hugging Face id or folder instead."
            )
    own = CONFIGS[family](header, config)
    normalised = header.get("{arch}.expert_weights_norm")
    if normalised is not None and normalised != own.get("norm_topk_prob", True):
        raise IpexAssistError(
            f"{header.path}: expert_weights_norm is {normalised!r}, unlike that of its family. Pass the model's "
            "Hugging Face id or folder instead."
        )
    return _sizes(header) | own


def separate(header: GgufHeader) -> None:
    """Split stacked tensors into one for each expert: "blk.0.ffn_up_exps.7.weight" is the eighth.

    Gate and up may be one tensor, in this order.
    """
    count = header.get("{arch}.expert_count")
    if not count:
        return
    for name, tensor in [*header.tensors.items()]:
        block, _, rest = name.partition(".ffn_")
        leaf, _, suffix = rest.partition("_exps.")
        if suffix not in ("weight", "bias") or leaf not in ("gate", "up", "down", "gate_up"):
            continue
        if len(tensor.shape) != (3 if suffix == "weight" else 2) or tensor.shape[0] != count:
            raise IpexAssistError(
                f"{header.path} is corrupt: {name} has shape {list(tensor.shape)}, but the metadata ask for {count:,} "
                "experts. Download or convert it again."
            )
        del header.tensors[name]
        for expert in range(count):
            one = replace(rows_of(name, tensor, expert, expert + 1), shape=tensor.shape[1:])
            rows = one.shape[0]
            parts = {leaf: one}
            if leaf == "gate_up":
                parts = {"gate": rows_of(name, one, 0, rows // 2), "up": rows_of(name, one, rows // 2, rows)}
            for part, own in parts.items():
                header.tensors[f"{block}.ffn_{part}_exps.{expert}.{suffix}"] = own


def modules(header: GgufHeader, family: str) -> dict[str, str]:
    """Hugging Face's module names of all experts, by the names that `separate` gives them."""
    if family not in ARCHITECTURES:
        return {}
    linears = _LINEARS.get(family, _USUAL)
    return {
        f"blk.{layer}.ffn_{leaf}_exps.{expert}": f"model.layers.{layer}.{name.format(expert)}"
        for layer in range(header.required("block_count"))
        for expert in range(header.required("expert_count"))
        for leaf, name in linears.items()
    }
