"""How llama.cpp's converter changes families whose tensors change on the way: metadata, names, and the tensors.

Source: conversion/*.py of llama.cpp: `set_gguf_parameters` and `modify_tensors`. Names are the gguf package's. Tensors
may be on torch's "meta" device, where only shapes are wanted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import gguf
import gguf_deepseek4
import gguf_mixtures
import gguf_others
import torch

Config = dict[str, Any]
Tensors = Iterator[tuple[str, torch.Tensor]]
EXPERT = re.compile(r"(.*?)(layers\.\d+\.)(.*experts)\.(\d+)\.(\w+)\.weight")
# What the converter calls experts' matrices of a layer together, where that is not their own name without the number.
PLACES = {"nemotron_h_moe": "model.layers.{}.mlp.experts", "lfm2moe": "layers.{}.feed_forward.experts"}
# What is a float whatever a config writes it as.
FLOAT_KEYS = (
    *(
        "rope.freq_base",
        "rope.freq_base_swa",
        "attention.value_scale",
        "attention.scale",
        "embedding_scale",
        "residual_scale",
        "logit_scale",
        "rope.scaling.factor",
    ),
    *("expert_weights_scale", "epsilon", "softcapping"),
)


def metadata(config: Config, arch: str, blocks: int) -> Config:
    """What the file says of the model, by names without the architecture's; None where nothing is said."""
    return {"block_count": blocks, **_usual(config), **OWN[arch](config)}


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Write one of them, as its type is."""
    if value is None:
        return
    if key.endswith(FLOAT_KEYS):
        value = float(value)
    kinds: dict[type, Callable[[str, Any], None]] = {
        **{bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32},
        **{str: writer.add_string, list: writer.add_array},
    }
    kinds[type(value)](key, value)


def _usual(config: Config) -> Config:
    """`TextModel.set_gguf_parameters`."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    windows, rope = rope.get("sliding_attention", {}), rope.get("full_attention", rope)
    found = {
        "context_length": config.get("max_position_embeddings"),
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config.get("intermediate_size"),
        "attention.head_count": config.get("num_attention_heads"),
        "attention.head_count_kv": config.get("num_key_value_heads"),
        "attention.key_length": config.get("head_dim"),
        "attention.value_length": config.get("head_dim"),
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps") or config.get("norm_eps"),
        "expert_count": config.get("num_local_experts") or config.get("num_experts"),
        "expert_used_count": config.get("num_experts_per_tok"),
        "expert_group_count": config.get("n_group"),
        "expert_group_used_count": config.get("topk_group"),
        "expert_gating_func": {"sigmoid": 2, "softmax": 1}.get(config.get("scoring_func", "")),
        "rope.freq_base_swa": windows.get("rope_theta"),
        "rope.freq_base": rope.get("rope_theta") or config.get("rope_theta"),
    }
    if rope.get("rope_type", rope.get("type")) == "yarn":
        found |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": float(rope.get("beta_fast", 32)),
            "rope.scaling.yarn_beta_slow": float(rope.get("beta_slow", 1)),
        }
    return found


def _delta(config: Config) -> Config:
    heads, share = config["linear_num_value_heads"], config.get("partial_rotary_factor") or 0.25
    share = (config.get("rope_parameters") or {}).get("partial_rotary_factor", share)
    return {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": heads * config["linear_value_head_dim"],
        "full_attention_interval": config.get("full_attention_interval", 4),
        "rope.dimension_count": int(config["head_dim"] * share),
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
        "feed_forward_length": config.get("intermediate_size", 0),
    }


def _lfm2(config: Config) -> Config:
    kinds, size = config["layer_types"], config["intermediate_size"]
    if config.get("block_auto_adjust_ff_dim"):
        size, step = int(config["block_ffn_dim_multiplier"] * int(2 * size / 3)), config["block_multiple_of"]
        size = -(-size // step) * step
    return {
        "attention.head_count_kv": [config["num_key_value_heads"] if kind == "full_attention" else 0 for kind in kinds],
        "shortconv.l_cache": config["conv_L_cache"],
        "feed_forward_length": size,
        "attention.layer_norm_rms_epsilon": config["norm_eps"],
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "leading_dense_block_count": config.get("num_dense_layers"),
        "expert_gating_func": 2 if "num_dense_layers" in config else None,
    }


def _granite(config: Config) -> Config:
    kinds = ["attention" if "attention" in kind and "linear" not in kind else "mamba" for kind in config["layer_types"]]
    heads = config["mamba_n_heads"]
    return {
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "residual_scale": config["residual_multiplier"],
        "logit_scale": config["logits_scaling"],
        "expert_shared_feed_forward_length": config["shared_intermediate_size"],
        "attention.head_count_kv": [config["num_key_value_heads"] if kind == "attention" else 0 for kind in kinds],
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.group_count": config["mamba_n_groups"],
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "ssm.time_step_rank": heads,
        "rope.scaling.finetuned": config.get("position_embedding_type") == "rope",
        "attention.key_length": None,
        "attention.value_length": None,
    }


def _nemotron(config: Config) -> Config:
    kinds = config["layers_block_type"]
    moe = "moe" in kinds
    size, heads = config["moe_intermediate_size" if moe else "intermediate_size"], config["mamba_num_heads"]
    mlps = ["moe" if moe else "mlp"]
    experts = {
        "expert_feed_forward_length": size,
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "expert_count": config["n_routed_experts"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_norm": config["norm_topk_prob"],
        "expert_weights_scale": config["routed_scaling_factor"],
    }
    return {
        "feed_forward_length": [size if kind in mlps else 0 for kind in kinds],
        "attention.head_count_kv": [config["num_key_value_heads"] if "att" in kind else 0 for kind in kinds],
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.state_size": config["ssm_state_size"],
        "ssm.group_count": config["n_groups"],
        "ssm.inner_size": heads * config["mamba_head_dim"],
        "ssm.time_step_rank": heads,
        **(experts if moe else dict.fromkeys(("expert_used_count", "expert_group_count", "expert_group_used_count"))),
    }


def _mamba2(config: Config) -> Config:
    inner = 2 * config["hidden_size"]
    return {
        "context_length": 1 << 20,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.key_length": None,
        "attention.value_length": None,
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.inner_size": inner,
        "ssm.state_size": config["state_size"],
        "ssm.time_step_rank": inner // config["head_dim"],
        "ssm.group_count": config["n_groups"],
    }


def _mamba1(config: Config) -> Config:
    return {
        "context_length": 1 << 20,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.inner_size": config["intermediate_size"],
        "ssm.state_size": config["state_size"],
        "ssm.time_step_rank": config["time_step_rank"],
        "ssm.dt_b_c_rms": config["model_type"] == "falcon_mamba",
    }


def _gemma4(config: Config) -> Config:
    rope = config.get("rope_parameters") or {}
    return {
        "attention.key_length": config["global_head_dim"],
        "attention.value_length": config["global_head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config["layer_types"]],
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "final_logit_softcapping": config["final_logit_softcapping"],
        "rope.freq_base": float(rope.get("full_attention", {}).get("rope_theta", 1e6)),
        "rope.freq_base_swa": float(rope.get("sliding_attention", {}).get("rope_theta", 1e4)),
        "rope.dimension_count": config["global_head_dim"],
        "rope.dimension_count_swa": config["head_dim"],
    }


def _jamba(config: Config) -> Config:
    period, offset = config["attn_layer_period"], config["attn_layer_offset"]
    heads = [config["num_key_value_heads"] if i % period == offset else 0 for i in range(config["num_hidden_layers"])]
    rank = config["mamba_dt_rank"]
    return {
        "attention.head_count_kv": heads,
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.time_step_rank": -(config["hidden_size"] // -16) if rank == "auto" else rank,
        "rope.freq_base": None,
    }


def _gemma3n(config: Config) -> Config:
    ropes, normal = config["rope_parameters"], torch.distributions.normal.Normal(0, 1)
    return {
        "feed_forward_length": config["intermediate_size"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config["layer_types"]],
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "activation_sparsity_scale": normal.icdf(torch.tensor(config["activation_sparsity_pattern"])).tolist(),
        "altup.active_idx": config["altup_active_idx"],
        "altup.num_inputs": config["altup_num_inputs"],
        "final_logit_softcapping": config["final_logit_softcapping"],
        "rope.freq_base": float(ropes["full_attention"]["rope_theta"]),
    }


# Of text, the three positions of an image are one: how they share the rotary embedding changes nothing.
_SECTIONS: Config = {"rope.dimension_sections": [11, 11, 10, 0]}
OWN: dict[str, Callable[[Config], Config]] = {
    "qwen3next": _delta,
    **dict.fromkeys(("qwen35", "qwen35moe"), lambda config: _delta(config) | _SECTIONS),
    "qwen4exp": lambda config: _delta(config) | _SECTIONS | gguf_others.qwen4(config),
    **dict.fromkeys(("lfm2", "lfm2moe"), _lfm2),
    "granitehybrid": _granite,
    **dict.fromkeys(("nemotron_h", "nemotron_h_moe"), _nemotron),
    "mamba2": _mamba2,
    "mamba": _mamba1,
    "jamba": _jamba,
    "qwen3moe": lambda config: {"expert_feed_forward_length": config["moe_intermediate_size"]},
    "gemma4": _gemma4,
    "gemma3n": _gemma3n,
    **gguf_mixtures.OWN,
    **gguf_others.OWN,
    "deepseek4": gguf_deepseek4.metadata,
    "apertus": lambda config: {},
}


def stacked(tensors: dict[str, torch.Tensor], arch: str) -> Tensors:
    """A layer's experts in one tensor."""
    found: dict[str, list[torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if part := EXPERT.fullmatch(name):
            number = part[2].split(".")[1]
            place = PLACES.get(arch, part[1] + part[2] + part[3]).format(number)
            found.setdefault(f"{place}.{part[5]}.weight", []).append(tensor)
        else:
            yield name, tensor
    for name, experts in found.items():
        yield name, torch.stack(experts)


def tensors_of(tensors: dict[str, torch.Tensor], config: Config, arch: str, blocks: int) -> Tensors:
    """A checkpoint's tensors as the file has them, by its names. blocks: layers, any draft heads' included."""
    known = {**gguf_mixtures.NAMED_AS, **gguf_others.NAMED_AS}.get(arch, arch)
    key = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == known)
    name_map = gguf.get_tensor_name_map(key, blocks + 1)
    if arch == "step35" and config["rope_parameters"]["full_attention"]["rope_type"] == "llama3":
        yield "rope_freqs.weight", gguf_mixtures.step_rope_factors(config)
    if arch == "gemma3n":
        for theirs, its in (("altup_projections", "altup_proj"), ("altup_unembed_projections", "altup_unembd_proj")):
            names = [f"model.{theirs}.{number}.weight" for number in range(config["altup_num_inputs"] - 1)]
            yield f"{its}.weight", torch.stack([tensors[name] for name in names])
        tensors = {name: tensor for name, tensor in tensors.items() if "_projections." not in name}
    for name, tensor in stacked(tensors, arch):
        for theirs, each in changed(name, tensor, config, arch):
            found = (
                theirs
                if theirs.startswith(("blk.", "output", "token_embd."))
                else name_map.get_name(theirs, (".weight", ".bias"))
            )
            assert found, theirs
            yield found, each


def changed(name: str, tensor: torch.Tensor, config: Config, arch: str) -> Tensors:
    """`modify_tensors`."""
    if ".act_fn." in name or name.startswith(("vision_model.", "vit_")):
        return
    if arch in ("laguna", "hy_v3") and name.endswith(("e_score_correction_bias", ".expert_bias")):
        yield f"blk.{name.split('.')[2]}.exp_probs_b{'.bias' if arch == 'laguna' else ''}", tensor.squeeze()
        return
    if name.endswith("e_score_correction_bias"):
        name, tensor = name.replace("e_score_correction_bias", "e_score_correction.bias"), tensor.squeeze()
    if name.endswith(".expert_bias"):
        name += ".bias"
    if name.endswith(".router_bias"):
        name += ".bias"
    if arch == "deepseek4":
        yield from gguf_deepseek4.tensors(name, tensor, config)
        return
    if own := {**gguf_mixtures.CHANGED, **gguf_others.CHANGED}.get(arch):
        yield from own(name, tensor, config)
        return
    if name.endswith(
        (
            ".layer_scalar",
            ".correct_output_scale",
            ".attention_sink_bias",
            ".experts.gate_up_proj",
            ".experts.down_proj",
        )
    ):
        name += ".weight"
    if arch in ("granitehybrid", "granitemoe"):
        yield from _granite_tensors(name, tensor, config)
    elif arch.startswith("nemotron") or arch == "mamba2":
        yield from _mamba(name, tensor, config.get("n_groups", 1))
    elif arch == "kimi-linear":
        yield from gguf_mixtures.kimi_tensors(name, tensor, config)
    elif arch == "step35" and name.endswith("norm.weight"):
        yield name, tensor + 1
    elif arch in ("mamba", "jamba"):
        yield name, _decay(tensor) if name.endswith(".A_log") else tensor.squeeze() if "conv1d.w" in name else tensor
    elif arch == "qwen4exp":
        name = name.replace(".language_model", "")
        own_parts = list(gguf_others.qwen4_tensors(name, tensor, config))
        yield from own_parts or _delta_tensors(name, tensor, config, "qwen35moe")
    elif arch.startswith("qwen3") and arch != "qwen3moe":
        yield from _delta_tensors(name, tensor, config, arch)
    elif name.endswith("kv_b_proj.weight"):
        yield from gguf_mixtures.keys_and_values(name, tensor, config)
    else:
        yield name, tensor.squeeze(1) if "conv.conv.weight" in name else tensor


def _decay(tensor: torch.Tensor) -> torch.Tensor:
    return -torch.exp(tensor)


def _mamba(name: str, tensor: torch.Tensor, groups: int) -> Tensors:
    if name.endswith(".dt_bias"):
        name = name.replace(".dt_bias", ".dt_proj.bias")
    elif name.endswith("conv1d.weight"):
        tensor = tensor.squeeze()
    elif name.endswith(".A_log"):
        tensor = _decay(tensor.reshape(-1, 1))
    elif name.endswith(".D"):
        tensor = tensor.reshape(-1, 1)
    elif name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
        tensor = tensor.reshape(groups, -1)
    yield name, tensor


def _granite_tensors(name: str, tensor: torch.Tensor, config: Config) -> Tensors:
    layer = name.split(".")[2] if ".layers." in name else ""
    leaves, stem = ("gate", "up"), "exps" if "block_sparse" in name else "shexp"
    if name.endswith("input_linear.weight"):
        dense = "shared_mlp" in name and not config["num_local_experts"]
        for leaf, part in zip(leaves, tensor.chunk(2, dim=-2), strict=True):
            yield f"blk.{layer}.ffn_{leaf}{'' if dense else '_' + stem}.weight", part
    elif "shared_mlp.output_linear" in name and not config["num_local_experts"]:
        yield f"blk.{layer}.ffn_down.weight", tensor
    elif ".q_proj." in name or ".k_proj." in name:
        heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
        # The halves of each head, which ggml rotates by pairs.
        halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
        yield name, halves.transpose(1, 2).reshape(tensor.shape)
    else:
        yield from _mamba(name, tensor, config.get("mamba_n_groups", 1))


def _delta_tensors(name: str, tensor: torch.Tensor, config: Config, arch: str) -> Tensors:
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_dim, value_dim = config["linear_key_head_dim"], config["linear_value_head_dim"]

    def tiled(part: torch.Tensor, width: int) -> torch.Tensor:
        """`_reorder_v_heads`, of rows."""
        return part.reshape(keys, values // keys, width, *part.shape[1:]).transpose(0, 1).reshape(part.shape)

    if arch.startswith("qwen35") and ".linear_attn." in name:
        if ".in_proj_qkv." in name or ".conv1d." in name:
            first = 2 * keys * key_dim
            tensor = torch.cat((tensor[:first], tiled(tensor[first:], value_dim)))
        elif ".in_proj_z." in name:
            tensor = tiled(tensor, value_dim)
        elif ".out_proj." in name:
            tensor = tiled(tensor.t(), value_dim).t()
        elif not name.endswith("norm.weight"):
            tensor = tiled(tensor, 1)
    if name.endswith(".A_log"):
        tensor = -torch.exp(tensor)
    elif name.endswith(".dt_bias"):
        name = name.replace(".dt_bias", ".dt_proj.bias")
    elif "conv1d" in name:
        tensor = tensor.squeeze()
    elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        tensor = tensor + 1
    elif name.endswith("shared_expert_gate.weight"):
        tensor = tensor.squeeze(0)
    if "in_proj_qkvz.weight" in name:
        layer, group = name.split(".")[2], values // keys * value_dim
        parts = tensor.reshape(keys, -1, tensor.shape[-1]).split([key_dim, key_dim, group, group], 1)
        query, key, value, gate = (part.reshape(-1, tensor.shape[-1]) for part in parts)
        yield f"blk.{layer}.attn_qkv.weight", torch.cat((query, key, value))
        yield f"blk.{layer}.attn_gate.weight", gate
    else:
        yield name, tensor
