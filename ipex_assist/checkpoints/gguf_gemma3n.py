"""GGUF of Gemma 3n, the text part: AltUp's projections are stacked, all else has other names.

Source: conversion/gemma.py of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import NormalDist
from typing import TYPE_CHECKING

from ipex_assist.checkpoints.gguf_file import GgufHeader
from ipex_assist.checkpoints.gguf_tables import ATTENTION, MLP, OUTSIDE, Config, GgufTable, Parts, has, same

if TYPE_CHECKING:
    import torch

_STREAMS = 4  # which the converter asks for


def _matrix(number: int, parts: Sequence[torch.Tensor], config: Config) -> torch.Tensor:
    """One of stacked matrices."""
    return parts[0][number]


_NORMS = {
    **{"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm"},
    **{"pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"},
    **{"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"},
}
_OWN = {
    **{"laurel.linear_left": "laurel_l", "laurel.linear_right": "laurel_r"},
    **{"laurel.post_laurel_norm": "laurel_post_norm", "altup.router_norm": "altup_router_norm"},
    **{"altup.modality_router": "altup_router", "altup.prediction_coefs": "altup_predict_coef"},
    **{"altup.correction_coefs": "altup_correct_coef", "per_layer_input_gate": "inp_gate"},
    **{"per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm"},
}
_PER_LAYER = {
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
}
_TABLE = GgufTable(
    layer=(
        *same({**ATTENTION, **MLP, **_NORMS, **_OWN}),
        ("altup.correct_output_scale", Parts.of("altup_correct_scale.weight")),
    ),
    outside=(
        *OUTSIDE,
        *same(_PER_LAYER),
        *(
            (f"model.{theirs}.{number}.weight", Parts.of(f"{ours}.weight", by=partial(_matrix, number)))
            for theirs, ours in (
                ("altup_projections", "altup_proj"),
                ("altup_unembed_projections", "altup_unembd_proj"),
            )
            for number in range(_STREAMS - 1)
        ),
    ),
)


def _config(header: GgufHeader, config: Config) -> Config:
    """Files have standard deviations in the place of shares of gates that are 0."""
    deviations = header.get("{arch}.activation_sparsity_scale")
    windowed = header.get("{arch}.attention.sliding_window_pattern")
    made = {
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": header.get("{arch}.final_logit_softcapping"),
        "sliding_window": header.get("{arch}.attention.sliding_window", 512),
        "rope_local_base_freq": header.get("{arch}.rope.freq_base_swa", 10000.0),
        "num_kv_shared_layers": header.required("attention.shared_kv_layers"),
        "hidden_size_per_layer_input": header.required("embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": config["vocab_size"],
        "altup_num_inputs": header.required("altup.num_inputs"),
        "altup_active_idx": header.required("altup.active_idx"),
        "attention_bias": has(header, "attn_q.bias"),
    }
    if (left := header.tensors.get("blk.0.laurel_l.weight")) is not None:
        made["laurel_rank"] = left.shape[0]
    if isinstance(deviations, list):
        made["activation_sparsity_pattern"] = [NormalDist().cdf(float(each)) for each in deviations]
    if isinstance(windowed, list):
        made["layer_types"] = ["sliding_attention" if each else "full_attention" for each in windowed]
    return made


ARCHITECTURES = {"gemma3n": ("Gemma3nForCausalLM", "gemma3n_text", _TABLE)}
CONFIGS = {"gemma3n": _config}
