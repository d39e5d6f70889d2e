"""Maps GGUF to Hugging Face for GPT-2, GPT-NeoX, Falcon, BLOOM and MPT, which fuse query, key and value.

Source: conversion/{gpt2,gptneox,falcon,bloom,mpt}.py of llama.cpp, and src/models/*.cpp for values that files do not
state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints.gguf_file import GgufHeader, rounded

if TYPE_CHECKING:
    import torch

Config = dict[str, Any]


def _named(outside: tuple[str, ...], layers: str, *modules: str) -> tuple[str, ...]:
    return (*outside, *(f"{layers}.{{bid}}.{name}" for name in modules))


_LINEARS = (
    "self_attention.query_key_value",
    "self_attention.dense",
    "mlp.dense_h_to_4h",
    "mlp.dense_4h_to_h",
)
_OUTSIDE = ("transformer.word_embeddings", "transformer.ln_f", "lm_head")
_NORMS = ("input_layernorm", "post_attention_layernorm")
_GPT2 = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")


def _falcon_modules(header: GgufHeader) -> tuple[str, ...]:
    """Where a layer has two norms, the file's attn_norm is Hugging Face's ln_mlp."""
    return _named(_OUTSIDE, "transformer.h", *_LINEARS, *(("ln_mlp", "ln_attn") if _two(header) else _NORMS[:1]))


def _two(header: GgufHeader) -> bool:
    return "blk.0.attn_norm_2.weight" in header.tensors


# general.architecture -> (architectures[0], model_type, Hugging Face modules).
ARCHITECTURES: dict[str, tuple[str, str, tuple[str, ...] | Callable[[GgufHeader], tuple[str, ...]]]] = {
    "gpt2": (
        "GPT2LMHeadModel",
        "gpt2",
        _named(("transformer.wte", "transformer.wpe", "transformer.ln_f", "lm_head"), "transformer.h", *_GPT2),
    ),
    "gptneox": (
        "GPTNeoXForCausalLM",
        "gpt_neox",
        _named(
            ("gpt_neox.embed_in", "gpt_neox.final_layer_norm", "embed_out"),
            "gpt_neox.layers",
            *(name.replace("self_attention", "attention") for name in _LINEARS),
            *_NORMS,
        ),
    ),
    "falcon": ("FalconForCausalLM", "falcon", _falcon_modules),
    "bloom": (
        "BloomForCausalLM",
        "bloom",
        _named((*_OUTSIDE, "transformer.word_embeddings_layernorm"), "transformer.h", *_LINEARS, *_NORMS),
    ),
    "mpt": (
        "MptForCausalLM",
        "mpt",
        _named(
            ("transformer.wte", "transformer.norm_f", "lm_head"),
            "transformer.blocks",
            *("attn.Wqkv", "attn.out_proj", "ffn.up_proj", "ffn.down_proj", "norm_1", "norm_2"),
        ),
    ),
}


def _gpt2(header: GgufHeader, sizes: Config) -> Config:
    return {
        "n_embd": sizes["hidden_size"],
        "n_layer": sizes["num_hidden_layers"],
        "n_inner": sizes["intermediate_size"],
        "n_head": sizes["num_attention_heads"],
        "n_positions": sizes["max_position_embeddings"],
        "layer_norm_epsilon": sizes["layer_norm_eps"],
        "activation_function": "gelu_new",
    }


_20B = (44, 6144)


def _gpt_neox(header: GgufHeader, sizes: Config) -> Config:
    rotary_dim = header.get("{arch}.rope.dimension_count", sizes["head_dim"])
    sized = (sizes["num_hidden_layers"], sizes["hidden_size"])
    return sizes | {
        # The file does not state the activation; only GPT-NeoX-20B has gelu_fast.
        "hidden_act": "gelu_fast" if sized == _20B else "gelu",
        "use_parallel_residual": header.get("{arch}.use_parallel_residual", True),
        "attention_bias": "blk.0.attn_qkv.bias" in header.tensors,
        "rotary_pct": rotary_dim / sizes["head_dim"],
        "rotary_emb_base": sizes["rope_theta"],
    }


def _falcon(header: GgufHeader, sizes: Config) -> Config:
    kv_heads = sizes["num_key_value_heads"]
    return sizes | {
        "num_kv_heads": kv_heads,
        "new_decoder_architecture": kv_heads > 1 or _two(header),
        "num_ln_in_parallel_attn": 2 if _two(header) else 1,
        "multi_query": kv_heads == 1,
        "parallel_attn": True,
        "alibi": False,
        "bias": "blk.0.attn_qkv.bias" in header.tensors,
        "ffn_hidden_size": sizes["intermediate_size"],
        "activation": "gelu",
        "layer_norm_epsilon": sizes["layer_norm_eps"],
    }


def _bloom(header: GgufHeader, sizes: Config) -> Config:
    return {
        "hidden_size": sizes["hidden_size"],
        "n_layer": sizes["num_hidden_layers"],
        "n_head": sizes["num_attention_heads"],
        "seq_length": sizes["max_position_embeddings"],
        "layer_norm_epsilon": sizes["layer_norm_eps"],
    }


def _mpt(header: GgufHeader, sizes: Config) -> Config:
    """Settings that neither MPT-7B nor MPT-30B has go into the config, whose reader refuses them by name."""
    greatest = header.get("{arch}.attention.max_alibi_bias", 0.0)
    heads = sizes["num_attention_heads"]
    return {
        "d_model": sizes["hidden_size"],
        "n_layers": sizes["num_hidden_layers"],
        "n_heads": heads,
        "max_seq_len": sizes["max_position_embeddings"],
        "expansion_ratio": sizes["intermediate_size"] // sizes["hidden_size"],
        "layer_norm_epsilon": sizes["layer_norm_eps"],
        "no_bias": not any(name.endswith(".bias") for name in header.tensors),
        "attn_config": {
            "attn_type": "multihead_attention" if sizes["num_key_value_heads"] == heads else "grouped_query_attention",
            "alibi": greatest > 0,
            "alibi_bias_max": int(greatest) or 8,
            "clip_qkv": rounded(header.get("{arch}.attention.clamp_kqv") or 0.0) or None,
            "qk_ln": "blk.0.attn_q_norm.weight" in header.tensors,
        },
    }


# A function for each family from the header and Llama's config keys to the family's config.
CONFIGS: dict[str, Callable[[GgufHeader, Config], Config]] = {
    "gpt2": _gpt2,
    "gptneox": _gpt_neox,
    "falcon": _falcon,
    "bloom": _bloom,
    "mpt": _mpt,
}


def transposed(name: str, config: Config) -> bool:
    """Whether the Hugging Face checkpoint stores this tensor as (in, out), as GPT-2's linears are."""
    return config["model_type"] == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight"))


def is_rearranged(name: str, config: Config) -> bool:
    """Whether `restored` changes the order of a tensor's elements."""
    fused = ".query_key_value." in name and config["model_type"] in ("gpt_neox", "falcon", "bloom")
    return fused or transposed(name, config)


def restored(name: str, tensor: torch.Tensor, config: Config) -> torch.Tensor:
    """The tensor in the checkpoint's layout: GPT-2's linears as (in, out), fused query, key and value by group."""
    kind = config["model_type"]
    if transposed(name, config):
        return tensor.t().contiguous()
    if not is_rearranged(name, config):
        return tensor
    heads = config["n_head" if kind == "bloom" else "num_attention_heads"]
    groups = config["num_kv_heads"] if kind == "falcon" else heads
    return _by_group(tensor, heads, groups)


def _by_group(tensor: torch.Tensor, heads: int, groups: int) -> torch.Tensor:
    """Reorder rows from (all queries, all keys, all values) to the queries, the key and the value of each group."""
    import torch

    rest = tensor.shape[1:]
    head_dim = tensor.shape[0] // (heads + 2 * groups)
    parts = tensor.split([heads * head_dim, groups * head_dim, groups * head_dim])
    return torch.cat([part.reshape(groups, -1, head_dim, *rest) for part in parts], dim=1).reshape(tensor.shape)
