"""GGUF of mixtures whose layers have other heads where they have a window: MiMo-V2-Flash, Step 3.5 and 3.7, Laguna.

Source: conversion/{mimo,step3,laguna}.py of llama.cpp, and src/models/{mimo2,step35,laguna}.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ipex_assist.checkpoints.gguf_deepseek import SHARED, routing
from ipex_assist.checkpoints.gguf_file import GgufHeader, rounded
from ipex_assist.checkpoints.gguf_tables import (
    ATTENTION,
    EMBEDDING,
    EXPERTS,
    HEAD,
    MLP,
    OUTSIDE,
    Config,
    GgufTable,
    Parts,
    drafting,
    has,
    less_one,
    mlp_layer_types,
    rotary_share,
    same,
    share_of,
)
from ipex_assist.env.errors import IpexAssistError

_FULL, _SLIDING = "full_attention", "sliding_attention"
_MIMO = drafting(
    GgufTable(
        layer=(
            *same({**ATTENTION, **MLP, "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}),
            *same({"mlp.gate": "ffn_gate_inp", "self_attn.sinks": "attn_sinks"}),
            ("mlp.gate.e_score_correction_bias", Parts.of("exp_probs_b.bias")),
        ),
        outside=OUTSIDE,
        experts=EXPERTS,
    ),
    "transformer.shared_head.norm",
)
_STEP = drafting(
    GgufTable(
        layer=(
            *same({**ATTENTION, **MLP, "self_attn.g_proj": "attn_gate", "moe.gate": "ffn_gate_inp"}),
            *same({f"share_expert.{leaf}": f"{name}_shexp" for leaf, name in SHARED.items()}),
            *(
                (f"{theirs}.weight", Parts.of(f"{ours}.weight", by=less_one))
                for theirs, ours in {
                    **{"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"},
                    **{"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"},
                }.items()
            ),
            ("moe.router_bias", Parts.of("exp_probs_b.bias")),
        ),
        outside=(*EMBEDDING, *HEAD, ("model.norm.weight", Parts.of("output_norm.weight", by=less_one))),
        experts=EXPERTS,
    ),
    "transformer.shared_head.norm",
)
_LAGUNA = GgufTable(
    layer=(
        *same({**ATTENTION, **MLP, "self_attn.g_proj": "attn_gate", "mlp.gate": "ffn_gate_inp"}),
        *same({f"mlp.shared_experts.{leaf}": f"{name}_shexp" for leaf, name in SHARED.items()}),
        *same({"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}),
        *same({"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}),
        ("mlp.experts.e_score_correction_bias", Parts.of("exp_probs_b.bias")),
    ),
    outside=OUTSIDE,
    experts=EXPERTS,
)


def _of_kinds(header: GgufHeader, key: str, kinds: Sequence[str]) -> dict[str, Any]:
    """A number that layers of a kind have in common. Raises IpexAssistError where they differ."""
    stored = header.required(key)
    values = stored[: len(kinds)] if isinstance(stored, list) else [stored] * len(kinds)
    found: dict[str, Any] = dict(zip(kinds, values, strict=True))
    if any(found[kind] != value for kind, value in zip(kinds, values, strict=True)):
        raise IpexAssistError(
            f"{header.path}: {key} differs among layers of a kind, which is not supported for GGUF files. Pass the "
            "model's Hugging Face id or folder instead."
        )
    return found


def _layers(header: GgufHeader, config: Config) -> tuple[list[str], Config]:
    """The kinds of layers, and what a config says of them: windows, experts, heads and positions."""
    count = config["num_hidden_layers"]
    usual = [bool(header.get("{arch}.attention.sliding_window") and layer % 4) for layer in range(count)]  # Laguna's
    pattern = header.get("{arch}.attention.sliding_window_pattern", usual)
    windows = [_SLIDING if each else _FULL for each in pattern]
    kinds, drafts = windows[:count], windows[count:]
    theta = header.get("{arch}.rope.freq_base_swa")
    ropes = {
        _FULL: {**(config["rope_scaling"] or {"rope_type": "default"}), "rope_theta": config["rope_theta"]},
        _SLIDING: {"rope_type": "default", "rope_theta": config["rope_theta"] if theta is None else rounded(theta)},
    }
    return kinds, {
        "layer_types": kinds,
        "mlp_layer_types": mlp_layer_types(header, count),
        # Of blocks that predict further tokens, by names that models/step3p7.py reads.
        **{"mtp_layer_types": drafts, "mtp_mlp_layer_types": mlp_layer_types(header, len(pattern))[count:]},
        "rope_parameters": ropes,
        "rope_scaling": None,
    }


def _mimo(header: GgufHeader, config: Config) -> Config:
    """The stored window leaves out a row's own position; a sum of weights is always made 1."""
    kinds, found = _layers(header, config)
    heads = _of_kinds(header, "attention.head_count_kv", kinds)
    scale = header.get("{arch}.attention.value_scale")
    return {
        **routing(header),
        **found,
        "norm_topk_prob": True,
        "num_key_value_heads": heads.get(_FULL, 1),
        "swa_num_key_value_heads": heads.get(_SLIDING, 1),
        "v_head_dim": header.required("attention.value_length"),
        "sliding_window_size": header.required("attention.sliding_window"),
        "attention_value_scale": None if scale is None else rounded(scale),
        "partial_rotary_factor": rotary_share(header, config),
        "attention_bias": has(header, "attn_q.bias"),
    }


def _step(header: GgufHeader, config: Config) -> Config:
    """Layers that see everything rotate half of a head, as llama.cpp has it."""
    kinds, found = _layers(header, config)
    heads, routed = _of_kinds(header, "attention.head_count", kinds), routing(header)
    if not header.get("{arch}.expert_weights_norm", True) or len({*_of_kinds(header, _KV, kinds).values()}) > 1:
        raise IpexAssistError(
            f"{header.path}: weights of experts whose sum is not 1, or other key/value heads where there are windows, "
            "are not supported for GGUF files. Pass the model's Hugging Face id or folder instead."
        )
    found["rope_parameters"][_FULL]["partial_rotary_factor"] = 0.5
    limits = {name: header.get(f"{{arch}}.{key}") for name, key in _LIMITS.items()}
    return {
        **found,
        "n_routed_experts": routed["n_routed_experts"],
        "num_experts_per_tok": routed["num_experts_per_tok"],
        "moe_intermediate_size": routed["moe_intermediate_size"],
        "moe_router_scaling_factor": routed["routed_scaling_factor"],
        "share_expert_dim": header.get("{arch}.expert_shared_feed_forward_length") or 0,
        "num_attention_heads": heads.get(_FULL) or heads[_SLIDING],
        "num_sliding_attention_heads": heads.get(_SLIDING),
        "num_key_value_heads": next(iter(_of_kinds(header, _KV, kinds).values())),
        "sliding_window": header.required("attention.sliding_window"),
        **{name: value and [rounded(each) for each in value] for name, value in limits.items()},
    }


def _laguna(header: GgufHeader, config: Config) -> Config:
    """Gates are one a head, or one a value, by their rows."""
    kinds, found = _layers(header, config)
    heads, routed = header.required("attention.head_count"), routing(header)
    heads = heads if isinstance(heads, list) else [heads] * len(kinds)
    for kind, key in ((_FULL, "dimension_count"), (_SLIDING, "dimension_count_swa")):
        rotated = header.get(f"{{arch}}.rope.{key}", config["head_dim"])
        found["rope_parameters"][kind]["partial_rotary_factor"] = share_of(rotated, config["head_dim"])
    gate = header.tensors["blk.0.attn_gate.weight"]
    return {
        **found,
        "num_experts": routed["n_routed_experts"],
        "num_experts_per_tok": routed["num_experts_per_tok"],
        "moe_intermediate_size": routed["moe_intermediate_size"],
        "moe_routed_scaling_factor": routed["routed_scaling_factor"],
        "shared_expert_intermediate_size": header.get("{arch}.expert_shared_feed_forward_length") or 0,
        "num_attention_heads": heads[0],
        "num_attention_heads_per_layer": heads,
        "num_key_value_heads": next(iter(_of_kinds(header, _KV, kinds).values())),
        "sliding_window": header.get("{arch}.attention.sliding_window"),
        "gating": "per-head" if gate.shape[0] == heads[0] else "per-element",
    }


_KV = "attention.head_count_kv"
_LIMITS = {"swiglu_limits": "swiglu_clamp_exp", "swiglu_limits_shared": "swiglu_clamp_shexp"}

ARCHITECTURES = {
    "mimo2": ("MiMoV2FlashForCausalLM", "mimo_v2_flash", _MIMO),
    "step35": ("Step3p7ForConditionalGeneration", "step3p7", _STEP),
    "laguna": ("LagunaForCausalLM", "laguna", _LAGUNA),
}
CONFIGS = {"mimo2": _mimo, "step35": _step, "laguna": _laguna}
