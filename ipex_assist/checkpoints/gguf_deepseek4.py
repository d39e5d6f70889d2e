"""GGUF of DeepSeek-V4. Source: conversion/deepseek.py and src/models/deepseek4.cpp of llama.cpp."""

from __future__ import annotations

from collections.abc import Callable

from ipex_assist.checkpoints.gguf_deepseek import EXPERT_BIAS, SHARED, STREAMS, routing
from ipex_assist.checkpoints.gguf_file import GgufHeader, rounded
from ipex_assist.checkpoints.gguf_tables import EXPERTS, OUTSIDE, Config, GgufTable, Parts, layers_with, same
from ipex_assist.env.errors import IpexAssistError

_SQRT_SOFTPLUS = 4  # llama.cpp's number of expert_gating_func
_ATTENTION = {
    **{"q_a_proj": "q_a", "q_a_norm": "q_a_norm", "q_b_proj": "q_b", "kv_proj": "kv", "kv_norm": "kv_a_norm"},
    **{"o_a_proj": "output_a", "o_b_proj": "output_b"},
    **{"compressor.kv_proj": "compressor_kv", "compressor.gate_proj": "compressor_gate"},
    "compressor.kv_norm": "compressor_norm",
}
_INDEXER = {
    **{"q_b_proj": "indexer.attn_q_b", "scorer.weights_proj": "indexer.proj"},
    **{f"{leaf}_proj": f"indexer_compressor_{leaf}" for leaf in ("kv", "gate")},
    "kv_norm": "indexer_compressor_norm",
}
_DEEPSEEK4 = GgufTable(
    (
        *same({"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp"}),
        *same({f"self_attn.{theirs}": f"attn_{name}" for theirs, name in _ATTENTION.items()}),
        *same({f"self_attn.compressor.indexer.{theirs}": name for theirs, name in _INDEXER.items()}),
        ("self_attn.sinks", Parts.of("attn_sinks.weight")),
        ("self_attn.compressor.position_bias", Parts.of("attn_compressor_ape.weight")),
        ("self_attn.compressor.indexer.position_bias", Parts.of("indexer_compressor_ape.weight")),
        *same({f"mlp.shared_experts.{leaf}": f"{name}_shexp" for leaf, name in SHARED.items()}),
        ("mlp.gate.tid2eid", Parts.of("ffn_gate_tid2eid.weight")),
        EXPERT_BIAS,
        *((f"{part}_hc.{leaf}", Parts.of(f"hc_{part}_{leaf}.weight")) for part in ("attn", "ffn") for leaf in STREAMS),
    ),
    (*OUTSIDE, *((f"model.hc_head.hc_{leaf}", Parts.of(f"output_hc_{leaf}.weight")) for leaf in STREAMS)),
    EXPERTS,
)


def _config(header: GgufHeader, config: Config) -> Config:
    """Layers whose experts are a token's are those with its table; a file has one limit of all experts.

    Raises IpexAssistError for limits that differ by layer.
    """
    layers = config["num_hidden_layers"]
    limits = [header.get(f"{{arch}}.swiglu_clamp_{kind}") for kind in ("exp", "shexp")]
    known = {limit for each in limits if each is not None for limit in (each if isinstance(each, list) else [each])}
    if len(known) != 1:
        raise IpexAssistError(
            f"{header.path}: experts have the limits {sorted(known)}, but this model has one for all. Pass the "
            "model's Hugging Face id or folder instead."
        )
    ratios = header.required("attention.compress_ratios")
    by_token = layers_with(header, "ffn_gate_tid2eid.weight", layers)
    indexer = {"index_n_heads": "head_count", "index_head_dim": "key_length", "index_topk": "top_k"}
    return {
        **{name: value for name, value in routing(header, _SQRT_SOFTPLUS).items() if name != "first_k_dense_replace"},
        **{name: header.required(f"attention.indexer.{key}") for name, key in indexer.items()},
        "scoring_func": "sqrtsoftplus",
        "num_key_value_heads": 1,
        "qk_rope_head_dim": header.required("rope.dimension_count"),
        "q_lora_rank": header.required("attention.q_lora_rank"),
        "sliding_window": header.required("attention.sliding_window"),
        "o_groups": header.required("attention.output_group_count"),
        "o_lora_rank": header.required("attention.output_lora_rank"),
        "compress_ratios": ratios[:layers] if isinstance(ratios, list) else [ratios] * layers,
        "compress_rope_theta": rounded(header.required("attention.compress_rope_freq_base")),
        "hc_mult": header.required("hyper_connection.count"),
        "hc_sinkhorn_iters": header.required("hyper_connection.sinkhorn_iterations"),
        "hc_eps": rounded(header.required("hyper_connection.epsilon")),
        "swiglu_limit": rounded(known.pop()),
        "mlp_layer_types": ["hash_moe" if each else "moe" for each in by_token],
    }


# general.architecture -> (architectures[0], model_type, tensors).
ARCHITECTURES = {"deepseek4": ("DeepseekV4ForCausalLM", "deepseek_v4", _DEEPSEEK4)}
CONFIGS: dict[str, Callable[[GgufHeader, Config], Config]] = {"deepseek4": _config}
