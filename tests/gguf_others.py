"""What llama.cpp's converter writes of Granite, Falcon-H1, Cohere's mixtures and Llama 4, and how it changes tensors.

A part of gguf_layouts.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

Config = dict[str, Any]
Tensors = Iterator[tuple[str, torch.Tensor]]


def _granite(config: Config) -> Config:
    return {
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
        "expert_shared_feed_forward_length": config.get("shared_intermediate_size"),
        "attention.key_length": None,
        "attention.value_length": None,
    }


def _swash(config: Config) -> Config:
    """The bases of layers' positions are not written but for `no_rope_layers`, which older configs have."""
    return _granite(config) | {
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config["layer_types"]],
    }


def _falcon_h1(config: Config) -> Config:
    return {
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.inner_size": config["mamba_d_ssm"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.time_step_rank": config["mamba_d_ssm"] // config["mamba_d_head"],
        "ssm.group_count": config["mamba_n_groups"],
    }


def _cohere(config: Config) -> Config:
    rms, kinds = config.get("rms_norm_eps"), config["mlp_layer_types"]
    return {
        "attention.layer_norm_epsilon": config["layer_norm_eps"],
        "attention.layer_norm_rms_epsilon": rms,
        "feed_forward_length": config["prefix_dense_intermediate_size"],
        "expert_feed_forward_length": config["intermediate_size"],
        "expert_gating_func": {"softmax": 1, "sigmoid": 2}[config["expert_selection_fn"]],
        "expert_shared_count": config["num_shared_experts"],
        "expert_shared_feed_forward_length": config["intermediate_size"] * config["num_shared_experts"],
        "expert_weights_norm": config["norm_topk_prob"],
        "leading_dense_block_count": kinds.index("sparse"),
        "logit_scale": config["logit_scale"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config["layer_types"]],
        "rope.dimension_count": config["head_dim"],
        "rope.scaling.type": "none",
    }


def _llama4(config: Config) -> Config:
    return {
        "feed_forward_length": config["intermediate_size_mlp"],
        "expert_feed_forward_length": config["intermediate_size"],
        "interleave_moe_layer_step": config["interleave_moe_layer_step"],
        "rope.dimension_count": config["head_dim"],
    }


def qwen4(config: Config) -> Config:
    """What it has beside Qwen3.5's. Published configs call layers with an indexer full attention."""
    full = [kind != "linear_attention" for kind in config["layer_types"]]
    return {
        "hyper_connection.count": config["hc_count"],
        "hyper_connection.low_rank": config["hc_lowrank"],
        "attention.indexer.head_count": config["indexer_n_heads"],
        "attention.indexer.key_length": config["indexer_head_dim"],
        "attention.indexer.top_k": config["indexer_budget"],
        "attention.compress_ratios": [config["indexer_compress_ratio"] * each for each in full],
    }


OWN: dict[str, Callable[[Config], Config]] = {
    "granitemoe": _granite,
    "granite_swa": _swash,
    "falcon-h1": _falcon_h1,
    "cohere2moe": _cohere,
    "llama4": _llama4,
}
# Of architectures that the gguf package may not have, one of it that names their tensors alike.
NAMED_AS = dict.fromkeys(("granite_swa", "cohere2moe"), "glm4moe") | {"qwen4exp": "qwen35moe"}


def _interleaved(name: str, tensor: torch.Tensor, config: Config) -> torch.Tensor:
    heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)


def swash_tensors(name: str, tensor: torch.Tensor, config: Config) -> Tensors:
    """`GraniteMoeSWAModel.modify_tensors`: gate and up stay one tensor."""
    layer, _, within = name.partition(".layers.")[2].partition(".")
    named = {"self_attn.sinks": "attn_sinks", "post_attention_layernorm.weight": "ffn_norm"}
    named["block_sparse_moe.router.weight"] = "ffn_gate_inp"
    fused = {
        **dict.fromkeys(
            ("block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.input_linear.weight"), "gate_up_exps"
        ),
        **dict.fromkeys(("block_sparse_moe.experts.down_proj", "block_sparse_moe.output_linear.weight"), "down_exps"),
        **{"shared_mlp.input_linear.weight": "up_shexp", "shared_mlp.output_linear.weight": "down_shexp"},
    }
    if within in named:
        yield f"blk.{layer}.{named[within]}.weight", tensor
    elif within in fused:
        yield f"blk.{layer}.ffn_{fused[within]}.weight", tensor
    else:
        yield name, _interleaved(name, tensor, config) if ".q_proj." in name or ".k_proj." in name else tensor


def falcon_h1_tensors(name: str, tensor: torch.Tensor, config: Config) -> Tensors:
    """`FalconH1Model.modify_tensors`."""
    layer, _, within = name.partition(".layers.")[2].partition(".")
    read, (gate, down) = config["attention_in_multiplier"], config["mlp_multipliers"]
    factors = {
        **{"down_proj": down, "gate_proj": gate, "k_proj": read * config["key_multiplier"], "q_proj": read},
        **{"v_proj": read, "o_proj": config["attention_out_multiplier"], "out_proj": config["ssm_out_multiplier"]},
        **{"lm_head": config["lm_head_multiplier"], "embed_tokens": config["embedding_multiplier"]},
    }
    leaf, width = name.split(".")[-2], config["mamba_d_ssm"]
    if leaf == "in_proj":
        states = config["mamba_n_groups"] * config["mamba_d_state"]
        parts = tensor.split([width, width, states, states, config["mamba_n_heads"]])
        each = zip(parts, config["ssm_multipliers"], strict=True)
        yield name, torch.cat([part * config["ssm_in_multiplier"] * factor for part, factor in each])
    elif within == "pre_ff_layernorm.weight":
        yield f"blk.{layer}.ffn_norm", tensor
    elif within == "mamba.norm.weight":
        yield name, tensor.reshape(config["mamba_n_groups"], -1)
    elif within == "mamba.conv1d.weight":
        yield name, tensor.squeeze()
    elif within == "mamba.dt_bias":
        yield f"blk.{layer}.ssm_dt.bias", tensor
    elif within in ("mamba.A_log", "mamba.D"):
        yield name, (-torch.exp(tensor) if "A_log" in name else tensor).reshape(-1, 1)
    else:
        yield name, tensor * factors.get(leaf, 1.0)


def cohere_tensors(name: str, tensor: torch.Tensor, config: Config) -> Tensors:
    """`Cohere2MoeModel.modify_tensors`. transformers may have all experts of a layer in two tensors."""
    layer, _, within = name.partition(".layers.")[2].partition(".")
    leaf = within.split(".")[-2].removesuffix("_proj") if within.startswith("mlp.shared_experts.") else ""
    if within == "mlp.experts.gate_up_proj":
        for part, each in zip(("gate", "up"), tensor.chunk(2, dim=1), strict=True):
            yield f"blk.{layer}.ffn_{part}_exps.weight", each
    elif leaf:
        yield f"blk.{layer}.ffn_{leaf}_shexp.weight", tensor
    else:
        yield name, tensor


def llama4_tensors(name: str, tensor: torch.Tensor, config: Config) -> Tensors:
    """`Llama4Model.modify_tensors`."""
    layer, _, within = name.partition(".layers.")[2].partition(".")
    if within == "feed_forward.experts.gate_up_proj":
        for part, each in zip(("gate", "up"), tensor.transpose(1, 2).chunk(2, dim=1), strict=True):
            yield f"blk.{layer}.ffn_{part}_exps.weight", each
    elif within == "feed_forward.experts.down_proj":
        yield f"blk.{layer}.ffn_down_exps.weight", tensor.transpose(1, 2)
    else:
        yield name, tensor


_QWEN4 = {
    **{
        "input_mix_weight_down": "down",
        "input_mix_weight_up": "up",
        "block_inject_weight": "inject",
        "hc_norm": "norm",
    },
}
_QWEN4_PLACES = {"attn_hyper_connection": "hc_attn", "mlp_hyper_connection": "hc_ffn"}


def qwen4_tensors(name: str, tensor: torch.Tensor, config: Config) -> Tensors:
    """`Qwen4ExpTextModel.modify_tensors`, of what Qwen3.5 does not have; nothing of other tensors."""
    layer = name.partition(".layers.")[2].partition(".")[0]
    place, leaf, _ = f"..{name}".rsplit(".", 2)
    place = place.rpartition(".")[2]
    tensor = tensor + 1 if leaf in ("hc_norm", "q_layernorm", "k_layernorm") else tensor
    queries = config["indexer_n_heads"] * config["indexer_head_dim"]
    if place == "hyper_connection_mixer":
        yield f"output_hc_{_QWEN4[leaf]}.weight", tensor
    elif place in _QWEN4_PLACES:
        yield f"blk.{layer}.{_QWEN4_PLACES[place]}_{_QWEN4[leaf]}.weight", tensor
    elif leaf == "index_qk_proj":
        yield f"blk.{layer}.indexer.q_proj.weight", tensor[:queries]
        yield f"blk.{layer}.indexer.k_proj.weight", tensor[queries:]
    elif leaf in ("q_layernorm", "k_layernorm"):
        yield f"blk.{layer}.indexer.{leaf[0]}_norm.weight", tensor


CHANGED: dict[str, Callable[[str, torch.Tensor, Config], Tensors]] = {
    "granite_swa": swash_tensors,
    "falcon-h1": falcon_h1_tensors,
    "cohere2moe": cohere_tensors,
    "llama4": llama4_tensors,
}
