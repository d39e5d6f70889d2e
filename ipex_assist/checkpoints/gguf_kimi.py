"""GGUF of models with Kimi Delta Attention beside latent attention: Kimi Linear, Ling 3 and GLM-5.3.

Source: conversion/{kimi_linear,bailingmoe3,glm}.py of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ipex_assist.checkpoints.gguf_deepseek import (
    EXPERT_BIAS,
    INDEXED,
    LATENT,
    STREAMS,
    latent,
    layer_names,
    routing,
    with_streams,
)
from ipex_assist.checkpoints.gguf_file import GgufHeader, rounded
from ipex_assist.checkpoints.gguf_tables import (
    EXPERTS,
    MIXTRAL_EXPERTS,
    MIXTRAL_PLACE,
    OUTSIDE,
    Config,
    GgufTable,
    Parts,
    a_log,
    drafting,
    layers_with,
    mlp_layer_types,
    same,
    vector,
)

if TYPE_CHECKING:
    import torch


def _logarithms(parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
    """Of rates that are stored as exp(A_log), in a column."""
    return parts[0].float().log().reshape(-1)


_DELTA = (
    *same({"self_attn.b_proj": "ssm_beta", "self_attn.o_norm": "ssm_norm"}),
    *((f"self_attn.{leaf}_conv1d.weight", Parts.of(f"ssm_conv1d_{leaf}.weight", by=vector)) for leaf in "qkv"),
    ("self_attn.dt_bias", Parts.of("ssm_dt.bias")),
)
_LOW_RANKS = (
    *_DELTA,
    *same({f"self_attn.{gate}_{part}_proj": f"ssm_{gate}_{part}" for gate in "fg" for part in "ab"}),
    ("self_attn.A_log", Parts.of("ssm_a", by=a_log)),
)
_KIMI = GgufTable(
    (
        *layer_names(MIXTRAL_PLACE),
        *LATENT,
        *_LOW_RANKS,
        (f"{MIXTRAL_PLACE}.gate.e_score_correction_bias", Parts.of("exp_probs_b.bias")),
    ),
    OUTSIDE,
    MIXTRAL_EXPERTS,
)
_LING3 = drafting(
    GgufTable(
        (
            *layer_names(),
            *LATENT,
            *_DELTA,
            EXPERT_BIAS,
            *same({"self_attn.f_proj": "ssm_f_a", "self_attn.g_proj": "ssm_g_a"}),
            *same({"self_attn.g_proj": "attn_gate"}),
            ("self_attn.A_log", Parts.of("ssm_a", by=_logarithms)),
        ),
        OUTSIDE,
        EXPERTS,
    )
)
_POOL = "indexer.index_kpool_compress"
_GLM5_NEXT = drafting(
    GgufTable(
        (
            *INDEXED.layer,
            *_LOW_RANKS,
            *((f"self_attn.{_POOL}_{leaf}", Parts.of(f"indexer_compressor_{leaf}.weight")) for leaf in ("gate", "ape")),
            *(
                (f"hc_{part}_{leaf}", Parts.of(f"hc_{part}_{leaf}.weight"))
                for part in ("attn", "ffn")
                for leaf in STREAMS
            ),
        ),
        OUTSIDE,
        EXPERTS,
    )
)


def _layer_types(header: GgufHeader, config: Config, attention: str = "full_attention") -> list[str]:
    """Layers without latents have a state."""
    latents = layers_with(header, "attn_kv_a_mqa.weight", config["num_hidden_layers"])
    return [attention if each else "linear_attention" for each in latents]


def _kimi(header: GgufHeader, config: Config) -> Config:
    """A sum of weights is always made 1."""
    found = routing(header)
    return {
        **latent(header, config),
        **found,
        "model_max_length": config["max_position_embeddings"],
        "moe_renormalize": True,
        "num_experts": found["n_routed_experts"],
        "num_experts_per_token": found["num_experts_per_tok"],
        "num_shared_experts": found["n_shared_experts"],
        "num_expert_group": found["n_group"],
        "layer_types": _layer_types(header, config),
        "linear_num_heads": config["num_attention_heads"],
        "linear_head_dim": header.required("kda.head_dim"),
        "linear_conv_kernel_dim": header.required("ssm.conv_kernel"),
        "tie_word_embeddings": False,
    }


def _ling3(header: GgufHeader, config: Config) -> Config:
    found = routing(header)
    limits = {name: header.get(f"{{arch}}.swiglu_clamp_{kind}") for name, kind in _LIMITS.items()}
    bounded = header.get("{arch}.kda.safe_gate", True)
    return {
        **latent(header, config),
        **found,
        "num_experts": found["n_routed_experts"],
        "num_shared_experts": found["n_shared_experts"],
        "layer_types": _layer_types(header, config),
        "mlp_layer_types": mlp_layer_types(header, config["num_hidden_layers"]),
        "head_dim": header.required("kda.head_dim"),
        "short_conv_kernel_size": header.required("ssm.conv_kernel"),
        "kda_safe_gate": bounded,
        "kda_lower_bound": rounded(header.required("kda.gate_lower_bound")) if bounded else None,
        "tie_word_embeddings": False,
        **{name: value and [rounded(each) for each in value] for name, value in limits.items()},
    }


def _glm5_next(header: GgufHeader, config: Config) -> Config:
    bound = header.get("{arch}.kda.gate_lower_bound")
    return with_streams(header, config) | {
        "index_kpool": header.required("attention.indexer.kpool"),
        "index_kpool_always_select_tail": header.get("{arch}.attention.indexer.kpool_select_tail", False),
        "layer_types": _layer_types(header, config, "indexed_attention"),
        "first_k_dense_replace": None,
        "linear_num_heads": config["num_attention_heads"],
        "linear_head_dim": header.required("kda.head_dim"),
        "linear_conv_kernel_dim": header.required("ssm.conv_kernel"),
        "linear_lower_bound": None if bound is None else rounded(bound),
        "hc_sinkhorn_iters": header.required("hyper_connection.sinkhorn_iterations"),
    }


_LIMITS = {"expert_swiglu_limit_list": "exp", "share_expert_swiglu_limit_list": "shexp"}

# general.architecture -> (architectures[0], model_type, tensors).
ARCHITECTURES = {
    "kimi-linear": ("KimiLinearForCausalLM", "kimi_linear", _KIMI),
    "bailingmoe3": ("BailingHybridForCausalLM", "bailing_hybrid", _LING3),
    "glm5-next": ("Glm5NextForConditionalGeneration", "glm5_next", _GLM5_NEXT),
}
CONFIGS: dict[str, Callable[[GgufHeader, Config], Config]] = {
    "kimi-linear": _kimi,
    "bailingmoe3": _ling3,
    "glm5-next": _glm5_next,
}
