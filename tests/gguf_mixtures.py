"""What llama.cpp's converter writes of mixtures, and how it changes their tensors: a part of gguf_layouts.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

Config = dict[str, Any]
Tensors = Iterator[tuple[str, torch.Tensor]]


def _mixture(config: Config) -> Config:
    return {
        "expert_count": config.get("n_routed_experts") or config.get("num_experts"),
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config.get("n_shared_experts"),
        "leading_dense_block_count": config.get("first_k_dense_replace"),
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_weights_norm": config["norm_topk_prob"],
    }


def _latent(config: Config) -> Config:
    rank, rotated = config["kv_lora_rank"], config["qk_rope_head_dim"]
    scale = (config.get("rope_parameters") or config.get("rope_scaling") or {}).get("mscale_all_dim")
    # GLM-4.7-Flash does not say that its first layer is dense, nor that its router has a sigmoid.
    glm = {"leading_dense_block_count": 1, "expert_gating_func": 2} if config["model_type"] == "glm4_moe_lite" else {}
    return {
        **_mixture(config),
        **glm,
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rotated,
        "attention.value_length": rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rotated,
        "attention.value_length_mla": config["v_head_dim"],
        "rope.dimension_count": rotated,
        "rope.scaling.yarn_log_multiplier": None if scale is None else 0.1 * scale,
        "expert_weights_norm": config["norm_topk_prob"] or None,
    }


def _glm(config: Config) -> Config:
    share = (config.get("rope_parameters") or {}).get("partial_rotary_factor", 0.5)
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return _mixture(config) | {"rope.dimension_count": int(width * share), "expert_gating_func": 2}


def _minimax(config: Config) -> Config:
    return {
        "expert_feed_forward_length": config["intermediate_size"],
        "rope.dimension_count": config["rotary_dim"],
        "expert_gating_func": 2,
    }


def _ernie(config: Config) -> Config:
    return {
        "expert_count": config["moe_num_experts"],
        "expert_used_count": config["moe_k"],
        "interleave_moe_layer_step": config["moe_layer_interval"],
        "leading_dense_block_count": config["moe_layer_start_index"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["moe_num_shared_experts"],
    }


def _exaone(config: Config) -> Config:
    return _mixture(config) | {
        "expert_shared_count": config["num_shared_experts"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config["layer_types"]],
        "rope.scaling.type": "none",
    }


def _afmoe(config: Config) -> Config:
    return {
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["num_shared_experts"],
        "leading_dense_block_count": config["num_dense_layers"],
        "expert_weights_norm": True,
        "expert_weights_scale": config["route_scale"],
        "expert_gating_func": 2,
        "attention.sliding_window": config["sliding_window"],
    }


def _hunyuan(config: Config) -> Config:
    rope, used = config.get("rope_parameters") or {}, config["moe_topk"]
    base, alpha, dim = rope.get("rope_theta", 10000.0), rope.get("alpha"), config["head_dim"]
    return {
        "expert_feed_forward_length": config["intermediate_size"],
        "expert_used_count": used[0] if isinstance(used, list) else used,
        "expert_shared_count": 1,
        "expert_shared_feed_forward_length": config["intermediate_size"],
        "rope.freq_base": base * alpha ** (dim / (dim - 2)) if alpha else base,
        "rope.scaling.type": "none",
    }


def _mimo(config: Config) -> Config:
    """The published window leaves out a row's own position, which transformers counts."""
    kinds, few = config["layer_types"], config["num_key_value_heads"]
    rotated = config["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    return {
        "attention.head_count_kv": [few if kind == "full_attention" else 2 * few for kind in kinds],
        "attention.sliding_window": config["sliding_window"] - 1,
        "attention.sliding_window_pattern": [int(kind == "sliding_attention") for kind in kinds],
        "attention.value_length": config["v_head_dim"],
        "attention.value_scale": config["attention_value_scale"],
        "expert_count": config["n_routed_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_gating_func": 2,
        "rope.dimension_count": int(config["head_dim"] * rotated),
    }


def _step(config: Config) -> Config:
    kinds, of_all = config["layer_types"], config["num_attention_heads"]
    of_windows = config["num_sliding_attention_heads"]
    return {
        "attention.head_count": [of_all if kind == "full_attention" else of_windows for kind in kinds],
        "attention.head_count_kv": [config["num_key_value_heads"]] * len(kinds),
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in kinds],
        "attention.value_length": config["head_dim"],
        "expert_count": config["n_routed_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["share_expert_dim"],
        "expert_weights_scale": config["moe_router_scaling_factor"],
        "expert_weights_norm": True,
        "leading_dense_block_count": config["mlp_layer_types"].index("sparse"),
        "moe_every_n_layers": 1,
        "swiglu_clamp_exp": config["swiglu_limits"],
        "swiglu_clamp_shexp": config["swiglu_limits_shared"],
    }


def step_rope_factors(config: Config) -> torch.Tensor:
    """Divisors of the frequencies of layers that see everything, and ones for the other half of a head."""
    rope, rotated = config["rope_parameters"]["full_attention"], config["head_dim"] // 2
    lengths = 2 * torch.pi * rope["rope_theta"] ** (torch.arange(0, rotated, 2) / rotated)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = ((rope["original_max_position_embeddings"] / lengths - low) / (high - low)).clamp(0, 1)
    return torch.cat((1 / ((1 - smooth) / rope["factor"] + smooth), torch.ones(rotated // 2)))


def _indexed(config: Config) -> Config:
    return _latent(config) | {
        "expert_gating_func": 2,
        "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk"],
    }


def _ling3(config: Config) -> Config:
    known = {"n_routed_experts": config["num_experts"], "n_shared_experts": config["num_shared_experts"]}
    known |= {
        "first_k_dense_replace": config["mlp_layer_types"].index("sparse"),
        "norm_topk_prob": config["moe_renormalize"],
    }
    kinds = [int(kind == "full_attention") for kind in config["layer_types"]]
    return _latent({**config, **known}) | {
        "context_length": config["model_max_length"],
        "attention.head_count_kv": kinds,
        "attention.value_length": None,
        "expert_used_count": config["num_experts_per_token"],
        "expert_group_count": config["num_expert_group"],
        "expert_group_used_count": config["topk_group"],
        "kda.head_dim": config["linear_head_dim"],
        "kda.safe_gate": True,
        "kda.gate_lower_bound": config["kda_lower_bound"],
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "swiglu_clamp_exp": config.get("expert_swiglu_limit_list"),
        "swiglu_clamp_shexp": config.get("share_expert_swiglu_limit_list"),
    }


def _glm5_next(config: Config) -> Config:
    kinds = config["mlp_layer_types"]
    limits = [float(config["swiglu_limit"])] * len(kinds)
    known = {"first_k_dense_replace": kinds.index("sparse")}
    return _indexed({**config, **known}) | {
        "attention.head_count_kv": [int(kind != "linear_attention") for kind in config["layer_types"]],
        "attention.indexer.kpool": config["index_kpool"],
        "attention.indexer.kpool_select_tail": True,
        "attention.indexer.types": [kind == "full" for kind in config["indexer_types"]],
        "hyper_connection.count": config["hc_mult"],
        "hyper_connection.epsilon": config["hc_eps"],
        "hyper_connection.sinkhorn_iterations": config["hc_sinkhorn_iters"],
        "kda.gate_lower_bound": config["linear_lower_bound"],
        "kda.head_dim": config["linear_head_dim"],
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "swiglu_clamp_exp": limits,
        "swiglu_clamp_shexp": limits,
    }


def _minimax3(config: Config) -> Config:
    kinds = config["mlp_layer_types"]
    return {
        "feed_forward_length": config["dense_intermediate_size"],
        "expert_feed_forward_length": config["intermediate_size"],
        "expert_shared_count": 1,
        "expert_weights_scale": config["routed_scaling_factor"],
        "expert_weights_norm": True,
        "expert_gating_func": 2,
        "leading_dense_block_count": kinds.index("sparse"),
        "rope.dimension_count": int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]),
        "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk_blocks"],
        "attention.indexer.block_size": config["index_block_size"],
        "attention.indexer.local_blocks": config["index_local_blocks"],
    }


def _hunyuan4(config: Config) -> Config:
    kinds = config["mlp_layer_types"]
    return _indexed(config) | {
        "leading_dense_block_count": kinds.index("sparse"),
        "swiglu_clamp_exp": [float(config["swiglu_limit"])] * len(kinds),
        "hyper_connection.count": config["hc_mult"],
        "hyper_connection.epsilon": config["hc_eps"],
        "hyper_connection.magnitude": float(config["hc_magnitude"]),
        "attention.indexer.types": [kind == "full" for kind in config["indexer_types"]],
    }


def _bailing(config: Config) -> Config:
    return _mixture(config) | {
        "expert_gating_func": 2,
        "expert_shared_feed_forward_length": config["moe_intermediate_size"] * config["n_shared_experts"],
        "rope.dimension_count": int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]),
    }


def _kimi(config: Config) -> Config:
    known = {"norm_topk_prob": None, "first_k_dense_replace": config["mlp_layer_types"].index("sparse")}
    renamed = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
    known |= {ours: config[theirs] for ours, theirs in renamed.items()}
    return _latent({**config, **known}) | {
        "context_length": config["model_max_length"],
        "attention.head_count_kv": [int(kind == "full_attention") for kind in config["layer_types"]],
        "attention.value_length": None,
        "expert_used_count": config["num_experts_per_token"],
        "expert_gating_func": 2,
        "expert_group_count": config["num_expert_group"],
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "kda.head_dim": config["linear_head_dim"],
    }


def _laguna(config: Config) -> Config:
    ropes, width = config["rope_parameters"], config["head_dim"]
    rotated = [int(width * each["partial_rotary_factor"]) for each in (*ropes.values(),)]
    return {
        "attention.head_count": config["num_attention_heads_per_layer"],
        "attention.sliding_window": config["sliding_window"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
        "expert_weights_norm": True,
        "expert_weights_scale": float(config["moe_routed_scaling_factor"]),
        "expert_gating_func": 2,
        "leading_dense_block_count": config["mlp_layer_types"].index("sparse"),
        "rope.dimension_count": rotated[list(ropes).index("full_attention")],
        "rope.dimension_count_swa": rotated[list(ropes).index("sliding_attention")],
    }


def _hunyuan3(config: Config) -> Config:
    return {
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_feed_forward_length": config["moe_intermediate_size"] * config["num_shared_experts"],
        "expert_weights_norm": True,
        "expert_weights_scale": float(config["router_scaling_factor"]),
        "expert_gating_func": 2,
    }


OWN: dict[str, Callable[[Config], Config]] = {
    **dict.fromkeys(("deepseek2", "mistral4"), _latent),
    **dict.fromkeys(("deepseek32", "glm-dsa"), _indexed),
    "hy_v4": _hunyuan4,
    "bailingmoe3": _ling3,
    "glm5-next": _glm5_next,
    "minimax-m3": _minimax3,
    "glm4moe": _glm,
    "dots1": _mixture,
    "minimax-m2": _minimax,
    "ernie4_5-moe": _ernie,
    "exaone-moe": _exaone,
    "hunyuan-moe": _hunyuan,
    "afmoe": _afmoe,
    "mimo2": _mimo,
    "step35": _step,
    "laguna": _laguna,
    "hy_v3": _hunyuan3,
    "bailingmoe2": _bailing,
    "kimi-linear": _kimi,
}
# Architectures that the gguf package does not have yet, and one of it that names all their tensors alike.
NAMED_AS = {
    "glm5-next": "kimi-linear",
    "deepseek32": "glm-dsa",
    "hy_v4": "glm-dsa",
    "laguna": "step35",
    "hy_v3": "glm4moe",
    "bailingmoe3": "kimi-linear",
    **{"minimax-m3": "minimax-m2", "deepseek4": "deepseek2"},
}


def keys_and_values(name: str, tensor: torch.Tensor, config: Config) -> Tensors:
    """Each head's matrix for its key, transposed, and that for its value."""
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    keys, values = tensor.reshape(heads, -1, tensor.shape[-1]).split([nope, config["v_head_dim"]], 1)
    yield name.replace("kv_b_proj", "k_b_proj"), keys.transpose(1, 2)
    yield name.replace("kv_b_proj", "v_b_proj"), values


_EXPERTS = {"w1": "gate", "w2": "down", "w3": "up"}


def kimi_tensors(name: str, tensor: torch.Tensor, config: Config) -> Tensors:
    """`KimiLinearModel.modify_tensors`. transformers saves dense MLPs under the name of sparse ones."""
    layer, leaf = name.split(".")[2] if ".layers." in name else "", name.split(".")[-2]
    if name.endswith("conv1d.weight"):
        yield name, tensor.reshape(1, -1, 1, tensor.shape[-1])
    elif name.endswith(".A_log"):
        yield name, -torch.exp(tensor).reshape(1, 1, -1, 1)
    elif name.endswith(".dt_bias"):
        yield name.replace(".dt_bias", ".dt_proj.bias"), tensor
    elif name.endswith("kv_b_proj.weight"):
        yield from keys_and_values(name, tensor, config)
    elif leaf in _EXPERTS:
        yield f"blk.{layer}.ffn_{_EXPERTS[leaf]}_exps.weight", tensor
    else:
        yield name.replace("block_sparse_moe." + leaf, "mlp." + leaf) if leaf != "gate" else name, tensor


_HUNYUAN4 = {"self_attn.linear_gate.weight": "attn_gate", "self_attn.learnable_sink_param": "attn_sinks"}
_HUNYUAN4 |= {"mlp.experts.down_proj": "ffn_down_exps"}


def hunyuan4_tensors(name: str, tensor: torch.Tensor, config: Config) -> Tensors:
    """`HYV4Model.modify_tensors`, with names that the gguf package does not know yet."""
    if ".mlp." in name:  # transformers saves all gates by the name of attention's
        name = name.replace("linear_gate", "gate_proj")
    layer, _, within = name.partition(".layers.")[2].partition(".")
    leaf = name.rpartition(".")[2]
    kind = next((ours for theirs, ours in (("hc_attn", "attn"), ("hc_mlp", "ffn")) if f".{theirs}_layer." in name), "")
    if ".hc_head." in name:
        yield f"output_{leaf.replace('hc_head', 'hc')}.weight", tensor
    elif kind:
        yield f"blk.{layer}.{leaf.replace('hc_', f'hc_{kind}_')}.weight", tensor
    elif within in _HUNYUAN4:
        yield f"blk.{layer}.{_HUNYUAN4[within]}.weight", tensor
    elif within == "mlp.experts.gate_up_proj":
        for part, each in zip(("gate", "up"), tensor.chunk(2, dim=1), strict=True):
            yield f"blk.{layer}.ffn_{part}_exps.weight", each
    elif within == "self_attn.kv_b_proj.weight":
        yield from keys_and_values(name, tensor, config)
    else:
        yield name, tensor


def ling3_tensors(name: str, tensor: torch.Tensor, config: Config) -> Tensors:
    """`BailingMoeV3Model.modify_tensors`."""
    layer, _, within = name.partition(".layers.")[2].partition(".")
    name = name.replace("word_embeddings", "embed_tokens").replace(".attention.dense", ".attention.o_proj")
    name = name.replace(".attention.", ".self_attn.")
    full = layer and config["layer_types"][int(layer)] == "full_attention"
    if name.endswith("conv1d.weight"):
        yield name, tensor.reshape(1, -1, 1, tensor.shape[-1])
    elif name.endswith(".A_log"):
        yield name, torch.exp(tensor).reshape(-1, 1)
    elif name.endswith(".dt_bias"):
        yield name.replace(".dt_bias", ".dt_proj.bias"), tensor
    elif within == "attention.f_proj.weight":
        yield f"blk.{layer}.ssm_f_a.weight", tensor
    elif within == "attention.g_proj.weight":
        yield f"blk.{layer}.{'attn_gate' if full else 'ssm_g_a'}.weight", tensor
    elif name.endswith(".gate.expert_bias"):
        yield f"blk.{layer}.exp_probs_b.bias", tensor
    elif name.endswith("kv_b_proj.weight"):
        yield from keys_and_values(name, tensor, config)
    else:
        yield name, tensor


def glm5_next_tensors(name: str, tensor: torch.Tensor, config: Config) -> Tensors:
    """`Glm5NextModel.modify_tensors`, of the text part."""
    if "visual." in name:
        return
    name = name.replace(".language_model", "")
    layer, _, within = name.partition(".layers.")[2].partition(".")
    parts = within.split(".")
    if parts[-1].startswith("hc_"):
        yield f"blk.{layer}.{parts[-1]}.weight", tensor
    elif "_conv1d." in within:
        yield name, tensor.reshape(1, -1, 1, config["linear_conv_kernel_dim"])
    elif within == "self_attn.A_log":
        yield name, -torch.exp(tensor.flatten())
    elif "index_kpool_compress_" in within:
        of_pool = tensor.reshape(-1, config["index_head_dim"]) if within.endswith("_ape") else tensor
        yield f"blk.{layer}.indexer_compressor_{parts[-1].rpartition('_')[2]}.weight", of_pool
    elif within.startswith("self_attn.indexer."):
        leaf = {"wk": "attn_k", "wq_b": "attn_q_b", "weights_proj": "proj"}.get(parts[2], parts[2])
        yield f"blk.{layer}.indexer.{leaf}.{parts[3]}", tensor
    elif within.startswith("self_attn.q_a_"):
        yield f"blk.{layer}.attn_q_a{'_norm' if 'norm' in within else ''}.weight", tensor
    elif within.startswith("self_attn.q_b_"):
        yield f"blk.{layer}.attn_q_b.weight", tensor
    elif within == "mlp.gate.e_score_correction_bias":
        yield f"blk.{layer}.exp_probs_b.bias", tensor
    elif within == "mlp.gate.weight":
        yield f"blk.{layer}.ffn_gate_inp.weight", tensor
    else:
        yield from kimi_tensors(name, tensor, config)


def minimax3_tensors(name: str, tensor: torch.Tensor, config: Config) -> Tensors:
    """`MiniMaxM3Model.modify_tensors`, of the text part."""
    if name.startswith(("vision_tower.", "multi_modal_projector.", "patch_merge_mlp.")):
        return
    name = name.replace("language_model.", "")
    layer, _, within = name.partition(".layers.")[2].partition(".")
    tensor = tensor + 1 if name.endswith("norm.weight") else tensor
    leaf = within.removeprefix("self_attn.index_").removeprefix("self_attn.indexer.")
    if leaf != within:
        yield f"blk.{layer}.indexer.{leaf}", tensor
    elif within == "block_sparse_moe.e_score_correction_bias":
        yield f"blk.{layer}.exp_probs_b.bias", tensor
    elif "shared_experts" in name or within.startswith("mlp."):
        part, shared = within.split(".")[-2].removesuffix("_proj"), "_shexp" if "shared" in name else ""
        yield f"blk.{layer}.ffn_{part}{shared}.weight", tensor
    else:
        yield name, tensor


CHANGED: dict[str, Callable[[str, torch.Tensor, Config], Tensors]] = {
    "hy_v4": hunyuan4_tensors,
    "bailingmoe3": ling3_tensors,
    "glm5-next": glm5_next_tensors,
    "minimax-m3": minimax3_tensors,
}
