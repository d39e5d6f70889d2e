"""GGUF of DeepSeek's models, and of mixtures that route to experts as they do: GLM, dots, MiniMax, ERNIE, K-EXAONE…

Source: conversion/{deepseek,glm,dots1,minimax,ernie,exaone,hunyuan}.py of llama.cpp, and src/models/*.cpp for routing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ipex_assist.checkpoints.gguf_file import GgufHeader, rounded
from ipex_assist.checkpoints.gguf_tables import (
    ATTENTION,
    EXPERTS,
    MLP,
    OUTSIDE,
    Config,
    GgufTable,
    Parts,
    has,
    layers_with,
    rotary_share,
    row,
    same,
)
from ipex_assist.env.errors import IpexAssistError

if TYPE_CHECKING:
    import torch

_SOFTMAX, _SIGMOID = 1, 2  # llama.cpp's numbers of expert_gating_func; 0 and none: not said


def _keys_and_values(parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
    """Each head's matrix for its key, stored transposed (heads, rank, nope), then that for its value."""
    import torch

    keys, values = parts
    return torch.cat((keys.transpose(1, 2), values), dim=1).reshape(-1, values.shape[-1])


def _layer(place: str = "mlp", shared: str = "shared_experts", router: str = "gate") -> tuple[tuple[str, Parts], ...]:
    """Names of attention, norms, an MLP or experts, their router and shared experts. place: of the latter three."""
    return (
        *same({**ATTENTION, **MLP, "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}),
        *same({"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}),
        *same({"post_attention_layernorm": "post_attention_norm", f"{place}.{router}": "ffn_gate_inp"}),
        *same({f"{place}.{shared}.{leaf}_proj": f"ffn_{leaf}_shexp" for leaf in ("gate", "up", "down")}),
    )


_BIAS = ("mlp.gate.e_score_correction_bias", Parts.of("exp_probs_b.bias"))
_USUAL = GgufTable((*_layer(), _BIAS), OUTSIDE, EXPERTS)
_DEEPSEEK = GgufTable(
    layer=(
        *_layer(),
        _BIAS,
        *same(
            {
                **{"self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b"},
                **{"self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_b_proj": "attn_kv_b"},
                **{f"self_attn.{leaf}_a_layernorm": f"attn_{leaf}_a_norm" for leaf in ("q", "kv")},
            }
        ),
        ("self_attn.kv_b_proj.weight", Parts.of("attn_k_b.weight", "attn_v_b.weight", by=_keys_and_values)),
    ),
    outside=OUTSIDE,
    experts=EXPERTS,
)
_SPARSE = "block_sparse_moe"
_MINIMAX = GgufTable(
    (*_layer(_SPARSE), (f"{_SPARSE}.e_score_correction_bias", Parts.of("exp_probs_b.bias"))),
    OUTSIDE,
    {
        f"{_SPARSE}.experts.{{}}.{theirs}.weight": f"ffn_{ours}_exps.{{}}.weight"
        for theirs, ours in (("w1", "gate"), ("w3", "up"), ("w2", "down"))
    },
)
_ERNIE = GgufTable(
    (*_layer(), ("mlp.moe_statics.e_score_correction_bias", Parts.of("exp_probs_b.bias", by=row))), OUTSIDE, EXPERTS
)
_AFMOE = GgufTable(
    (
        *same({"post_attention_layernorm": "post_attention_norm", "pre_mlp_layernorm": "ffn_norm"}),
        *same({"post_mlp_layernorm": "post_ffw_norm", "self_attn.gate_proj": "attn_gate"}),
        *(each for each in _layer(router="router.gate") if not each[0].startswith("post_attention_layernorm")),
        ("mlp.expert_bias", Parts.of("exp_probs_b.bias")),
    ),
    OUTSIDE,
    EXPERTS,
)
_HUNYUAN = GgufTable(
    (
        *same({"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"}),
        *(each for each in _layer(shared="shared_mlp", router="gate.wg") if "_norm." not in each[0]),
    ),
    OUTSIDE,
    EXPERTS,
)


def family_of(header: GgufHeader) -> str:
    """Which of the models whose files say "deepseek2" it is: V2, V3 (R1, Kimi K2) or GLM-4.7-Flash."""
    if header.get("tokenizer.ggml.pre") == "glm4":
        return "glm4moelite"
    sigmoid = has(header, "exp_probs_b.bias") or header.get("{arch}.expert_gating_func") == _SIGMOID
    return "deepseek3" if sigmoid else "deepseek2"


def _routing(header: GgufHeader, scores: int = _SIGMOID) -> Config:
    """Numbers of a mixture. Raises IpexAssistError where the file says other scores than the family has."""
    if (function := header.get("{arch}.expert_gating_func")) not in (None, 0, scores):
        raise IpexAssistError(
            f"{header.path}: expert_gating_func is {function!r}, a routing of experts that is not computed for this "
            "model. Pass the model's Hugging Face id or folder instead."
        )
    used, shared = header.required("expert_used_count"), header.get("{arch}.expert_shared_count") or 0
    return {
        "n_routed_experts": header.required("expert_count"),
        "num_experts_per_tok": used,
        "moe_intermediate_size": header.required("expert_feed_forward_length"),
        "n_shared_experts": shared,
        "first_k_dense_replace": header.get("{arch}.leading_dense_block_count") or 0,
        "norm_topk_prob": bool(header.get("{arch}.expert_weights_norm", False)),
        "routed_scaling_factor": rounded(header.get("{arch}.expert_weights_scale") or 1.0),
        "n_group": header.get("{arch}.expert_group_count") or 1,
        "topk_group": header.get("{arch}.expert_group_used_count") or 1,
    }


def _latent(header: GgufHeader, config: Config) -> Config:
    """Widths of attention: those of heads before absorption; files of older converters have no others."""
    rotated = header.required("rope.dimension_count")
    key = header.get("{arch}.attention.key_length_mla") or header.required("attention.key_length")
    value = header.get("{arch}.attention.value_length_mla") or header.required("attention.value_length")
    return {
        "num_key_value_heads": config["num_attention_heads"],
        "head_dim": rotated,
        "kv_lora_rank": header.required("attention.kv_lora_rank"),
        "q_lora_rank": header.get("{arch}.attention.q_lora_rank") or None,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": key - rotated,
        "v_head_dim": value,
        "attention_bias": has(header, "attn_kv_a_mqa.bias"),
    }


def _v2(header: GgufHeader, config: Config) -> Config:
    found = _latent(header, config) | _routing(header, _SOFTMAX)
    return found | {"topk_method": "group_limited_greedy" if found["n_group"] > 1 else "greedy"}


def _v3(header: GgufHeader, config: Config) -> Config:
    return _latent(header, config) | _routing(header)


def _glm(header: GgufHeader, config: Config) -> Config:
    return _routing(header) | {
        "partial_rotary_factor": rotary_share(header, config, 0.5),
        "use_qk_norm": has(header, "attn_q_norm.weight"),
        "attention_bias": has(header, "attn_q.bias"),
    }


def _dots(header: GgufHeader, config: Config) -> Config:
    return _routing(header) | {"attention_bias": has(header, "attn_q.bias"), "sliding_window": None}


def _minimax(header: GgufHeader, config: Config) -> Config:
    found = _routing(header)
    return {
        "num_local_experts": found["n_routed_experts"],
        "num_experts_per_tok": found["num_experts_per_tok"],
        "intermediate_size": found["moe_intermediate_size"],
        "rotary_dim": header.get("{arch}.rope.dimension_count", config["head_dim"]),
    }


def _ernie(header: GgufHeader, config: Config) -> Config:
    """Scores are by softmax, and a bias corrects the choice."""
    found, sparse = _routing(header, _SOFTMAX), layers_with(header, "ffn_gate_inp.weight", config["num_hidden_layers"])
    return {
        "moe_num_experts": found["n_routed_experts"],
        "moe_k": found["num_experts_per_tok"],
        "moe_intermediate_size": found["moe_intermediate_size"],
        "moe_num_shared_experts": found["n_shared_experts"],
        "moe_layer_interval": header.get("{arch}.interleave_moe_layer_step") or 1,
        "moe_layer_start_index": found["first_k_dense_replace"],
        "moe_layer_end_index": max((layer for layer, each in enumerate(sparse) if each), default=0),
    }


def _exaone(header: GgufHeader, config: Config) -> Config:
    found, layers = _routing(header), config["num_hidden_layers"]
    window = header.get("{arch}.attention.sliding_window")
    stored = header.get("{arch}.attention.sliding_window_pattern")
    windowed = stored if isinstance(stored, list) else [bool(window) and (each + 1) % 4 != 0 for each in range(layers)]
    return found | {
        "num_experts": found["n_routed_experts"],
        "num_shared_experts": found["n_shared_experts"],
        "sliding_window": window,
        "layer_types": ["sliding_attention" if each else "full_attention" for each in windowed[:layers]],
        "mlp_layer_types": [
            "sparse" if each else "dense" for each in layers_with(header, "ffn_gate_inp.weight", layers)
        ],
    }


def _afmoe(header: GgufHeader, config: Config) -> Config:
    """What files do not say is as llama.cpp has it: the embedding is scaled, and each fourth layer sees everything."""
    found = _routing(header)
    return {
        "num_experts": found["n_routed_experts"],
        "num_experts_per_tok": found["num_experts_per_tok"],
        "moe_intermediate_size": found["moe_intermediate_size"],
        "num_shared_experts": found["n_shared_experts"],
        "num_dense_layers": found["first_k_dense_replace"],
        "route_scale": found["routed_scaling_factor"],
        "route_norm": found["norm_topk_prob"],
        "attention_bias": has(header, "attn_q.bias"),
        "sliding_window": header.get("{arch}.attention.sliding_window"),
        "global_attn_every_n_layers": 4,
        "mup_enabled": True,
    }


def _hunyuan(header: GgufHeader, config: Config) -> Config:
    """A base that grows with alpha is stored as it is."""
    found = _routing(header, _SOFTMAX)
    return {
        "num_experts": found["n_routed_experts"],
        "moe_topk": found["num_experts_per_tok"],
        "intermediate_size": found["moe_intermediate_size"],
        "num_shared_expert": found["n_shared_experts"],
        "attention_bias": has(header, "attn_q.bias"),
    }


# general.architecture, or what `family_of` says -> (architectures[0], model_type, tensors).
ARCHITECTURES = {
    "deepseek2": ("DeepseekV2ForCausalLM", "deepseek_v2", _DEEPSEEK),
    "deepseek3": ("DeepseekV3ForCausalLM", "deepseek_v3", _DEEPSEEK),
    "glm4moelite": ("Glm4MoeLiteForCausalLM", "glm4_moe_lite", _DEEPSEEK),
    "glm4moe": ("Glm4MoeForCausalLM", "glm4_moe", _USUAL),
    "dots1": ("Dots1ForCausalLM", "dots1", _USUAL),
    "minimax-m2": ("MiniMaxM2ForCausalLM", "minimax_m2", _MINIMAX),
    "ernie4_5-moe": ("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", _ERNIE),
    "exaone-moe": ("ExaoneMoeForCausalLM", "exaone_moe", _USUAL),
    "hunyuan-moe": ("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", _HUNYUAN),
    "afmoe": ("AfmoeForCausalLM", "afmoe", _AFMOE),
}
CONFIGS: dict[str, Callable[[GgufHeader, Config], Config]] = {
    "deepseek2": _v2,
    "deepseek3": _v3,
    "glm4moelite": _v3,
    "glm4moe": _glm,
    "dots1": _dots,
    "minimax-m2": _minimax,
    "ernie4_5-moe": _ernie,
    "exaone-moe": _exaone,
    "hunyuan-moe": _hunyuan,
    "afmoe": _afmoe,
}
