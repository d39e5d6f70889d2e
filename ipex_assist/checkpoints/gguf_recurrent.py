"""GGUF of models with recurrent layers: Qwen3-Next, Qwen3.5, LFM2, Granite 4, Nemotron-H, Mamba and Mamba-2.

Source: conversion/{qwen,lfm2,granite,nemotron,mamba}.py of llama.cpp. Files do not say which layers are recurrent:
tensors and lists of sizes do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ipex_assist.checkpoints.gguf_file import GgufHeader, rounded
from ipex_assist.checkpoints.gguf_tables import (
    ATTENTION,
    EMBEDDING,
    EXPERTS,
    HEAD,
    MLP,
    OUTSIDE,
    Config,
    GgufTable,
    Parts,
    a_log,
    around,
    convolution,
    decays,
    drafting,
    has,
    layers_with,
    less_one,
    rotary_share,
    row,
    same,
    stacked,
    vector,
)
from ipex_assist.env.errors import IpexAssistError

if TYPE_CHECKING:
    import torch


# Qwen's: values by turns of key heads, [K0, K1, …, K0, K1, …], are here by key head.
def _by_key_head(tensor: torch.Tensor, config: Config) -> torch.Tensor:
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    turns = tensor.reshape(values // keys, keys, -1, *tensor.shape[1:])
    return turns.swapaxes(0, 1).reshape(tensor.shape)


def _sorted_rows(parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
    return _by_key_head(parts[0], config)


def _sorted_decay(parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
    return _by_key_head(a_log(parts, config), config)


def _sorted_values(parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
    """Queries and keys before the values stay where they are."""
    import torch

    first = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    return torch.cat((parts[0][:first], _by_key_head(parts[0][first:], config)))


def _sorted_convolution(parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
    return _sorted_values(parts, config).unsqueeze(1)


def _sorted_columns(parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
    return _by_key_head(parts[0].t(), config).t().contiguous()


def _joined_by_key_head(parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
    """Queries, keys and values, and gates, to rows of each key head: its query, key, values and gates."""
    import torch

    keys, size = config["linear_num_key_heads"], config["linear_num_key_heads"] * config["linear_key_head_dim"]
    qkv, gates = parts
    each = (qkv[:size], qkv[size : 2 * size], qkv[2 * size :], gates)
    return torch.cat([part.reshape(keys, -1, part.shape[-1]) for part in each], dim=1).reshape(-1, qkv.shape[-1])


_SHARED = {f"mlp.shared_expert.{leaf}_proj": f"ffn_{leaf}_shexp" for leaf in ("gate", "up", "down")}
_QWEN_LAYER = (
    *same({**ATTENTION, **MLP, **_SHARED, "mlp.gate": "ffn_gate_inp", "linear_attn.norm": "ssm_norm"}),
    ("mlp.shared_expert_gate.weight", Parts.of("ffn_gate_inp_shexp.weight", by=row)),
    *(
        (f"{theirs}.weight", Parts.of(f"{ours}.weight", by=less_one))
        for theirs, ours in {
            "input_layernorm": "attn_norm",
            "post_attention_layernorm": "post_attention_norm",
            "self_attn.q_norm": "attn_q_norm",
            "self_attn.k_norm": "attn_k_norm",
        }.items()
    ),
)
_QWEN_OUTSIDE = (*EMBEDDING, *HEAD, ("model.norm.weight", Parts.of("output_norm.weight", by=less_one)))
_NEXT = drafting(
    GgufTable(
        layer=(
            *_QWEN_LAYER,
            *same({"linear_attn.in_proj_qkvz": "ssm_in", "linear_attn.in_proj_ba": "ssm_ba"}),
            (
                "linear_attn.in_proj_qkvz.weight",
                Parts.of("attn_qkv.weight", "attn_gate.weight", by=_joined_by_key_head),
            ),
            ("linear_attn.conv1d.weight", Parts.of("ssm_conv1d.weight", by=convolution)),
            ("linear_attn.A_log", Parts.of("ssm_a", by=a_log)),
            ("linear_attn.dt_bias", Parts.of("ssm_dt.bias")),
            ("linear_attn.out_proj.weight", Parts.of("ssm_out.weight")),
        ),
        experts=EXPERTS,
        outside=_QWEN_OUTSIDE,
    )
)
QWEN35 = drafting(
    GgufTable(
        layer=(
            *_QWEN_LAYER,
            ("linear_attn.in_proj_qkv.weight", Parts.of("attn_qkv.weight", by=_sorted_values)),
            ("linear_attn.in_proj_z.weight", Parts.of("attn_gate.weight", by=_sorted_rows)),
            ("linear_attn.in_proj_b.weight", Parts.of("ssm_beta.weight", by=_sorted_rows)),
            ("linear_attn.in_proj_a.weight", Parts.of("ssm_alpha.weight", by=_sorted_rows)),
            ("linear_attn.conv1d.weight", Parts.of("ssm_conv1d.weight", by=_sorted_convolution)),
            ("linear_attn.A_log", Parts.of("ssm_a", by=_sorted_decay)),
            ("linear_attn.dt_bias", Parts.of("ssm_dt.bias", by=_sorted_rows)),
            ("linear_attn.out_proj.weight", Parts.of("ssm_out.weight", by=_sorted_columns)),
        ),
        experts=EXPERTS,
        outside=_QWEN_OUTSIDE,
    )
)


def qwen_config(header: GgufHeader, config: Config) -> Config:
    layers, heads = config["num_hidden_layers"], header.required("ssm.time_step_rank")
    attention = layers_with(header, "attn_q.weight", layers)
    found: Config = {
        "layer_types": ["full_attention" if each else "linear_attention" for each in attention],
        "linear_num_value_heads": heads,
        "linear_num_key_heads": header.required("ssm.group_count"),
        "linear_key_head_dim": header.required("ssm.state_size"),
        "linear_value_head_dim": header.required("ssm.inner_size") // max(heads, 1),
        "linear_conv_kernel_dim": header.required("ssm.conv_kernel"),
        "partial_rotary_factor": rotary_share(header, config, 0.25),
        "attention_bias": has(header, "attn_q.bias"),
    }
    if not header.get("{arch}.expert_count"):
        return found
    sparse = layers_with(header, "ffn_gate_inp.weight", layers)
    shared = next((each for name, each in header.tensors.items() if name.endswith(".ffn_gate_shexp.weight")), None)
    return found | {
        "num_experts": header.required("expert_count"),
        "num_experts_per_tok": header.required("expert_used_count"),
        "moe_intermediate_size": header.required("expert_feed_forward_length"),
        "shared_expert_intermediate_size": shared.shape[0] if shared else 0,
        "norm_topk_prob": header.get("{arch}.expert_weights_norm", True),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [layer for layer, each in enumerate(sparse) if not each],
    }


_LFM2_LAYER = (
    *same(
        {
            **{f"self_attn.{leaf}_proj": f"attn_{leaf}" for leaf in "qkv"},
            **{"self_attn.out_proj": "attn_output", "operator_norm": "attn_norm", "ffn_norm": "ffn_norm"},
            **{f"self_attn.{leaf}_layernorm": f"attn_{leaf}_norm" for leaf in "qk"},
            **{"conv.in_proj": "shortconv.in_proj", "conv.out_proj": "shortconv.out_proj"},
            **{"feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down"},
            "feed_forward.gate": "ffn_gate_inp",
        }
    ),
    ("conv.conv.weight", Parts.of("shortconv.conv.weight", by=convolution)),
    ("conv.conv.bias", Parts.of("shortconv.conv.bias")),
    ("feed_forward.expert_bias", Parts.of("exp_probs_b.bias")),
)
_LFM2 = GgufTable(
    layer=_LFM2_LAYER,
    experts={
        f"feed_forward.experts.{{}}.{theirs}.weight": f"ffn_{ours}_exps.{{}}.weight"
        for theirs, ours in (("w1", "gate"), ("w3", "up"), ("w2", "down"))
    },
    # The last norm has the name that it has in checkpoints, or the usual one.
    outside=(
        *(*EMBEDDING, *HEAD),
        *same({"model.embedding_norm": "token_embd_norm"}),
        *same({"model.embedding_norm": "output_norm"}),
    ),
)


def _lfm2(header: GgufHeader, config: Config) -> Config:
    layers = config["num_hidden_layers"]
    attention = layers_with(header, "attn_q.weight", layers)
    return {
        "layer_types": ["full_attention" if each else "conv" for each in attention],
        "norm_eps": config["rms_norm_eps"],
        "conv_L_cache": header.required("shortconv.l_cache"),
        "conv_bias": has(header, "shortconv.in_proj.bias"),
        "block_auto_adjust_ff_dim": False,
        "tie_embedding": config["tie_word_embeddings"],
    }


def _lfm2_moe(header: GgufHeader, config: Config) -> Config:
    return _lfm2(header, config) | {
        "num_experts": header.required("expert_count"),
        "num_experts_per_tok": header.required("expert_used_count"),
        "moe_intermediate_size": header.required("expert_feed_forward_length"),
        "num_dense_layers": header.get("{arch}.leading_dense_block_count", 0),
        "use_expert_bias": has(header, "exp_probs_b.bias"),
        "norm_topk_prob": header.get("{arch}.expert_weights_norm", True),
        "routed_scaling_factor": rounded(header.get("{arch}.expert_weights_scale") or 1.0),
    }


def mamba2_layer(place: str) -> tuple[tuple[str, Parts], ...]:
    """Names of a Mamba-2 mixer, which begin with `place`."""
    return (
        *same({f"{place}.in_proj": "ssm_in", f"{place}.out_proj": "ssm_out"}),
        (f"{place}.conv1d.weight", Parts.of("ssm_conv1d.weight", by=convolution)),
        (f"{place}.conv1d.bias", Parts.of("ssm_conv1d.bias")),
        (f"{place}.A_log", Parts.of("ssm_a", by=a_log)),
        (f"{place}.D", Parts.of("ssm_d", by=vector)),
        (f"{place}.dt_bias", Parts.of("ssm_dt.bias")),
        (f"{place}.norm.weight", Parts.of("ssm_norm.weight", by=vector)),
    )


def mamba1_layer(place: str) -> tuple[tuple[str, Parts], ...]:
    """Names of a Mamba mixer, which begin with `place`."""
    return (
        *same({f"{place}.{leaf}_proj": f"ssm_{leaf}" for leaf in ("in", "x", "dt", "out")}),
        (f"{place}.conv1d.weight", Parts.of("ssm_conv1d.weight", by=convolution)),
        (f"{place}.conv1d.bias", Parts.of("ssm_conv1d.bias")),
        (f"{place}.A_log", Parts.of("ssm_a", by=decays)),
        (f"{place}.D", Parts.of("ssm_d")),
    )


def _interleaved(heads: str) -> Callable[[Sequence[torch.Tensor], Config], torch.Tensor]:
    """Rows of a query or key whose halves the converter interleaves, as it does Llama's; heads: their number's name."""

    def restore(parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
        rows = parts[0].reshape(config[heads], config["head_dim"] // 2, 2, *parts[0].shape[1:])
        return rows.swapaxes(1, 2).reshape(parts[0].shape)

    return restore


_QUERY, _KEY = _interleaved("num_attention_heads"), _interleaved("num_key_value_heads")
GRANITE_LAYER = (
    *same({name: ours for name, ours in ATTENTION.items() if ours in ("attn_v", "attn_output")}),
    *((f"self_attn.q_proj.{each}", Parts.of(f"attn_q.{each}", by=_QUERY)) for each in ("weight", "bias")),
    *((f"self_attn.k_proj.{each}", Parts.of(f"attn_k.{each}", by=_KEY)) for each in ("weight", "bias")),
    *same({"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}),
    *same({"block_sparse_moe.router.layer": "ffn_gate_inp", "shared_mlp.output_linear": "ffn_down_shexp"}),
    ("shared_mlp.input_linear.weight", Parts.of("ffn_gate_shexp.weight", "ffn_up_shexp.weight", by=stacked)),
)
GRANITE_EXPERTS = {
    f"block_sparse_moe.experts.{{}}.{leaf}_proj.weight": f"ffn_{leaf}_exps.{{}}.weight"
    for leaf in ("gate", "up", "down")
}
_GRANITE = GgufTable(
    layer=(
        *GRANITE_LAYER,
        ("shared_mlp.input_linear.weight", Parts.of("ffn_gate.weight", "ffn_up.weight", by=stacked)),
        ("shared_mlp.output_linear.weight", Parts.of("ffn_down.weight")),
        *mamba2_layer("mamba"),
    ),
    experts=GRANITE_EXPERTS,
    outside=OUTSIDE,
)


def _granite(header: GgufHeader, config: Config) -> Config:
    """A missing multiplier stands for that which changes nothing. Bamba's files say the same architecture."""
    rotated = header.get("{arch}.rope.scaling.finetuned", False)
    if header.get("{arch}.rope.dimension_count", config["head_dim"]) != config["head_dim"]:
        raise IpexAssistError(
            f"{header.path} rotates a part of each head, as Bamba does, which is not read from GGUF files. "
            "Pass the model's Hugging Face id or folder instead."
        )
    layers, heads = config["num_hidden_layers"], header.required("ssm.time_step_rank")
    experts = header.get("{arch}.expert_count") or 0
    shared = header.get("{arch}.expert_shared_feed_forward_length") or config["intermediate_size"]
    names = {
        "attention_multiplier": ("attention.scale", config["head_dim"] ** -0.5),
        "embedding_multiplier": ("embedding_scale", 1.0),
        "residual_multiplier": ("residual_scale", 1.0),
        "logits_scaling": ("logit_scale", 1.0),
    }
    return {
        **{ours: rounded(header.get(f"{{arch}}.{theirs}", usual)) for ours, (theirs, usual) in names.items()},
        "layer_types": ["attention" if each else "mamba" for each in layers_with(header, "attn_q.weight", layers)],
        "position_embedding_type": "rope" if rotated else "nope",
        "attention_bias": has(header, "attn_q.bias"),
        "num_local_experts": experts,
        "num_experts_per_tok": header.get("{arch}.expert_used_count") or 0,
        "shared_intermediate_size": shared,
        "mamba_n_heads": heads,
        "mamba_n_groups": header.required("ssm.group_count"),
        "mamba_d_state": header.required("ssm.state_size"),
        "mamba_d_head": header.required("ssm.inner_size") // max(heads, 1),
        "mamba_d_conv": header.required("ssm.conv_kernel"),
        "mamba_expand": header.required("ssm.inner_size") // config["hidden_size"],
        "mamba_conv_bias": has(header, "ssm_conv1d.bias"),
        "mamba_proj_bias": has(header, "ssm_in.bias"),
    }


_NEMOTRON_ATTENTION = same({f"mixer.{leaf}_proj": f"attn_{leaf}" for leaf in "qkv"} | {"mixer.o_proj": "attn_output"})
_NEMOTRON_EXPERTS = (
    *same({"mixer.gate": "ffn_gate_inp"}),
    *same({f"mixer.shared_experts.{leaf}_proj": f"ffn_{leaf}_shexp" for leaf in ("up", "down")}),
    ("mixer.gate.e_score_correction_bias", Parts.of("exp_probs_b.bias")),
)
_NEMOTRON = GgufTable(
    layer=(
        *same({"norm": "attn_norm"}),
        *_NEMOTRON_ATTENTION,
        *same({f"mixer.{leaf}_proj": f"ffn_{leaf}" for leaf in ("up", "down")}),
        *_NEMOTRON_EXPERTS,
        *mamba2_layer("mixer"),
    ),
    experts={f"mixer.experts.{{}}.{leaf}_proj.weight": f"ffn_{leaf}_exps.{{}}.weight" for leaf in ("up", "down")},
    outside=(*HEAD, *same({"backbone.embeddings": "token_embd", "backbone.norm_f": "output_norm"})),
    prefix="backbone.layers.",
    further=GgufTable(  # one block of theirs is two: attention, and experts
        layer=(
            *((f"0.{theirs}", parts) for theirs, parts in (*same({"norm": "attn_norm"}), *_NEMOTRON_ATTENTION)),
            *((f"1.{theirs}", parts) for theirs, parts in (*same({"norm": "post_attention_norm"}), *_NEMOTRON_EXPERTS)),
            *around({"0.eh_proj": "eh_proj", "0.enorm": "enorm", "0.hnorm": "hnorm"}),
            *around({"1.final_layernorm": "shared_head_norm"}),
        ),
        outside=(),
        experts={f"1.mixer.experts.{{}}.{leaf}_proj.weight": f"ffn_{leaf}_exps.{{}}.weight" for leaf in ("up", "down")},
        prefix="mtp.layers.",
    ),
)


def _nemotron(header: GgufHeader, config: Config) -> Config:
    layers, heads = config["num_hidden_layers"], header.required("ssm.time_step_rank")
    tensors = {"M": "ssm_in.weight", "*": "attn_q.weight", "E": "ffn_gate_inp.weight", "-": "ffn_up.weight"}
    kinds = {kind: layers_with(header, tensor, layers) for kind, tensor in tensors.items()}
    found: Config = {
        "hybrid_override_pattern": "".join(
            next((kind for kind, there in kinds.items() if there[layer]), "?") for layer in range(layers)
        ),
        "layer_norm_epsilon": config["rms_norm_eps"],
        "mamba_num_heads": heads,
        "mamba_head_dim": header.required("ssm.inner_size") // max(heads, 1),
        "n_groups": header.required("ssm.group_count"),
        "ssm_state_size": header.required("ssm.state_size"),
        "conv_kernel": header.required("ssm.conv_kernel"),
        "use_conv_bias": has(header, "ssm_conv1d.bias"),
        "use_bias": has(header, "ssm_in.bias"),
        "mlp_bias": has(header, "ffn_up.bias"),
        "mlp_hidden_act": "relu2",
    }
    if not header.get("{arch}.expert_count"):
        return found
    return found | {
        "n_routed_experts": header.required("expert_count"),
        "num_experts_per_tok": header.required("expert_used_count"),
        "moe_intermediate_size": header.required("expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": header.get("{arch}.expert_shared_feed_forward_length") or 0,
        "moe_latent_size": header.get("{arch}.moe_latent_size"),
        "n_group": header.get("{arch}.expert_group_count") or 1,
        "topk_group": header.get("{arch}.expert_group_used_count") or 1,
        "norm_topk_prob": header.get("{arch}.expert_weights_norm", True),
        "routed_scaling_factor": rounded(header.get("{arch}.expert_weights_scale") or 1.0),
    }


_MAMBA2 = GgufTable(
    layer=(*same({"norm": "attn_norm"}), *mamba2_layer("mixer")), outside=_NEMOTRON.outside, prefix="backbone.layers."
)


def _mamba2(header: GgufHeader, config: Config) -> Config:
    inner, heads = header.required("ssm.inner_size"), header.required("ssm.time_step_rank")
    return {
        "layer_norm_epsilon": config["rms_norm_eps"],
        "num_heads": heads,
        "head_dim": inner // max(heads, 1),
        "n_groups": header.required("ssm.group_count"),
        "state_size": header.required("ssm.state_size"),
        "conv_kernel": header.required("ssm.conv_kernel"),
        "expand": inner // config["hidden_size"],
        "use_conv_bias": has(header, "ssm_conv1d.bias"),
        "use_bias": has(header, "ssm_in.bias"),
    }


_MAMBA = GgufTable(
    layer=(
        *same({"norm": "attn_norm"}),
        *mamba1_layer("mixer"),
    ),
    outside=_NEMOTRON.outside,
    prefix="backbone.layers.",
)


def _mamba(header: GgufHeader, config: Config) -> Config:
    """The epsilon of Falcon Mamba's bare norms is no part of the file: it is the config's usual one."""
    return {
        "layer_norm_epsilon": config["rms_norm_eps"],
        "intermediate_size": header.required("ssm.inner_size"),
        "time_step_rank": header.required("ssm.time_step_rank"),
        "state_size": header.required("ssm.state_size"),
        "conv_kernel": header.required("ssm.conv_kernel"),
        "use_conv_bias": has(header, "ssm_conv1d.bias"),
        "use_bias": has(header, "ssm_in.bias"),
    }


# general.architecture -> (architectures[0], model_type, tensors).
ARCHITECTURES = {
    "qwen3next": ("Qwen3NextForCausalLM", "qwen3_next", _NEXT),
    "qwen35": ("Qwen3_5ForCausalLM", "qwen3_5_text", QWEN35),
    "qwen35moe": ("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", QWEN35),
    "lfm2": ("Lfm2ForCausalLM", "lfm2", _LFM2),
    "lfm2moe": ("Lfm2MoeForCausalLM", "lfm2_moe", _LFM2),
    "granitehybrid": ("GraniteMoeHybridForCausalLM", "granitemoehybrid", _GRANITE),
    "nemotron_h": ("NemotronHForCausalLM", "nemotron_h", _NEMOTRON),
    "nemotron_h_moe": ("NemotronHForCausalLM", "nemotron_h", _NEMOTRON),
    "mamba2": ("Mamba2ForCausalLM", "mamba2", _MAMBA2),
    "mamba": ("MambaForCausalLM", "mamba", _MAMBA),
    "falcon_mamba": ("FalconMambaForCausalLM", "falcon_mamba", _MAMBA),  # its files say mamba: gguf_config.py
}
CONFIGS: dict[str, Callable[[GgufHeader, Config], Config]] = {
    "qwen3next": qwen_config,
    "qwen35": qwen_config,
    "qwen35moe": qwen_config,
    "lfm2": _lfm2,
    "lfm2moe": _lfm2_moe,
    "granitehybrid": _granite,
    "nemotron_h": _nemotron,
    "nemotron_h_moe": _nemotron,
    "mamba2": _mamba2,
    "mamba": _mamba,
    "falcon_mamba": _mamba,
}
