"""What llama.cpp's converter writes of DeepSeek-V4: a part of gguf_layouts.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch

Config = dict[str, Any]
RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
# `DeepseekV4Model._map_dsv4_tensor_name`; names are the published checkpoints', which transformers writes but for one.
_OUTSIDE = {
    **{"model.embed_tokens.weight": "token_embd.weight", "embed.weight": "token_embd.weight"},
    **{"norm.weight": "output_norm.weight", "head.weight": "output.weight"},
    **{f"hc_head.hc_{leaf}": f"output_hc_{leaf}.weight" for leaf in ("fn", "base", "scale")},
    **{f"hc_head_{leaf}": f"output_hc_{leaf}.weight" for leaf in ("fn", "base", "scale")},
}
_PARTS = {"wkv": "kv", "wgate": "gate", "norm": "norm"}
_EXPERT = {"w1": "gate", "w3": "up", "w2": "down"}
_LAYER = {
    **{"attn.attn_sink": "attn_sinks", "attn.compressor.ape": "attn_compressor_ape"},
    **{"attn.wq_a.weight": "attn_q_a", "attn.wq_b.weight": "attn_q_b", "attn.q_norm.weight": "attn_q_a_norm"},
    **{"attn.wkv.weight": "attn_kv", "attn.norm.weight": "attn_kv_a_norm", "attn.kv_norm.weight": "attn_kv_a_norm"},
    **{"attn.wo_a.weight": "attn_output_a", "attn.wo_b.weight": "attn_output_b"},
    **{f"attn.compressor.{leaf}.weight": f"attn_compressor_{name}" for leaf, name in _PARTS.items()},
    **{"attn.indexer.wq_b.weight": "indexer.attn_q_b", "attn.indexer.weights_proj.weight": "indexer.proj"},
    "attn.indexer.compressor.ape": "indexer_compressor_ape",
    **{f"attn.indexer.compressor.{leaf}.weight": f"indexer_compressor_{name}" for leaf, name in _PARTS.items()},
    **{"attn_norm.weight": "attn_norm", "ffn_norm.weight": "ffn_norm", "ffn.gate.weight": "ffn_gate_inp"},
    "ffn.gate.tid2eid": "ffn_gate_tid2eid",
    **{f"ffn.shared_experts.{leaf}.weight": f"ffn_{name}_shexp" for leaf, name in _EXPERT.items()},
    **{f"ffn.experts.{leaf}.weight": f"ffn_{name}_exps" for leaf, name in _EXPERT.items()},
}


def metadata(config: Config) -> Config:
    """`DeepseekV4Model.set_gguf_parameters`."""
    layers, limit = config["num_hidden_layers"], float(config["swiglu_limit"])
    return {
        "feed_forward_length": None,
        "rope.dimension_count": config["qk_rope_head_dim"],
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.sliding_window": config["sliding_window"],
        "expert_count": config["n_routed_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_gating_func": 4,
        "swiglu_clamp_exp": [limit] * layers,
        "swiglu_clamp_shexp": [limit] * layers,
        "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk"],
        "attention.output_group_count": config["o_groups"],
        "attention.output_lora_rank": config["o_lora_rank"],
        "attention.compress_ratios": [RATIOS[kind] for kind in config["layer_types"]],
        "attention.compress_rope_freq_base": float(config["compress_rope_theta"]),
        "hyper_connection.count": config["hc_mult"],
        "hyper_connection.sinkhorn_iterations": config["hc_sinkhorn_iters"],
        "hyper_connection.epsilon": config["hc_eps"],
        "hash_layer_count": config["mlp_layer_types"].count("hash_moe"),
        "embedding_length_out": config["hidden_size"] * config["hc_mult"],
    }


def tensors(name: str, tensor: torch.Tensor, config: Config) -> Iterator[tuple[str, torch.Tensor]]:
    """`DeepseekV4Model.modify_tensors`."""
    name = name if name == "model.embed_tokens.weight" else name.removeprefix("model.")
    if name in _OUTSIDE:
        yield _OUTSIDE[name], tensor
        return
    found = re.fullmatch(r"layers\.(\d+)\.(.*)", name)
    assert found, name
    layer, within = found.groups()
    if within == "ffn.gate.bias":
        yield f"blk.{layer}.exp_probs_b.bias", tensor
    elif within.startswith("hc_"):
        yield f"blk.{layer}.{within}.weight", tensor
    elif within.endswith((".ape", ".tid2eid")):  # random weights have them flat
        rows = RATIOS[config["layer_types"][int(layer)]] if within.endswith(".ape") else config["vocab_size"]
        tensor = tensor.reshape(rows, -1)
        yield f"blk.{layer}.{_LAYER[within]}.weight", tensor if within.endswith(".ape") else tensor.int()
    else:
        yield f"blk.{layer}.{_LAYER[within]}.weight", tensor
