"""GGUF of MiniMax-M2 and M3. Source: conversion/minimax.py of llama.cpp, and src/models/minimax-m*.cpp for routing."""

from __future__ import annotations

from collections.abc import Callable

from ipex_assist.checkpoints.gguf_deepseek import layer_names, routing
from ipex_assist.checkpoints.gguf_file import GgufHeader
from ipex_assist.checkpoints.gguf_tables import (
    EMBEDDING,
    HEAD,
    MIXTRAL_EXPERTS,
    MIXTRAL_PLACE,
    OUTSIDE,
    Config,
    GgufTable,
    Parts,
    layers_with,
    less_one,
    mlp_layer_types,
    rotary_share,
    same,
)

_LAYER = (*layer_names(MIXTRAL_PLACE), (f"{MIXTRAL_PLACE}.e_score_correction_bias", Parts.of("exp_probs_b.bias")))
_M2 = GgufTable(_LAYER, OUTSIDE, MIXTRAL_EXPERTS)


def _norms_less_one(names: tuple[tuple[str, Parts], ...]) -> tuple[tuple[str, Parts], ...]:
    """The same names; norms are stored with the 1 that their weights are added to."""
    return tuple(
        (theirs, Parts.of(*parts.names, by=less_one) if theirs.endswith("norm.weight") else parts)
        for theirs, parts in names
    )


_M3 = GgufTable(
    _norms_less_one(
        (
            *_LAYER,
            *same(
                {
                    f"self_attn.index_{part}_{leaf}": f"indexer.{part}_{leaf}"
                    for part in "qk"
                    for leaf in ("proj", "norm")
                }
            ),
        )
    ),
    (*EMBEDDING, *HEAD, *_norms_less_one(same({"model.norm": "output_norm"}))),
    MIXTRAL_EXPERTS,
)


def _m2(header: GgufHeader, config: Config) -> Config:
    found = routing(header)
    return {
        "num_local_experts": found["n_routed_experts"],
        "num_experts_per_tok": found["num_experts_per_tok"],
        "intermediate_size": found["moe_intermediate_size"],
        "rotary_dim": header.get("{arch}.rope.dimension_count", config["head_dim"]),
    }


def _m3(header: GgufHeader, config: Config) -> Config:
    """Which layers choose blocks, and the size of shared experts, is what the tensors say."""
    layers = config["num_hidden_layers"]
    indexed = layers_with(header, "indexer.k_proj.weight", layers)
    shared = header.tensors.get(f"blk.{layers - 1}.ffn_gate_shexp.weight")
    keys = {"n_heads": "head_count", "head_dim": "key_length", "topk_blocks": "top_k"}
    keys |= {name: name for name in ("block_size", "local_blocks")}
    return _m2(header, config) | {
        **{f"index_{name}": header.required(f"attention.indexer.{key}") for name, key in keys.items()},
        "partial_rotary_factor": rotary_share(header, config),
        "dense_intermediate_size": config["intermediate_size"],
        "shared_intermediate_size": shared.shape[0] if shared is not None else 0,
        "routed_scaling_factor": routing(header)["routed_scaling_factor"],
        "layer_types": ["minimax_m3_sparse" if each else "full_attention" for each in indexed],
        "mlp_layer_types": mlp_layer_types(header, layers),
    }


# general.architecture -> (architectures[0], model_type, tensors).
ARCHITECTURES = {
    "minimax-m2": ("MiniMaxM2ForCausalLM", "minimax_m2", _M2),
    "minimax-m3": ("MiniMaxM3SparseForConditionalGeneration", "minimax_m3_vl", _M3),
}
CONFIGS: dict[str, Callable[[GgufHeader, Config], Config]] = {"minimax-m2": _m2, "minimax-m3": _m3}
