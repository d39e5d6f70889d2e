"""GGUF of DeepSeek's models, and of mixtures that route to experts as they do: GLM, dots, ERNIE, Hunyuan…

Source: conversion/{deepseek,glm,dots1,ernie,exaone,hunyuan,hy_v4,mistral3,bailingmoe}.py of llama.cpp, and
src/models/*.cpp for routing.
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
    drafting,
    has,
    layers_with,
    mlp_layer_types,
    rotary_share,
    row,
    same,
)
from ipex_assist.env.errors import IpexAssistError

if TYPE_CHECKING:
    import torch

SHARED = {f"{leaf}_proj": f"ffn_{leaf}" for leaf in ("gate", "up", "down")}
_SOFTMAX, _SIGMOID = 1, 2  # llama.cpp's numbers of expert_gating_func; 0 and none: not said


def _keys_and_values(parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
    """Each head's matrix for its key, stored transposed (heads, rank, nope), then that for its value."""
    import torch

    keys, values = parts
    return torch.cat((keys.transpose(1, 2), values), dim=1).reshape(-1, values.shape[-1])


def layer_names(
    place: str = "mlp", shared: str = "shared_experts", router: str = "gate"
) -> tuple[tuple[str, Parts], ...]:
    """Names of attention, norms, an MLP or experts, their router and shared experts. place: of the latter three."""
    return (
        *same({**ATTENTION, **MLP, "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}),
        *same({"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}),
        *same({"post_attention_layernorm": "post_attention_norm", f"{place}.{router}": "ffn_gate_inp"}),
        *same({f"{place}.{shared}.{leaf}": f"{name}_shexp" for leaf, name in SHARED.items()}),
    )


EXPERT_BIAS = ("mlp.gate.e_score_correction_bias", Parts.of("exp_probs_b.bias"))
_USUAL = drafting(GgufTable((*layer_names(), EXPERT_BIAS), OUTSIDE, EXPERTS))
LATENT = (
    *same(
        {
            **{"self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b"},
            **{"self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_b_proj": "attn_kv_b"},
            **{f"self_attn.{leaf}_a_layernorm": f"attn_{leaf}_a_norm" for leaf in ("q", "kv")},
        }
    ),
    ("self_attn.kv_b_proj.weight", Parts.of("attn_k_b.weight", "attn_v_b.weight", by=_keys_and_values)),
)
_DEEPSEEK = drafting(GgufTable((*layer_names(), EXPERT_BIAS, *LATENT), OUTSIDE, EXPERTS))
INDEXED = drafting(
    GgufTable(
        (
            *_DEEPSEEK.layer,
            *same({"self_attn.indexer.k_norm": "indexer.k_norm", "self_attn.indexer.weights_proj": "indexer.proj"}),
            *same({"self_attn.indexer.wk": "indexer.attn_k", "self_attn.indexer.wq_b": "indexer.attn_q_b"}),
        ),
        OUTSIDE,
        EXPERTS,
    )
)
STREAMS = ("fn", "base", "scale")
_HUNYUAN4 = GgufTable(
    (
        *INDEXED.layer,
        *same({"self_attn.linear_gate": "attn_gate"}),
        ("self_attn.learnable_sink_param", Parts.of("attn_sinks.weight")),
        *(
            (f"hc_{theirs}_layer.hc_pre.hc_{leaf}", Parts.of(f"hc_{name}_{leaf}.weight"))
            for theirs, name in (("attn", "attn"), ("mlp", "ffn"))
            for leaf in STREAMS
        ),
    ),
    (*OUTSIDE, *((f"model.hc_head.hc_head_{leaf}", Parts.of(f"output_hc_{leaf}.weight")) for leaf in STREAMS)),
    EXPERTS,
)
_BAILING = GgufTable((*layer_names(), EXPERT_BIAS, *same({"attention.query_key_value": "attn_qkv"})), OUTSIDE, EXPERTS)
_ERNIE = GgufTable(
    (*layer_names(), ("mlp.moe_statics.e_score_correction_bias", Parts.of("exp_probs_b.bias", by=row))),
    OUTSIDE,
    EXPERTS,
)
_AFMOE = GgufTable(
    (
        *same({"post_attention_layernorm": "post_attention_norm", "pre_mlp_layernorm": "ffn_norm"}),
        *same({"post_mlp_layernorm": "post_ffw_norm", "self_attn.gate_proj": "attn_gate"}),
        *(each for each in layer_names(router="router.gate") if not each[0].startswith("post_attention_layernorm")),
        ("mlp.expert_bias", Parts.of("exp_probs_b.bias")),
    ),
    OUTSIDE,
    EXPERTS,
)
_HUNYUAN3 = drafting(
    GgufTable((*layer_names(shared="shared_mlp"), ("mlp.expert_bias", Parts.of("exp_probs_b"))), OUTSIDE, EXPERTS)
)
_HUNYUAN = GgufTable(
    (
        *same({"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"}),
        *(each for each in layer_names(shared="shared_mlp", router="gate.wg") if "_norm." not in each[0]),
    ),
    OUTSIDE,
    EXPERTS,
)


def family_of(header: GgufHeader) -> str:
    """Which of the models whose files say "deepseek2" it is: V2, V3 (R1, Kimi K2), GLM-4.7-Flash or Mistral's."""
    if header.get("{arch}.attention.temperature_scale"):
        return "mistral4"
    if header.get("tokenizer.ggml.pre") == "glm4":
        return "glm4moelite"
    sigmoid = has(header, "exp_probs_b.bias") or header.get("{arch}.expert_gating_func") == _SIGMOID
    return "deepseek3" if sigmoid else "deepseek2"


def routing(header: GgufHeader, scores: int = _SIGMOID) -> Config:
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


def latent(header: GgufHeader, config: Config) -> Config:
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
    found = latent(header, config) | routing(header, _SOFTMAX)
    return found | {"topk_method": "group_limited_greedy" if found["n_group"] > 1 else "greedy"}


def _v3(header: GgufHeader, config: Config) -> Config:
    return latent(header, config) | routing(header)


def indexed(header: GgufHeader, config: Config) -> Config:
    """Layers without an indexer attend to what an earlier one has chosen."""
    keys = {"index_n_heads": "head_count", "index_head_dim": "key_length", "index_topk": "top_k"}
    own = layers_with(header, "indexer.attn_k.weight", config["num_hidden_layers"])
    return _v3(header, config) | {
        **{name: header.required(f"attention.indexer.{key}") for name, key in keys.items()},
        "indexer_types": ["full" if each else "shared" for each in own],
    }


def with_streams(header: GgufHeader, config: Config) -> Config:
    """Numbers of a model with an indexer and several residual streams. A file without a limit of experts has 0."""
    limits = header.get("{arch}.swiglu_clamp_exp") or 0.0
    return indexed(header, config) | {
        "hc_mult": header.required("hyper_connection.count"),
        "hc_eps": rounded(header.required("hyper_connection.epsilon")),
        "swiglu_limit": rounded(max(limits) if isinstance(limits, list) else limits),
        "mlp_layer_types": mlp_layer_types(header, config["num_hidden_layers"]),
    }


def _hunyuan4(header: GgufHeader, config: Config) -> Config:
    return with_streams(header, config) | {"hc_magnitude": rounded(header.required("hyper_connection.magnitude"))}


def _mistral4(header: GgufHeader, config: Config) -> Config:
    """How queries grow with their position is that of the one published model, where the file does not say it."""
    growth, step = (header.get(f"{{arch}}.attention.temperature_{name}") for name in ("scale", "length"))
    scaling = dict(config["rope_scaling"] or {"rope_type": "default"})
    scaling["llama_4_scaling_beta"] = 0.1 if growth is None else rounded(growth)
    scaling.setdefault("original_max_position_embeddings", step or config["max_position_embeddings"])
    return latent(header, config) | routing(header, _SOFTMAX) | {"rope_scaling": scaling}


def _bailing(header: GgufHeader, config: Config) -> Config:
    found = routing(header)
    return found | {
        "num_experts": found["n_routed_experts"],
        "num_shared_experts": found["n_shared_experts"],
        "partial_rotary_factor": rotary_share(header, config),
        "use_qk_norm": has(header, "attn_q_norm.weight"),
        "use_qkv_bias": has(header, "attn_qkv.bias"),
    }


def _glm(header: GgufHeader, config: Config) -> Config:
    return routing(header) | {
        "partial_rotary_factor": rotary_share(header, config, 0.5),
        "use_qk_norm": has(header, "attn_q_norm.weight"),
        "attention_bias": has(header, "attn_q.bias"),
    }


def _dots(header: GgufHeader, config: Config) -> Config:
    return routing(header) | {"attention_bias": has(header, "attn_q.bias"), "sliding_window": None}


def _ernie(header: GgufHeader, config: Config) -> Config:
    """Scores are by softmax, and a bias corrects the choice."""
    found, sparse = routing(header, _SOFTMAX), layers_with(header, "ffn_gate_inp.weight", config["num_hidden_layers"])
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
    found, layers = routing(header), config["num_hidden_layers"]
    window = header.get("{arch}.attention.sliding_window")
    stored = header.get("{arch}.attention.sliding_window_pattern")
    windowed = stored if isinstance(stored, list) else [bool(window) and (each + 1) % 4 != 0 for each in range(layers)]
    return found | {
        "num_experts": found["n_routed_experts"],
        "num_shared_experts": found["n_shared_experts"],
        "sliding_window": window,
        "layer_types": ["sliding_attention" if each else "full_attention" for each in windowed[:layers]],
        "mlp_layer_types": mlp_layer_types(header, layers),
    }


def _afmoe(header: GgufHeader, config: Config) -> Config:
    """What files do not say is as llama.cpp has it: the embedding is scaled, and each fourth layer sees everything."""
    found = routing(header)
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
    found = routing(header, _SOFTMAX)
    return {
        "num_experts": found["n_routed_experts"],
        "moe_topk": found["num_experts_per_tok"],
        "intermediate_size": found["moe_intermediate_size"],
        "num_shared_expert": found["n_shared_experts"],
        "attention_bias": has(header, "attn_q.bias"),
    }


def _hunyuan3(header: GgufHeader, config: Config) -> Config:
    found = routing(header)
    shared = header.get("{arch}.expert_shared_feed_forward_length") or found["moe_intermediate_size"]
    return {
        "num_experts": found["n_routed_experts"],
        "num_experts_per_tok": found["num_experts_per_tok"],
        "moe_intermediate_size": found["moe_intermediate_size"],
        "num_shared_experts": shared // max(found["moe_intermediate_size"], 1),
        "router_scaling_factor": found["routed_scaling_factor"],
        "route_norm": found["norm_topk_prob"],
        "mlp_layer_types": mlp_layer_types(header, config["num_hidden_layers"]),
        "attention_bias": has(header, "attn_q.bias"),
    }


# general.architecture, or what `family_of` says -> (architectures[0], model_type, tensors).
ARCHITECTURES = {
    "deepseek2": ("DeepseekV2ForCausalLM", "deepseek_v2", _DEEPSEEK),
    "deepseek3": ("DeepseekV3ForCausalLM", "deepseek_v3", _DEEPSEEK),
    "glm4moelite": ("Glm4MoeLiteForCausalLM", "glm4_moe_lite", _DEEPSEEK),
    "glm4moe": ("Glm4MoeForCausalLM", "glm4_moe", _USUAL),
    "dots1": ("Dots1ForCausalLM", "dots1", _USUAL),
    "ernie4_5-moe": ("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", _ERNIE),
    "exaone-moe": ("ExaoneMoeForCausalLM", "exaone_moe", _USUAL),
    "hunyuan-moe": ("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", _HUNYUAN),
    "afmoe": ("AfmoeForCausalLM", "afmoe", _AFMOE),
    "hy_v3": ("HYV3ForCausalLM", "hy_v3", _HUNYUAN3),
    "deepseek32": ("DeepseekV32ForCausalLM", "deepseek_v32", INDEXED),
    "glm-dsa": ("GlmMoeDsaForCausalLM", "glm_moe_dsa", INDEXED),
    "hy_v4": ("HYV4ForCausalLM", "hy_v4", _HUNYUAN4),
    "mistral4": ("Mistral4ForCausalLM", "mistral4", _DEEPSEEK),
    "bailingmoe2": ("SarvamMoEForCausalLM", "sarvam_moe", _BAILING),
}
CONFIGS: dict[str, Callable[[GgufHeader, Config], Config]] = {
    "deepseek2": _v2,
    "deepseek3": _v3,
    "glm4moelite": _v3,
    "glm4moe": _glm,
    "dots1": _dots,
    "ernie4_5-moe": _ernie,
    "exaone-moe": _exaone,
    "hunyuan-moe": _hunyuan,
    "afmoe": _afmoe,
    "hy_v3": _hunyuan3,
    "deepseek32": indexed,
    "glm-dsa": indexed,
    "hy_v4": _hunyuan4,
    "mistral4": _mistral4,
    "bailingmoe2": _bailing,
}
