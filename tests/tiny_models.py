"""Tiny random models of every architecture and variant, saved by transformers as any user's checkpoint would be."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.executors.interface import DraftsInOneCall, Model, Tokens
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest

VOCAB = 160

_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_OPT: dict[str, Any] = {
    "model_type": "opt",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "ffn_dim": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "word_embed_proj_dim": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_BIGCODE: dict[str, Any] = {
    "model_type": "gpt_bigcode",
    "vocab_size": VOCAB,
    "n_embd": 64,
    "n_inner": 96,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _rope(kind: str, **numbers: Any) -> dict[str, Any]:
    return {"rope_scaling": {"rope_type": kind, "factor": 4.0, **numbers}, "rope_theta": 10000.0}


def _like_llama(model_type: str, **fields: Any) -> dict[str, Any]:
    return _LLAMA | {"model_type": model_type, **fields}


def _with_text(model_type: str, text: dict[str, Any], vision: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model_type": model_type, "text_config": text, "vision_config": vision, **fields}


def _like_gpt2(model_type: str, **fields: Any) -> dict[str, Any]:
    return _BIGCODE | {"model_type": model_type, **fields}


def _without_count(**fields: Any) -> dict[str, Any]:
    """Of a family whose layers another field counts."""
    return {name: value for name, value in _LLAMA.items() if name != "num_hidden_layers"} | fields


_HEADS = {"num_key_value_heads": 4}
_FALCON = {name: value for name, value in _LLAMA.items() if name not in ("intermediate_size", "num_key_value_heads")}
_GEMMA = {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 24}
_LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.6, 1.7, 2.0],
    "long_factor": [1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0],
}
_GPT_OSS = {
    "head_dim": 16,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "rope_scaling": {
        **{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        **{"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    },
}
_MOE = {"moe_intermediate_size": 48, "num_experts_per_tok": 3}
# Groups of experts, of which a row's are in some; a dense first layer; shared experts.
_GROUPS = {"n_group": 4, "topk_group": 2, "n_shared_experts": 2, "routed_scaling_factor": 1.5, "norm_topk_prob": True}
_DEEPSEEK = _MOE | _GROUPS | {"n_routed_experts": 8, "num_hidden_layers": 3, "first_k_dense_replace": 1}
_LATENT = {
    **{"num_key_value_heads": 4, "q_lora_rank": 40, "kv_lora_rank": 48},
    **{"qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 32},
}
# Experts of which three give what they read; two layers of ours each.
_LONGCAT = {
    **_LATENT,
    **{"num_layers": 2, "ffn_hidden_size": 96, "expert_ffn_hidden_size": 48, "moe_topk": 4, "n_routed_experts": 6},
    **{"zero_expert_num": 3, "routed_scaling_factor": 1.5, "head_dim": 16},
}
# Rows attend to few positions, which each layer chooses; or the last layers to what an earlier one has chosen.
_INDEXER = {"index_topk": 6, "index_n_heads": 8, "index_head_dim": 32}
_SHARED_CHOICES = {**_INDEXER, "num_hidden_layers": 5, "indexer_types": ["full", "shared", "full", "shared", "shared"]}
_HY4 = {name: value for name, value in _DEEPSEEK.items() if name != "first_k_dense_replace"}
_HY4 |= _SHARED_CHOICES | {"hc_mult": 4, "swiglu_limit": 0.3, "mlp_layer_types": ["dense", *["sparse"] * 4]}
# Layers that share latents, with a choice of their own and without; some rotate nothing.
_MISTRAL_LARGE4 = {
    **{name: value for name, value in _LATENT.items() if name != "q_lora_rank"},
    **{name: value for name, value in _DEEPSEEK.items() if name != "norm_topk_prob"},
    **_INDEXER,
    **{"index_n_heads": 16, "num_hidden_layers": 6, "no_rope_layers": [1, 1, 0, 1, 0, 1]},
    **{"kv_source_layers": [0, 0, 2, 0, 2, 5], "final_logit_softcapping": 3.0},
    "indexer_types": ["full", "full", "full", "shared", "shared", "full"],
}
# Blocks of few positions, which a row chooses for each KV head in two of three layers.
_MINIMAX_M3 = {
    **{"num_hidden_layers": 3, "head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 3},
    **{"intermediate_size": 48, "dense_intermediate_size": 96, "shared_intermediate_size": 40},
    **{"index_n_heads": 2, "index_head_dim": 32, "index_block_size": 16, "index_topk_blocks": 2},
    "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
}
_MINIMAX_M3_VISION = {
    **{"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"image_size": 28, "patch_size": 14},
}
# Experts in no groups; a dense first layer, whose second norm has no gate.
_AXK2 = {name: value for name, value in _DEEPSEEK.items() if name not in ("n_group", "topk_group")}
_AXK2 |= _INDEXER | {"index_n_heads": 16}  # of fewer many scores are equal, of which transformers takes any
_V4 = {
    **{
        "num_key_value_heads": 1,
        "head_dim": 48,
        "partial_rotary_factor": 1 / 3,
        "q_lora_rank": 40,
        "rms_norm_eps": 1e-5,
    },
    **{"num_hidden_layers": 5, "sliding_window": 8, "o_groups": 2, "o_lora_rank": 32, "swiglu_limit": 0.3},
    **{"n_routed_experts": 9, "num_experts_per_tok": 3, "moe_intermediate_size": 48},
    **{"index_topk": 3, "index_n_heads": 8, "index_head_dim": 32, "hc_sinkhorn_iters": 4},
    "layer_types": [
        *("sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention"),
        *("heavily_compressed_attention", "compressed_sparse_attention"),
    ],
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
    "mlp_layer_types": ["hash_moe", "moe", "moe", "hash_moe", "moe"],
}
_V4_OTHER = {
    **{"head_dim": 32, "partial_rotary_factor": 0.5, "sliding_window": 20, "o_groups": 4, "hc_mult": 3, "hc_eps": 0.01},
    **{"scoring_func": "sigmoid", "index_topk": 2, "index_head_dim": 16, "tie_word_embeddings": True},
    **{"compress_rates": {"compressed_sparse_attention": 8, "heavily_compressed_attention": 2}, "swiglu_limit": 2.0},
    "rope_scaling": {
        **{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32, "beta_slow": 1}
    },
}
_DEEPSEEK_V2 = _DEEPSEEK | {"norm_topk_prob": False}
_YARN_MSCALE = {
    "rope_scaling": {
        **{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        **{"beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 1.0},
    }
}
_ERNIE_MOE = {
    **{"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 48, "num_hidden_layers": 4},
    **{"moe_layer_start_index": 1, "moe_layer_end_index": 2},
}
_DELTA = {
    **{"num_hidden_layers": 4, "head_dim": 16, "linear_num_value_heads": 4, "linear_num_key_heads": 2},
    **{"linear_key_head_dim": 12, "linear_value_head_dim": 20, "linear_conv_kernel_dim": 4},
}
# A base that is larger by a fixed factor, under the name of a rule that goes by length.
_ALPHA = {"type": "dynamic", "alpha": 50.0, "factor": 1.0, "beta_fast": 32, "mscale": 1.0, "mscale_all_dim": 0.0}
_EXAONE_MOE = {
    **_MOE,
    **{"num_experts": 8, "num_hidden_layers": 4, "head_dim": 32, "sliding_window": 8, "sliding_window_pattern": 2},
}
_PHIMOE = {"num_local_experts": 9, "num_experts_per_tok": 2, "router_jitter_noise": 0.3}
_GROWTH = {
    **{"rope_type": "yarn", "rope_theta": 1e5, "factor": 8.0, "original_max_position_embeddings": 6},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.3},
}
_PIXTRAL = {
    **{"model_type": "pixtral", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "image_size": 28, "patch_size": 14},
}
_SEEING = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
# Patches of 4 x 4 pixels, of which 2 x 2 are a row of the text.
_PATCHES = {"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3}
_SEEING2 = _PATCHES | {"depth": 2, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2, "num_heads": 2}
_SEEING25 = _SEEING | _PATCHES | {"depth": 2, "window_size": 16, "fullatt_block_indexes": [1]}
_SEEING3 = _SEEING | _PATCHES | {"depth": 3, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}
_GLM4V = _SEEING | _PATCHES | {"depth": 2, "num_position_embeddings": 16, "image_size": 16, "num_heads": 2}
_IDEFICS3 = {
    **{"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"image_size": 32, "patch_size": 4},
}
_INTERNVL = {
    **{"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
    **{"image_size": [16, 16], "patch_size": [4, 4]},
}
_PADDLE = _IDEFICS3 | {"image_size": 16, "spatial_merge_size": 2}
_SECTIONS = {"rope_scaling": {"rope_type": "default", "type": "default", "mrope_section": [2, 3, 3]}}
_SECTIONS_OF_HALF = {
    "rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1]},
    "partial_rotary_factor": 0.5,
}
_INTERLEAVED = {"rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True}}
# Layers that see everything have wider heads, and keys and values of an earlier one; rows of odd sizes.
_GEMMA4 = {
    **{"num_hidden_layers": 6, "head_dim": 16, "global_head_dim": 32, "sliding_window": 8, "rms_norm_eps": 1e-5},
    "layer_types": ["sliding_attention", "full_attention", *["sliding_attention"] * 3, "full_attention"],
    **{"vocab_size_per_layer_input": VOCAB, "final_logit_softcapping": 3.0},
}
_GEMMA4_SHARED = _GEMMA4 | {"hidden_size_per_layer_input": 24, "num_kv_shared_layers": 3, "use_double_wide_mlp": True}
_GEMMA4_MOE = {
    **_GEMMA4,
    **{"hidden_size_per_layer_input": 0, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    **{"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 40},
}
# Streams of which the second is active, MLPs of two widths with sparse gates or none, and tokens without per-layer
# embeddings of their own.
_GEMMA3N = {
    **{"num_hidden_layers": 6, "head_dim": 16, "sliding_window": 8, "rms_norm_eps": 1e-5, "num_kv_shared_layers": 3},
    **{"layer_types": ["sliding_attention", "full_attention", "sliding_attention"] * 2, "altup_active_idx": 1},
    **{"intermediate_size": [96, 96, 72, 96, 72, 96], "activation_sparsity_pattern": [0.9, 0.6, 0.0, 0.5, 0.0, 0.3]},
    **{"hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": VOCAB - 20, "laurel_rank": 12},
    **{"altup_num_inputs": 3, "final_logit_softcapping": 3.0},
}
_VISION4 = {
    **{"model_type": "gemma4_vision", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16},
}
_MROPE = {
    **{"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.5},
    **{"mrope_section": [2, 1, 1], "mrope_interleaved": True},
}
_NO_ROPE = {"rope_type": "default", "rope_theta": None}
# Keys are as wide as values: transformers 5.23 saves the convolution of both in equal thirds.
_OLMO_HYBRID = {name: value for name, value in _DELTA.items() if name != "head_dim"} | {"linear_value_head_dim": 6}
_FALCON_H1 = {
    **{"num_hidden_layers": 2, "mamba_d_ssm": 80, "mamba_n_heads": 8, "mamba_d_head": 10, "mamba_n_groups": 2},
    **{"mamba_d_state": 12, "mamba_chunk_size": 8, "lm_head_multiplier": 0.3, "embedding_multiplier": 4.0},
    **{"mlp_multipliers": [0.6, 1.5], "key_multiplier": 0.7, "attention_in_multiplier": 1.2, "ssm_in_multiplier": 1.3},
    **{"attention_out_multiplier": 0.8, "ssm_out_multiplier": 0.6, "ssm_multipliers": [0.5, 1.5, 0.7, 1.4, 0.8]},
}
_LLAMA4 = {
    **{"num_hidden_layers": 4, "head_dim": 32, "intermediate_size": 48, "intermediate_size_mlp": 96},
    **{"num_local_experts": 5, "interleave_moe_layer_step": 2, "attention_chunk_size": 8},
    **{"floor_scale": 6, "attn_scale": 0.3},
}
_LLAMA4_VISION = {
    **{"hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28},
    **{"patch_size": 14, "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32},
}
_KIMI = {
    **{name: value for name, value in _LATENT.items() if name != "q_lora_rank"},
    **{"num_hidden_layers": 4, "linear_head_dim": 12, "linear_num_heads": 4, **_MOE, "num_local_experts": 8},
    **{"n_group": 4, "topk_group": 2, "n_shared_experts": 2},
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
}
_LING = {name: value for name, value in _LATENT.items() if name != "q_lora_rank"}
_LING |= {"num_hidden_layers": 4, "layer_group_size": 2, "first_k_dense_replace": 1, "head_dim": 12, **_MOE}
_LING |= {"num_local_experts": 8, "n_group": 4, "topk_group": 2, "n_shared_experts": 2}
# Pools of four positions of which rows attend to two, and to their own.
_GLM5 = {name: value for name, value in (_HY4 | _LATENT).items() if name not in ("indexer_types", "mlp_layer_types")}
_GLM5 |= {"linear_head_dim": 12, "linear_num_heads": 4, "qk_rope_head_dim": 0, "index_kpool": 4, "index_topk": 8}
_GLM5 |= {"layer_types": ["linear_attention", "full_attention", "full_attention", "linear_attention", "full_attention"]}
_GLM5 |= {"indexer_types": ["full", "full", "shared", "full", "full"], "hc_sinkhorn_iters": 5, "n_shared_experts": 2}
_GLM5 |= {"mlp_layer_types": ["dense", *["sparse"] * 4], "max_position_embeddings": 2048}
_DELTA_MOE = _DELTA | _MOE | {"num_experts": 6, "shared_expert_intermediate_size": 40}
_QWEN4 = _DELTA_MOE | {
    **{"hc_lowrank": 24, "indexer_n_heads": 8, "indexer_kv_heads": 1, "indexer_head_dim": 32},
    **{"indexer_budget": 16, "indexer_compress_ratio": 4},
    "layer_types": ["linear_attention", "indexed_attention", "linear_attention", "indexed_attention"],
}
_NGRAMS = {
    **{"ple_layer_ids": [1, 3], "ngram_size": 3, "heads_per_ngram": 2, "ngram_vocab_size_base": 60},
    **{"make_ngram_vocab_size_divisible_by": 8, "split_ngram_parts": 3},
}
_LFM2 = {
    **{"num_hidden_layers": 3, "block_multiple_of": 16, "conv_L_cache": 3},
    **{"layer_types": ["conv", "full_attention", "conv"]},
}
# Eight heads of 16 in groups of states of an odd size.
_MAMBA = {
    **{"num_hidden_layers": 3, "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_d_conv": 4},
    **{"mamba_d_head": 16, "mamba_chunk_size": 8},
}
_GRANITE = {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "attention_multiplier": 0.1}
_GRANITE_HYBRID = {
    **{**_MAMBA, **_GRANITE, "residual_multiplier": 0.22, "shared_intermediate_size": 80},
    **{"layer_types": ["mamba", "attention", "mamba"], "tie_word_embeddings": True},
}
# Steps so small are rare, as transformers limits those of prompts alone (test_recurrent_mixers.py).
_NEMOTRON = {
    "time_step_min": 1e-9,
    **{"model_type": "nemotron_h", "mamba_num_heads": 8, "mamba_head_dim": 12, "n_groups": 2, "ssm_state_size": 12},
    **{"head_dim": 16, "chunk_size": 8, "moe_shared_expert_intermediate_size": 40, "routed_scaling_factor": 2.5},
    **{"n_routed_experts": 6, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 48, "num_experts_per_tok": 2},
}
# Blocks of attention and MLP that three layers have in turn, and one block alone; in all of them more adapters.
_ZAMBA2 = {
    **{"num_hidden_layers": 5, "layers_block_type": ["mamba", "hybrid", "hybrid", "mamba", "hybrid"]},
    **{"num_mem_blocks": 2, "adapter_rank": 12, "mamba_d_state": 12, "mamba_ngroups": 2, "n_mamba_heads": 8},
    **{"num_key_value_heads": 4, "chunk_size": 8, "time_step_min": 1e-9},
}
_GRIFFIN = {
    **{"model_type": "recurrent_gemma", "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 192},
    **{"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 1, "lru_width": 128},
    **{"attention_window_size": 8, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
}
# Channels that fill no lanes, states and steps of odd sizes; experts, and attention, in one layer of the four.
_JAMBA = {
    **{"num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2, "mamba_d_state": 12},
    **{"mamba_dt_rank": 7, "num_experts": 6, "num_experts_per_tok": 2, "expert_layer_period": 4},
    **{"expert_layer_offset": 1, "use_mamba_kernels": False},
}
_MAMBA2 = {
    **{"model_type": "mamba2", "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 3, "num_heads": 8},
    **{"head_dim": 16, "state_size": 12, "n_groups": 2, "chunk_size": 8},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
}
# Channels that fill no lanes, states and steps of odd sizes, an embedding that is no head, and no biases but those of
# the convolution.
_MAMBA1 = {
    **{"vocab_size": VOCAB, "hidden_size": 60, "num_hidden_layers": 3, "state_size": 12, "time_step_rank": 7},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False},
}
_MISTRAL4 = _DEEPSEEK | _LATENT | {"rope_parameters": _GROWTH, "first_k_dense_replace": 1}
_AFMOE = {
    **{"num_hidden_layers": 4, "head_dim": 32, "sliding_window": 8, **_MOE, "num_experts": 8, "num_shared_experts": 2},
    **{"global_attn_every_n_layers": 2, "route_scale": 1.5},
}
# Layers with positions of two bases, and with none; windows, and sinks.
_SWASH = {
    **{"num_hidden_layers": 4, "sliding_window": 8, "layer_rope_theta": [0, 1e4, 1e5, 1e4], **_GRANITE},
    **{"residual_multiplier": 0.22, "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"]},
}
_COHERE_MOE = {
    **{"num_hidden_layers": 4, "head_dim": 16, "num_experts": 6, "num_experts_per_tok": 2, "logit_scale": 0.3},
    **{"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "prefix_dense_intermediate_size": 112},
    **{
        "sliding_window": 8,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    },
}
_LFM3 = {
    **{"num_hidden_layers": 4, "head_dim": 32, "sliding_window": 8},
    **{"layer_types": ["conv", "sliding_attention", "full_attention", "conv"]},
}
_LAGUNA = {
    **{"num_hidden_layers": 3, "head_dim": 32, "sliding_window": 8, **_MOE, "num_experts": 8},
    **{"shared_expert_intermediate_size": 80, "moe_routed_scaling_factor": 1.5},
    **{"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]},
}
_SIGLIP = {
    **{"model_type": "siglip_vision_model", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "image_size": 28, "patch_size": 14, "vision_use_head": False},
}
_KIMI_VISION = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
_GLM5_VISION = {"hidden_size": 32, "intermediate_size": 32, "depth": 1, "num_heads": 2, "out_hidden_size": 64}
_GLM5_VISION |= {"projection_intermediate_size": 32}
_MAMBA1_BIASES = _MAMBA1 | {
    **{"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": True, "conv_kernel": 3, "expand": 1},
    **{"hidden_size": 64, "state_size": 16, "time_step_rank": "auto", "layer_norm_epsilon": 1e-3},
}


# Values narrower than keys; layers with windows have twice the key/value heads, and sinks.
_MIMO = {
    **{"num_hidden_layers": 4, "head_dim": 32, "v_head_dim": 16, "num_key_value_heads": 1, "sliding_window": 8},
    **{"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]},
    **{**_MOE, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5},
}
_STEP = {
    **{"num_hidden_layers": 4, "head_dim": 32, "sliding_window": 8, "num_sliding_attention_heads": 6, **_MOE},
    **{"n_routed_experts": 8, "share_expert_dim": 80, "moe_router_scaling_factor": 1.5},
    **{"layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]},
    **{"mlp_layer_types": ["dense", "sparse", "sparse", "sparse"]},
    **{"swiglu_limits": [0.0, 0.2, 0.0, 0.3], "swiglu_limits_shared": [0.4, 0.0, 0.1, 0.3]},
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
    },
}
_STEP_VISION = {
    **{"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 56, "patch_size": 14},
    "mlp_ratio": 2.0,
}


def _model_types(fields: dict[str, Any]) -> list[str]:
    """Of a variant, and of its text part where it has one."""
    return [fields["model_type"], *(_model_types(fields["text_config"]) if "text_config" in fields else [])]


FAMILIES: dict[str, dict[str, Any]] = {
    "phi3": _like_llama("phi3"),
    "phi3-window": _like_llama("phi3", sliding_window=8, rope_scaling=_LONGROPE)
    | {"original_max_position_embeddings": 128},
    "phi3-partial": _like_llama("phi3", partial_rotary_factor=0.75, tie_word_embeddings=True),
    "phi3-longrope": _like_llama("phi3", rope_scaling=_LONGROPE) | {"original_max_position_embeddings": 16},
    "granite": _like_llama("granite", embedding_multiplier=12.0, residual_multiplier=0.22, logits_scaling=8.0)
    | {"attention_multiplier": 0.1, "tie_word_embeddings": True},
    "granite-biases": _like_llama("granite", attention_bias=True, mlp_bias=True),
    "olmo2": _like_llama("olmo2"),
    "olmo2-biases": _like_llama("olmo2", attention_bias=True, num_key_value_heads=4),
    "smollm3": _like_llama("smollm3", no_rope_layer_interval=2),
    "smollm3-window": _like_llama("smollm3", no_rope_layers=[0, 1], use_sliding_window=True, sliding_window=8)
    | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    "gpt-neox": _like_llama("gpt_neox", rotary_pct=0.5),
    "gpt-neox-serial": _like_llama("gpt_neox", use_parallel_residual=False, attention_bias=False),
    "gpt2": _like_gpt2("gpt2"),
    "gpt2-untied": _like_gpt2("gpt2", tie_word_embeddings=False, n_inner=None, scale_attn_weights=False),
    "starcoder2": _like_llama("starcoder2", sliding_window=None),
    "starcoder2-window": _like_llama("starcoder2", sliding_window=8, use_bias=False, tie_word_embeddings=False),
    "stablelm": _like_llama("stablelm"),
    "stablelm-parallel": _like_llama("stablelm", use_parallel_residual=True, use_qkv_bias=True)
    | {"partial_rotary_factor": 0.5},
    "phi": _like_llama("phi"),
    "gemma": _like_llama("gemma", head_dim=32),
    "gemma2": _like_llama("gemma2", **_GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    "gemma2-uncapped": _like_llama("gemma2", **_GEMMA, attn_logit_softcapping=None, final_logit_softcapping=None)
    | {"attention_bias": True},
    "gemma3": _like_llama("gemma3_text", **_GEMMA, layer_types=["sliding_attention", "full_attention"])
    | {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "falcon": _FALCON | {"model_type": "falcon"},
    "falcon-new": _FALCON | {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    "falcon-one-norm": _FALCON
    | {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    "falcon-serial": _FALCON | {"model_type": "falcon", "parallel_attn": False, "multi_query": False},
    "gptj": _like_gpt2("gptj", rotary_dim=8, tie_word_embeddings=False),
    "bloom": {"model_type": "bloom", "vocab_size": VOCAB, "hidden_size": 60, "n_layer": 2, "n_head": 6},
    "mpt": {"model_type": "mpt", "vocab_size": VOCAB, "d_model": 64, "n_layers": 2, "n_heads": 4, "max_seq_len": 128},
    "cohere": _like_llama("cohere"),
    "cohere-norms": _like_llama("cohere", use_qk_norm=True, attention_bias=True, logit_scale=0.3),
    "cohere2": _like_llama("cohere2", sliding_window=8, layer_types=["sliding_attention", "full_attention"]),
    "glm": _like_llama("glm", head_dim=16),
    "glm4": _like_llama("glm4", head_dim=16, partial_rotary_factor=0.75),
    "gpt-oss": _like_llama("gpt_oss", **_GPT_OSS),
    "gpt-oss-no-biases": _like_llama("gpt_oss", **_GPT_OSS, attention_bias=False) | {"sliding_window": 128},
    "exaone4": _like_llama("exaone4", sliding_window=8, layer_types=["sliding_attention", "full_attention"]),
    "mixtral": _like_llama("mixtral", num_local_experts=4),
    "mixtral-window": _like_llama("mixtral", num_local_experts=4, num_experts_per_tok=3, sliding_window=8),
    "qwen2-moe": _like_llama("qwen2_moe", **_MOE, num_experts=6, shared_expert_intermediate_size=80),
    "qwen3-moe": _like_llama("qwen3_moe", **_MOE, num_experts=8, head_dim=32, norm_topk_prob=True),
    "qwen3-moe-window": _like_llama("qwen3_moe", **_MOE, num_experts=8, attention_bias=True, use_sliding_window=True)
    | {"sliding_window": 8},
    "qwen3-moe-dense-first": _like_llama("qwen3_moe", **_MOE, num_experts=8, head_dim=32, mlp_only_layers=[0]),
    "qwen3-next": _like_llama("qwen3_next", **_DELTA_MOE),
    "qwen3-next-dense-second": _like_llama("qwen3_next", **_DELTA_MOE, mlp_only_layers=[1], attention_bias=True)
    | {"full_attention_interval": 2, "linear_num_value_heads": 2, "norm_topk_prob": False},
    "qwen3.5": _like_llama("qwen3_5_text", **_DELTA, partial_rotary_factor=0.5, tie_word_embeddings=True),
    "qwen3.5-moe": _like_llama("qwen3_5_moe_text", **_DELTA_MOE)
    | {
        "linear_conv_kernel_dim": 3,
        "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
    },
    "lfm2": _like_llama("lfm2", **_LFM2),
    "lfm2-biases": _like_llama("lfm2", **_LFM2, conv_bias=True, tie_word_embeddings=False)
    | {"block_auto_adjust_ff_dim": False, "conv_L_cache": 4, "head_dim": 32, "block_ff_dim": 80},
    "lfm2-moe": _like_llama("lfm2_moe", **_LFM2, **_MOE, num_experts=9, num_dense_layers=1),
    "lfm2-moe-plain": _like_llama("lfm2_moe", **_LFM2, **_MOE, num_experts=6, num_dense_layers=0, conv_bias=True)
    | {"use_expert_bias": False, "norm_topk_prob": False, "routed_scaling_factor": 1.5},
    "granite-hybrid": _like_llama("granitemoehybrid", **_GRANITE_HYBRID, num_local_experts=0),
    "granite-hybrid-moe": _like_llama("granitemoehybrid", **_GRANITE_HYBRID, num_local_experts=5, num_experts_per_tok=2)
    | {"mamba_n_groups": 1, "mamba_conv_bias": False, "mamba_proj_bias": True}
    | {"position_embedding_type": "rope", "attention_bias": True},
    "bamba": _like_llama("bamba", **_MAMBA, attn_layer_indices=[1], mlp_bias=True),
    "bamba-recurrent-last": _like_llama("bamba", **_MAMBA, attn_layer_indices=[0, 2], attention_bias=True)
    | {"mamba_proj_bias": True, "num_key_value_heads": 4},
    "jamba": _like_llama("jamba", **_JAMBA),
    "jamba-biases": _like_llama("jamba", **_JAMBA | {"mamba_proj_bias": True, "mamba_conv_bias": False})
    | {"tie_word_embeddings": True, "mamba_dt_rank": "auto", "mamba_d_conv": 3, "expert_layer_period": 2},
    # Fewer bits would choose another expert for a row, and a state shows that to all later ones: each row has all.
    "jamba-all-experts": _like_llama("jamba", **_JAMBA | {"num_experts": 3, "num_experts_per_tok": 3})
    | {"num_hidden_layers": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2},
    "jamba-dense": _like_llama("jamba", **_JAMBA | {"num_experts": 1, "mamba_expand": 1, "attn_layer_period": 3})
    | {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 3},
    "mamba2": _MAMBA2,
    "mamba2-biases": _MAMBA2 | {"use_bias": True, "tie_word_embeddings": True, "n_groups": 1, "conv_kernel": 3},
    "mamba": _MAMBA1 | {"model_type": "mamba"},
    "mamba-biases": _MAMBA1_BIASES | {"model_type": "mamba"},
    "recurrent-gemma": _GRIFFIN,
    "recurrent-gemma-last": _GRIFFIN  # a recurrent layer ends it, all of whose rows change the state
    | {"lru_width": 64, "num_key_value_heads": 2, "attention_bias": True, "conv1d_width": 3, "rms_norm_eps": 1e-3}
    | {"block_types": ["attention", "recurrent"], "logits_soft_cap": 4.0, "tie_word_embeddings": False},
    "falcon-mamba": _MAMBA1 | {"model_type": "falcon_mamba", "mixer_rms_eps": 0.01},
    "falcon-mamba-biases": _MAMBA1_BIASES | {"model_type": "falcon_mamba"},
    "nemotron-h": _without_count(**_NEMOTRON, hybrid_override_pattern="M-M*-M", mlp_bias=True, use_bias=True),
    "nemotron-h-moe": _without_count(**_NEMOTRON, hybrid_override_pattern="MEM*E*-ME"),
    # Fewer bits would choose another expert for a row, and a state shows that to all later ones: each row has all.
    "nemotron-h-all-experts": _without_count(**_NEMOTRON, hybrid_override_pattern="MEM*EME")
    | {"n_routed_experts": 3, "num_experts_per_tok": 3, "n_group": 1},
    "qwen2-moe-every-second": _like_llama("qwen2_moe", **_MOE, num_experts=6, shared_expert_intermediate_size=80)
    | {"num_hidden_layers": 3, "decoder_sparse_step": 2},
    "olmoe": _like_llama("olmoe", num_experts=9),
    "olmoe-biases": _like_llama(
        "olmoe", num_experts=17, num_experts_per_tok=3, norm_topk_prob=True, attention_bias=True
    ),
    "granitemoe": _like_llama("granitemoe", num_local_experts=5, embedding_multiplier=12.0, logits_scaling=8.0)
    | {"attention_multiplier": 0.1, "residual_multiplier": 0.22, "tie_word_embeddings": True},
    "glm4-moe": _like_llama("glm4_moe", **_DEEPSEEK, head_dim=32, use_qk_norm=True, attention_bias=True),
    "glm4-moe-plain": _like_llama("glm4_moe", **_MOE, n_routed_experts=9, partial_rotary_factor=1.0)
    | {"norm_topk_prob": False, "first_k_dense_replace": 0},
    "minimax-m2": _like_llama("minimax_m2", head_dim=32, num_local_experts=9, num_experts_per_tok=3, rotary_dim=16),
    "dots1": _like_llama("dots1", **_DEEPSEEK, attention_bias=True),
    "dots1-window": _like_llama("dots1", **_DEEPSEEK, sliding_window=8, max_window_layers=1)
    | {"norm_topk_prob": False},
    "ernie4-5": _like_llama("ernie4_5", head_dim=32),
    "ernie4-5-biases": _like_llama("ernie4_5", head_dim=32, use_bias=True, tie_word_embeddings=False),
    "ernie4-5-moe": _like_llama("ernie4_5_moe", **_ERNIE_MOE, moe_num_shared_experts=2),
    "ernie4-5-moe-unshared": _like_llama("ernie4_5_moe", **_ERNIE_MOE, moe_num_shared_experts=0)
    | {"moe_layer_interval": 2, "tie_word_embeddings": False},
    "seed-oss": _like_llama("seed_oss", head_dim=32),
    "seed-oss-biases": _like_llama("seed_oss", head_dim=32, attention_out_bias=True, mlp_bias=True),
    "olmo3": _like_llama("olmo3", num_hidden_layers=4, sliding_window=8, attention_bias=True),
    "olmo3-yarn": _like_llama("olmo3", num_hidden_layers=4, sliding_window=8, num_key_value_heads=4)
    | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
    "apertus": _like_llama("apertus"),
    "apertus-silu": _like_llama("apertus", hidden_act="silu", attention_bias=True, tie_word_embeddings=True),
    "arcee": _like_llama("arcee", head_dim=32),
    "arcee-biases": _like_llama("arcee", attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "exaone-moe": _like_llama("exaone_moe", **_EXAONE_MOE, n_group=4, topk_group=2, num_shared_experts=2),
    "exaone-moe-sparse-first": _like_llama("exaone_moe", **_EXAONE_MOE, norm_topk_prob=False)
    | {"mlp_layer_types": ["sparse", "dense", "sparse", "sparse"]},
    "hunyuan": _like_llama("hunyuan_v1_dense", head_dim=32, attention_bias=True),
    "hunyuan-alpha": _like_llama("hunyuan_v1_dense", head_dim=16, rope_scaling=_ALPHA, tie_word_embeddings=True),
    "hunyuan-moe": _like_llama("hunyuan_v1_moe", head_dim=32, num_experts=9, moe_topk=3),
    "hunyuan-moe-biases": _like_llama("hunyuan_v1_moe", head_dim=16, num_experts=5, moe_topk=[2, 2])
    | {"rope_scaling": _ALPHA, "attention_bias": True, "tie_word_embeddings": True},
    "ministral3": _like_llama("ministral3", head_dim=32, rope_parameters=_GROWTH),
    "ministral3-window": _like_llama("ministral3", head_dim=16, rope_parameters=_GROWTH, sliding_window=8)
    | {"tie_word_embeddings": True},
    "mistral3": _with_text("mistral3", _like_llama("mistral", head_dim=16, sliding_window=None), _PIXTRAL),
    "mistral3-ministral3": _with_text(
        "mistral3", _like_llama("ministral3", head_dim=32, rope_parameters=_GROWTH), _PIXTRAL, tie_word_embeddings=False
    ),
    "olmo-hybrid": _like_llama("olmo_hybrid", **_OLMO_HYBRID, rope_parameters=_NO_ROPE, attention_bias=True),
    "olmo-hybrid-rope": _like_llama(
        "olmo_hybrid", **_OLMO_HYBRID | {"linear_num_value_heads": 2, "linear_value_head_dim": 12}
    )
    | {
        **{"rope_theta": 1e5, "linear_allow_neg_eigval": False, "tie_word_embeddings": True},
        "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
    },
    "phimoe": _like_llama("phimoe", **_PHIMOE, attention_bias=True, lm_head_bias=True)
    | {
        "rope_scaling": _LONGROPE | {"short_mscale": 1.2, "long_mscale": 1.2, "original_max_position_embeddings": 128},
    },
    "phimoe-window": _like_llama("phimoe", **_PHIMOE, sliding_window=8, tie_word_embeddings=True),
    "qwen3.5-published": _with_text("qwen3_5", _like_llama("qwen3_5_text", **_DELTA, rope_parameters=_MROPE), _SEEING),
    "qwen3.5-published-tied": _with_text(
        "qwen3_5", _like_llama("qwen3_5_text", **_DELTA, tie_word_embeddings=True), _SEEING, tie_word_embeddings=True
    ),
    "qwen3.5-moe-published": _with_text("qwen3_5_moe", _like_llama("qwen3_5_moe_text", **_DELTA_MOE), _SEEING),
    "qwen3.5-seeing": _with_text(
        "qwen3_5",
        _like_llama("qwen3_5_text", **_DELTA, rope_parameters=_MROPE),
        _SEEING3 | {"deepstack_visual_indexes": []},
    ),
    "qwen3.5-moe-seeing": _with_text(
        "qwen3_5_moe",
        _like_llama("qwen3_5_moe_text", **_DELTA_MOE, rope_parameters=_MROPE),
        _SEEING3 | {"deepstack_visual_indexes": []},
    ),
    "qwen2-vl": _with_text("qwen2_vl", _like_llama("qwen2_vl_text", **_SECTIONS, rope_theta=1e4), _SEEING2),
    "qwen2.5-vl": _with_text("qwen2_5_vl", _like_llama("qwen2_5_vl_text", **_SECTIONS, rope_theta=1e4), _SEEING25),
    "qwen3-vl": _with_text(
        "qwen3_vl",
        _like_llama("qwen3_vl_text", **_INTERLEAVED, rope_theta=1e4, num_hidden_layers=3, head_dim=16),
        _SEEING3,
        tie_word_embeddings=True,
    ),
    "qwen3-vl-moe": _with_text(
        "qwen3_vl_moe",
        _like_llama("qwen3_vl_moe_text", **_MOE, **_INTERLEAVED, rope_theta=1e4, num_experts=8, num_hidden_layers=3),
        _SEEING3,
    ),
    "glm4v": _with_text("glm4v", _like_llama("glm4v_text", **_SECTIONS), _GLM4V),
    "glm46v": _with_text(
        "glm46v", _like_llama("glm4v_text", **_SECTIONS_OF_HALF), {"model_type": "glm4v_vision"} | _GLM4V
    ),
    "idefics3": _with_text("idefics3", _LLAMA, _IDEFICS3, scale_factor=2),
    "granite-docling": _with_text(
        "granite_docling",
        _like_llama(
            "granite_docling_text",
            num_hidden_layers=3,
            embedding_multiplier=12.0,
            residual_multiplier=0.22,
            logits_scaling=8.0,
        )
        | {"attention_multiplier": 0.1},
        _IDEFICS3 | {"scale_factor": 4, "out_hidden_size": 64, "deepstack_visual_indexes": [0, 1]},
    ),
    "smolvlm": _with_text("smolvlm", _LLAMA | {"tie_word_embeddings": True}, _IDEFICS3, scale_factor=2),
    "internvl": _with_text("internvl", _like_llama("qwen2"), _INTERNVL, tie_word_embeddings=False),
    "internvl-qwen3": _with_text("internvl", _like_llama("qwen3", head_dim=32), _INTERNVL),
    "internvl-qwen3-moe": _with_text("internvl", _like_llama("qwen3_moe", **_MOE, num_experts=8), _INTERNVL),
    "paddleocr-vl": _with_text("paddleocr_vl", _like_llama("paddleocr_vl_text", **_SECTIONS, head_dim=16), _PADDLE),
    "paddleocr-vl-biases": _with_text(
        "paddleocr_vl",
        _like_llama("paddleocr_vl_text", **_SECTIONS, head_dim=16, use_bias=True),
        _PADDLE,
        tie_word_embeddings=False,
    ),
    "deepseek-v2": _like_llama("deepseek_v2", **_LATENT, **_DEEPSEEK_V2, topk_method="group_limited_greedy"),
    "deepseek-v2-direct": _like_llama("deepseek_v2", **_LATENT, **_DEEPSEEK_V2)
    | {"q_lora_rank": None, "attention_bias": True, "first_k_dense_replace": 0},
    "deepseek-v3": _like_llama("deepseek_v3", **_LATENT, **_DEEPSEEK),
    "deepseek-v3-direct": _like_llama("deepseek_v3", **_LATENT, **_DEEPSEEK, **_YARN_MSCALE, attention_bias=True)
    | {"q_lora_rank": None, "norm_topk_prob": False, "tie_word_embeddings": True},
    "deepseek-v3-dense": _like_llama("deepseek_v3", **_LATENT, **_DEEPSEEK) | {"first_k_dense_replace": 3},
    "deepseek-v32": _like_llama("deepseek_v32", **_LATENT, **_DEEPSEEK, **_INDEXER),
    "deepseek-v32-many": _like_llama("deepseek_v32", **_LATENT, **_DEEPSEEK, **_INDEXER | {"index_topk": 24}),
    "glm-moe-dsa": _like_llama("glm_moe_dsa", **_LATENT, **_DEEPSEEK | _SHARED_CHOICES),
    "glm-moe-dsa-many": _like_llama("glm_moe_dsa", **_LATENT, **_DEEPSEEK | _SHARED_CHOICES | {"index_topk": 24}),
    "axk2": _like_llama("axk2", **_LATENT, **_AXK2, gated_norm_rank=8),
    "axk2-groups": _like_llama("axk2", **_LATENT, **_AXK2 | {"index_topk": 24}, **_YARN_MSCALE, gated_norm_rank=20)
    | {"n_group": 4, "topk_group": 2, "attention_bias": True, "tie_word_embeddings": True},
    "mistral-large4": _with_text("mistral_large4", _like_llama("mistral_large4_text", **_MISTRAL_LARGE4), _PIXTRAL),
    # Each row has all experts, of which fewer bits choose others.
    "mistral-large4-many": _with_text(
        "mistral_large4",
        _like_llama("mistral_large4_text", **_MISTRAL_LARGE4 | {"index_topk": 24, "n_routed_experts": 3})
        | {"n_group": 1, "topk_group": 1},
        _PIXTRAL,
    ),
    "mistral-large4-own": _with_text(
        "mistral_large4",
        _like_llama("mistral_large4_text", **_MISTRAL_LARGE4 | {"kv_source_layers": None, "index_topk": 24})
        | {"attention_bias": True, "indexer_types": ["full"] * 6, "no_rope_layers": None},
        _PIXTRAL,
    ),
    "minimax-m3": _with_text("minimax_m3_vl", _like_llama("minimax_m3_vl_text", **_MINIMAX_M3), _MINIMAX_M3_VISION),
    # Each row has all experts, of which fewer bits choose others, and all blocks but one.
    "minimax-m3-many": _with_text(
        "minimax_m3_vl",
        _like_llama("minimax_m3_vl_text", **_MINIMAX_M3 | {"num_local_experts": 3, "index_topk_blocks": 2})
        | {"layer_types": ["minimax_m3_sparse"] * 3, "mlp_layer_types": ["sparse"] * 3},
        _MINIMAX_M3_VISION,
    ),
    "hy-v4": _like_llama("hy_v4", **_LATENT, **_HY4),
    "hy-v4-other": _like_llama("hy_v4", **_LATENT, **_HY4 | {"index_topk": 24, "hc_mult": 3, "hc_magnitude": 0.7})
    | {"hc_eps": 0.05, "swiglu_limit": 3.0, "rms_norm_eps": 1e-3, "attention_bias": True}
    | {"indexer_types": ["full", "full", "shared", "shared", "full"], "n_shared_experts": 2},
    "deepseek-v4": _like_llama("deepseek_v4", **_V4),
    "deepseek-v4-other": _like_llama("deepseek_v4", **_V4 | _V4_OTHER),
    "glm4-moe-lite": _like_llama("glm4_moe_lite", **_LATENT, **_MOE, n_routed_experts=9, num_hidden_layers=3)
    | {"qk_nope_head_dim": 40, "v_head_dim": 16, "rms_norm_eps": 1e-3},
    "gemma4": _like_llama("gemma4_text", **_GEMMA4_SHARED),
    "gemma3n": _like_llama("gemma3n_text", **_GEMMA3N),
    "gemma3n-biases": _like_llama("gemma3n_text", **_GEMMA3N, attention_bias=True, tie_word_embeddings=False)
    | {"altup_correct_scale": False, "altup_num_inputs": 2, "altup_active_idx": 0, "num_kv_shared_layers": 0}
    | {"intermediate_size": 77, "activation_sparsity_pattern": None, "vocab_size_per_layer_input": VOCAB + 7},
    "gemma4-one-kind": _like_llama("gemma4_text", **_GEMMA4, hidden_size_per_layer_input=0, attention_bias=True)
    | {"layer_types": ["full_attention"] * 6, "attention_k_eq_v": True, "tie_word_embeddings": False},
    "gemma4-moe": _like_llama("gemma4_text", **_GEMMA4_MOE),
    "gemma4-everything": _like_llama("gemma4_text", **_GEMMA4_SHARED | _GEMMA4_MOE, attention_bias=True)
    | {"hidden_size_per_layer_input": 40, "vocab_size_per_layer_input": VOCAB + 7}
    | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"] * 2},
    "gemma4-published": _with_text("gemma4", _like_llama("gemma4_text", **_GEMMA4_SHARED), _VISION4),
    "gemma4-moe-published": _with_text("gemma4", _like_llama("gemma4_text", **_GEMMA4_MOE), _VISION4),
    "gemma4-vision": _with_text(
        "gemma4", _like_llama("gemma4_text", **_GEMMA4_SHARED, use_bidirectional_attention="vision"), _VISION4
    ),
    "falcon-h1": _like_llama("falcon_h1", **_FALCON_H1, attention_bias=True, mlp_bias=True, projectors_bias=True)
    | {"mamba_proj_bias": True, "tie_word_embeddings": True},
    "falcon-h1-norm": _like_llama("falcon_h1", **_FALCON_H1 | {"mamba_n_groups": 1, "mamba_rms_norm": True})
    | {"mamba_norm_before_gate": False, "mamba_conv_bias": False},
    "llama4": _like_llama("llama4_text", **_LLAMA4, attention_bias=True, tie_word_embeddings=True),
    "llama4-plain": _like_llama("llama4_text", **_LLAMA4 | {"num_experts_per_tok": 2, "use_qk_norm": False})
    | {"attn_temperature_tuning": False, "no_rope_layers": [0, 1, 1, 0], "moe_layers": [0]}
    | _rope("llama3", low_freq_factor=1.0, high_freq_factor=1.0, original_max_position_embeddings=32),
    "llama4-published": _with_text("llama4", _like_llama("llama4_text", **_LLAMA4), _LLAMA4_VISION),
    "kimi-linear": _like_llama("kimi_linear", **_KIMI),
    "kimi-linear-all-experts": _like_llama("kimi_linear", **_KIMI | {"num_local_experts": 3, "n_group": 1})
    | {"topk_group": 1},
    "kimi-linear-row": _like_llama("kimi_linear", **_KIMI | {"linear_head_dim": 20, "linear_num_heads": 3})
    | {
        **{"q_lora_rank": 40, "attention_bias": True, "norm_topk_prob": False, "linear_conv_kernel_dim": 3},
        **{"layer_types": ["full_attention", "linear_attention"] * 2},
        "mlp_layer_types": ["sparse", "dense", "dense", "sparse"],
    },
    "bailing-hybrid": _like_llama("bailing_hybrid", **_LING),
    "bailing-hybrid-all-experts": _like_llama("bailing_hybrid", **_LING | {"num_local_experts": 3, "n_group": 1})
    | {"topk_group": 1},
    "bailing-hybrid-row": _like_llama("bailing_hybrid", **_LING | {"head_dim": 20, "n_group": 1, "topk_group": 1})
    | {
        **{"q_lora_rank": 40, "attention_bias": True, "norm_topk_prob": False, "short_conv_kernel_size": 3},
        **{"layer_types": ["full_attention", "linear_attention"] * 2, "kda_safe_gate": False, "v_head_dim": 48},
        "mlp_layer_types": ["sparse", "dense", "dense", "sparse"],
    },
    "glm5-next": _with_text("glm5_next", _like_llama("glm5_next_text", **_GLM5), _GLM5_VISION),
    "glm5-next-many": _with_text(
        "glm5_next",
        _like_llama("glm5_next_text", **_GLM5 | {"index_topk": 32, "index_kpool": 16, "linear_lower_bound": None})
        | {"hc_mult": 3, "hc_eps": 0.05, "swiglu_limit": 3.0, "rms_norm_eps": 1e-3, "attention_bias": True}
        | {"linear_head_dim": 20, "linear_num_heads": 3, "norm_topk_prob": False, "qk_nope_head_dim": 40}
        | {"n_routed_experts": 3, "n_group": 1, "topk_group": 1},
        _GLM5_VISION,
    ),
    "qwen4-exp": _with_text(
        "qwen4_exp", _like_llama("qwen4_exp_text", **_QWEN4, **_NGRAMS), _SEEING | {"num_position_embeddings": 16}
    ),
    # Of which fewer bits choose others.
    "qwen4-exp-many": _like_llama("qwen4_exp_text", **_QWEN4 | {"num_experts": 3, "norm_topk_prob": False})
    | {"output_gate_type": "sigmoid", "hc_count": 3, "hc_lowrank": 40, "rms_norm_eps": 1e-3, "indexer_n_heads": 6}
    | {"indexer_budget": 64, "indexer_compress_ratio": 32, "layer_types": ["full_attention", "linear_attention"] * 2},
    "qwen4-exp-ngrams": _like_llama("qwen4_exp_text", **_QWEN4 | {"num_experts": 3, "hc_count": 3}, **_NGRAMS)
    | {"ple_layer_ids": [1], "ngram_size": 4, "heads_per_ngram": 1, "ple_embed_dim": 60, "ple_conv_kernel_size": 3},
    "zamba2": _like_llama("zamba2", **_ZAMBA2),
    "zamba2-adapted": _like_llama("zamba2", **_ZAMBA2, use_shared_attention_adapter=True, use_mem_rope=True)
    | {"add_bias_linear": True, "tie_word_embeddings": False, "hidden_act": "silu"},
    "zamba2-one-block": _like_llama("zamba2", **_ZAMBA2 | {"num_mem_blocks": 1, "num_key_value_heads": 2})
    | {"layers_block_type": ["hybrid", "mamba", "hybrid", "hybrid", "mamba"], "mamba_ngroups": 1},
    "exaone": _like_llama("exaone", tie_word_embeddings=True),
    "olmo": _like_llama("olmo"),
    "olmo-biases": _like_llama("olmo", attention_bias=True, tie_word_embeddings=True),
    "nemotron": _like_llama("nemotron", attention_bias=True, mlp_bias=True),
    "nemotron-whole": _like_llama("nemotron", head_dim=32, partial_rotary_factor=1.0, hidden_act="silu"),
    "jais2": _like_llama("jais2"),
    "jais2-no-biases": _like_llama("jais2", attention_bias=False, mlp_bias=False, head_dim=32),
    "nanochat": _like_llama("nanochat", final_logit_softcapping=3.0),
    "nanochat-biases": _like_llama("nanochat", attention_bias=True, final_logit_softcapping=None)
    | _rope("yarn", original_max_position_embeddings=32),
    "minicpm3": _like_llama("minicpm3", **_LATENT, scale_emb=3, scale_depth=1.2, dim_model_base=24),
    "minicpm3-direct": _like_llama("minicpm3", **_LATENT | {"q_lora_rank": None}, attention_bias=True)
    | {"scale_depth": None, "dim_model_base": None, "tie_word_embeddings": False},
    "youtu": _like_llama("youtu", **_LATENT),
    "solar-open": _like_llama("solar_open", **_DEEPSEEK, head_dim=32, attention_bias=True),
    "sarvam-moe": _like_llama("sarvam_moe", **_DEEPSEEK, head_dim=32, attention_bias=True),
    "afmoe": _like_llama("afmoe", **_AFMOE, mup_enabled=True),
    "afmoe-all-experts": _like_llama("afmoe", **_AFMOE | {"num_experts": 3, "num_dense_layers": 0}),
    "hy-v3": _like_llama("hy_v3", **_MOE, num_experts=9, head_dim=32, attention_bias=True, num_hidden_layers=3)
    | {"num_shared_experts": 2, "mlp_layer_types": ["sparse", "dense", "sparse"]},
    "mistral4": _like_llama("mistral4", **_MISTRAL4),
    "mistral4-direct": _like_llama("mistral4", **_MISTRAL4 | {"q_lora_rank": None, "first_k_dense_replace": 0})
    | {"attention_bias": True, "norm_topk_prob": False},
    "mistral3-mistral4": _with_text("mistral3", _like_llama("mistral4", **_MISTRAL4), _PIXTRAL),
    "granitemoeshared": _like_llama("granitemoeshared", **_GRANITE, num_local_experts=5)
    | {"residual_multiplier": 0.22, "shared_intermediate_size": 80, "attention_bias": True},
    "granite-swa": _like_llama("granite_swa", **_SWASH),
    "granite-swa-biases": _like_llama("granite_swa", sliding_window=8, attention_bias=True, mlp_bias=True)
    | {"tie_word_embeddings": False, "attention_multiplier": 0.3},
    "granitemoe-swa": _like_llama("granitemoe_swa", **_SWASH, num_local_experts=5, shared_intermediate_size=80),
    "gemma3-published": _with_text(
        "gemma3", _like_llama("gemma3_text", **_GEMMA, layer_types=["sliding_attention", "full_attention"]), _SIGLIP
    ),
    "gemma3-seeing": _with_text(
        "gemma3",
        _like_llama("gemma3_text", **_GEMMA, layer_types=["sliding_attention", "full_attention"]),
        _SIGLIP | {"image_size": 112},
        mm_tokens_per_image=16,
    ),
    "kimi-k25": _with_text(
        "kimi_k25", _like_llama("deepseek_v3", **_LATENT, **_DEEPSEEK), _KIMI_VISION, projection_hidden_size=32
    ),
    "cohere2-moe": _like_llama("cohere2_moe", **_COHERE_MOE, num_shared_experts=2),
    "cohere2-moe-sigmoid": _like_llama("cohere2_moe", **_COHERE_MOE, num_shared_experts=1, rms_norm_eps=1e-5)
    | {
        **{"expert_selection_fn": "sigmoid", "shared_expert_combination_strategy": "sum", "attention_bias": True},
        **{"prefix_dense_sliding_window_pattern": 2, "tie_word_embeddings": False},
    },
    "lfm3": _like_llama("lfm3", **_LFM3),
    "lfm3-plain": _like_llama("lfm3", **_LFM3, use_attention_gate=False, use_sandwich_norm=False, conv_bias=True)
    | {"attention_bias": True, "conv_L_cache": 3, "tie_word_embeddings": False},
    "laguna": _like_llama("laguna", **_LAGUNA, num_attention_heads_per_layer=[4, 2, 6]),
    "laguna-values": _like_llama("laguna", **_LAGUNA | {"num_experts": 3}, gating="per-element"),
    "apertus1p5-text": _like_llama("apertus1p5_text", output_vocab_size=100),
    "apertus1p5-text-whole": _like_llama("apertus1p5_text", attention_bias=True),
    "apertus1p5": _with_text(
        "apertus1p5",
        _like_llama("apertus1p5_text", output_vocab_size=100),
        {"codebook_size": 20, "embed_dim": 32, "latent_channels": 32, "base_channels": 32, "num_res_blocks": 1}
        | {"channel_multiplier": [1, 1], "attn_resolutions": []},
        audio_config={"model_type": "wavtokenizer_encoder", "hidden_size": 32, "codebook_dim": 32, "num_filters": 4}
        | {"codebook_size": 20, "num_lstm_layers": 1, "upsampling_ratios": [2, 2]},
        **{"image_token_id": 101, "audio_token_id": 102, "image_token_offset": 110, "audio_token_offset": 130},
    ),
    "longcat-flash": _without_count(model_type="longcat_flash", **_LONGCAT),
    "longcat-flash-yarn": _without_count(model_type="longcat_flash", **_LONGCAT, **_YARN_MSCALE)
    | {"moe_topk": 2, "n_routed_experts": 2, "zero_expert_num": 6, "attention_bias": True},
    "axk1": _like_llama("axk1", **_LATENT, **_DEEPSEEK),
    "axk1-biases": _like_llama("axk1", **_LATENT, **_DEEPSEEK, **_YARN_MSCALE, attention_bias=True)
    | {"norm_topk_prob": False, "mlp_layer_types": ["sparse", "dense", "sparse"]},
    "mimo-v2-flash": _like_llama("mimo_v2_flash", **_MIMO),
    "mimo-v2-flash-biases": _like_llama("mimo_v2_flash", **_MIMO | {"v_head_dim": 40, "attention_bias": True})
    | {"attention_value_scale": None, "mlp_layer_types": ["sparse", "dense", "sparse", "dense"]},
    "step3p7": _with_text("step3p7", _like_llama("step3p5", **_STEP), _STEP_VISION),
    "step3p7-unlimited": _with_text(
        "step3p7",
        _like_llama("step3p5", **_STEP | {"swiglu_limits": None, "swiglu_limits_shared": None})
        | {"mlp_layer_types": ["sparse"] * 4, "query_pre_attn_scalar": 24},
        _STEP_VISION,
    ),
    "exaone4-full": _like_llama("exaone4", sliding_window=None, layer_types=["full_attention"] * 2),
}

# Those of them that the installed transformers has. Before 5 it normalised all groups of Mamba-2 layers together, and
# weighted rows of Llama 4's experts by scores of other rows; steps of GLM-4.1V after a prompt it placed elsewhere;
# RecurrentGemma's windows it left out in prompts. Tokens of Gemma 3n without rows of their own it could not read,
# and Zamba2 it could not save.
_OTHERWISE_BEFORE_5 = ("bamba", "granitemoehybrid", "mamba2", "llama4", "llama4_text", "glm4v", "recurrent_gemma")
_SINCE_5 = (*_OTHERWISE_BEFORE_5, "gemma3n", "zamba2") if int(transformers.__version__.split(".")[0]) < 5 else ()
FAMILIES = {
    name: fields
    for name, fields in FAMILIES.items()
    if name not in _SINCE_5 and all(each in CONFIG_MAPPING and each not in _SINCE_5 for each in _model_types(fields))
}

# Each variant is one thing a config can say that changes the mathematics.
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA,
    "llama-mha": _LLAMA | {"num_key_value_heads": 4},
    "llama-mqa": _LLAMA | {"num_key_value_heads": 1},
    "llama-biases": _LLAMA | {"attention_bias": True, "mlp_bias": True},
    "llama-tied": _LLAMA | {"tie_word_embeddings": True},
    "llama-head-dim": _LLAMA | {"head_dim": 32},
    "llama-odd-sizes": _LLAMA | {"hidden_size": 60, "intermediate_size": 77, "num_attention_heads": 6, "head_dim": 10},
    "llama-linear": _LLAMA | _rope("linear"),
    "llama-dynamic": _LLAMA | _rope("dynamic") | {"max_position_embeddings": 24},
    "llama-yarn": _LLAMA | _rope("yarn", original_max_position_embeddings=32),
    "llama-llama3": _LLAMA
    | _rope("llama3", low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
    "mistral": _LLAMA | {"model_type": "mistral", "sliding_window": None},
    "mistral-window": _LLAMA | {"model_type": "mistral", "sliding_window": 8},
    "qwen2": _LLAMA | {"model_type": "qwen2"},
    "qwen2-tied": _LLAMA | {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2-window": _LLAMA
    | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "qwen3": _LLAMA | {"model_type": "qwen3", "head_dim": 32},
    "qwen3-biases": _LLAMA | {"model_type": "qwen3", "head_dim": 16, "attention_bias": True},
    "opt": _OPT,
    "opt-350m": _OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 32},
    "opt-no-biases": _OPT | {"enable_bias": False, "layer_norm_elementwise_affine": False},
    "opt-untied": _OPT | {"tie_word_embeddings": False},
    "gpt-bigcode": _BIGCODE,
    "gpt-bigcode-mha": _BIGCODE | {"multi_query": False},
    "gpt-bigcode-unscaled": _BIGCODE | {"scale_attn_weights": False},
    **FAMILIES,
}


def known(*variants: str) -> list[str]:
    """Those of these variants whose family the installed transformers has."""
    return [variant for variant in variants if variant in VARIANTS]


def save(folder: Path, variant: str, seed: int = 0, **changes: Any) -> Any:
    """Write a random model of `variant` into `folder`; returns transformers' own model of it (fp32, eager)."""
    fields = copy.deepcopy(VARIANTS[variant]) | changes  # transformers writes into its parts
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    torch.manual_seed(seed)
    # transformers 4.55 cannot initialise norms without weights; its initial values are replaced below anyway.
    with mock.patch("transformers.models.opt.modeling_opt.OPTPreTrainedModel._init_weights"):
        model = from_config(config)
    randomise(model)
    model.save_pretrained(folder)
    return model


def from_config(config: Any) -> Any:
    """transformers' model of a config, eager; with its vision part where it has one."""
    if config.model_type == "mistral4":  # which transformers has as a part of mistral3 alone
        return transformers.Mistral4ForCausalLM._from_config(config, attn_implementation="eager").eval()
    kind = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation="eager").eval()
    if config.model_type == "llama4":  # transformers 5.24 asks its text for pictures, also where there were none
        model.language_model.register_forward_hook(lambda *call: setattr(call[-1], "image_outputs", None))
    return model


def randomise(model: Any) -> None:
    """transformers starts biases at zero and norms at one, which would hide a bias or norm that is left out."""
    # Attention of Gemma 3n and 4 has no scale but that of trained norms: else most of a softmax is one position's.
    unscaled = model.config.get_text_config().model_type in ("gemma4_text", "gemma3n_text")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
                if unscaled and "q_norm" in name:
                    parameter.mul_(len(parameter) ** -0.5)
            elif "embed" not in name:
                parameter.copy_(torch.randn_like(parameter) * 0.15)
        for name, buffer in model.named_buffers():
            # Above zero: transformers 4 takes zero for the score of other groups' experts.
            if "correction_bias" in name:
                buffer.add_(torch.rand_like(buffer) * 0.2)
            elif "layer_scalar" in name:
                buffer.add_(torch.rand_like(buffer) * 0.4 - 0.2)
            elif "tid2eid" in name:
                buffer.copy_(torch.rand(len(buffer), model.config.n_routed_experts).argsort(1)[:, : buffer.shape[1]])
            elif "expert_bias" in name:
                buffer.add_(torch.randn_like(buffer) * 0.1)


def model(
    folder: Path,
    executor: str = "torch",
    precision: str = "fp32",
    exact: bool = True,
    kv_precision: str | None = None,
) -> Model:
    """The saved model on one of our executors."""
    return load_model(
        LoadRequest(open_checkpoint(str(folder)), precision, executor, exact=exact, kv_precision=kv_precision)
    )


class Text:
    """A model with one sequence, for tests that follow a single text."""

    def __init__(self, model: Model, capacity: int = 96) -> None:
        self.model, self.sequence = model, model.new_sequence(capacity)

    @property
    def length(self) -> int:
        return self.sequence.length

    def truncate(self, length: int) -> None:
        self.sequence.truncate(length)

    def forward(self, tokens: Tokens, last: int = 1, vocabulary: int | None = None) -> torch.Tensor:
        return self.model.extend(self.sequence, tokens, last, vocabulary)

    def draft(self, tokens: Tokens, count: int, **options: Any) -> tuple[list[int], list[float]]:
        assert isinstance(self.model, DraftsInOneCall)
        return self.model.draft(self.sequence, tokens, count, **options)


def text(folder: Path, executor: str = "torch", precision: str = "fp32", tokens: int = 96, exact: bool = True) -> Text:
    """A text of at most `tokens` tokens on the saved model."""
    return Text(model(folder, executor, precision, exact), tokens)
