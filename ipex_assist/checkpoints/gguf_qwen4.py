"""GGUF of Qwen4's text part. Source: conversion/qwen4exp.py of llama.cpp, and src/models/qwen4exp.cpp for its gates."""

from __future__ import annotations

from ipex_assist.checkpoints.gguf_file import GgufHeader
from ipex_assist.checkpoints.gguf_recurrent import QWEN35, qwen_config
from ipex_assist.checkpoints.gguf_tables import EMBEDDING, HEAD, Config, GgufTable, Parts, less_one, same, stacked
from ipex_assist.env.errors import IpexAssistError


def _hyper_connection(theirs: str, ours: str) -> tuple[tuple[str, Parts], ...]:
    """Names of what weighs streams before a part of a layer, or the head."""
    return (
        (f"{theirs}.hc_norm.weight", Parts.of(f"{ours}_norm.weight", by=less_one)),
        *same({f"{theirs}.input_mix_weight_{leaf}": f"{ours}_{leaf}" for leaf in ("down", "up")}),
        *same({f"{theirs}.block_inject_weight": f"{ours}_inject"}),
    )


_INDEXER = "self_attn.indexer"
_TABLE = GgufTable(
    layer=(
        *QWEN35.layer,
        *_hyper_connection("attn_hyper_connection", "hc_attn"),
        *_hyper_connection("mlp_hyper_connection", "hc_ffn"),
        (f"{_INDEXER}.index_qk_proj.weight", Parts.of("indexer.q_proj.weight", "indexer.k_proj.weight", by=stacked)),
        *(
            (f"{_INDEXER}.{leaf}_layernorm.weight", Parts.of(f"indexer.{leaf}_norm.weight", by=less_one))
            for leaf in "qk"
        ),
    ),
    outside=(*EMBEDDING, *HEAD, *_hyper_connection("model.hyper_connection_mixer", "output_hc")),
    experts=QWEN35.experts,
)


def _config(header: GgufHeader, config: Config) -> Config:
    """Embeddings of n-grams are not read from such files."""
    if header.get("{arch}.ple.layers"):
        raise IpexAssistError(
            f"{header.path}: its layers have embeddings of n-grams, which are not read from GGUF. Pass the model's "
            "Hugging Face id or folder instead."
        )
    ratios = header.get("{arch}.attention.compress_ratios") or [0]
    pool = max(ratios) if isinstance(ratios, list) else ratios
    if not pool:
        raise IpexAssistError(
            f"{header.path}: compress_ratios do not say how many positions share an indexer's key. Convert "
            "the model again, or pass its Hugging Face id or folder instead."
        )
    return {
        **qwen_config(header, config),
        "hc_count": header.required("hyper_connection.count"),
        "hc_lowrank": header.required("hyper_connection.low_rank"),
        "indexer_n_heads": header.required("attention.indexer.head_count"),
        "indexer_head_dim": header.required("attention.indexer.key_length"),
        "indexer_budget": header.required("attention.indexer.top_k"),
        "indexer_compress_ratio": pool,
        "indexer_kv_heads": 1,
        "output_gate_type": "sigmoid",
    }


ARCHITECTURES = {"qwen4exp": ("Qwen4ExpForCausalLM", "qwen4_exp_text", _TABLE)}
CONFIGS = {"qwen4exp": _config}
