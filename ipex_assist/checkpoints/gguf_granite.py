"""GGUF of Granite with windows, and of its mixtures with a shared expert.

Source: conversion/granite.py of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable

from ipex_assist.checkpoints import gguf_families
from ipex_assist.checkpoints.gguf_file import GgufHeader
from ipex_assist.checkpoints.gguf_recurrent import GRANITE_EXPERTS, GRANITE_LAYER
from ipex_assist.checkpoints.gguf_tables import MLP, OUTSIDE, Config, GgufTable, Parts, same

_SHARED = GgufTable(GRANITE_LAYER, OUTSIDE, GRANITE_EXPERTS)
_WINDOWS = (*GRANITE_LAYER, ("self_attn.sinks", Parts.of("attn_sinks.weight")))
_SWASH = GgufTable((*same(MLP), *_WINDOWS), OUTSIDE)
# Gate and up of the shared expert are one tensor, of the name of up.
_SWASH_MOE = GgufTable(
    (*_WINDOWS, ("shared_mlp.input_linear.weight", Parts.of("ffn_up_shexp.weight"))), OUTSIDE, GRANITE_EXPERTS
)


def family_of(header: GgufHeader) -> str:
    """Which of Granite's families it is, of files that say granitemoe or granite_swa."""
    arch = str(header.get("general.architecture"))
    if arch == "granitemoe":
        return "granitemoeshared" if header.get("{arch}.expert_shared_feed_forward_length") else arch
    return "granitemoe_swa" if header.get("{arch}.expert_count") else arch


def _shared(header: GgufHeader, config: Config) -> Config:
    return {
        **gguf_families.CONFIGS["granite"](header, config),
        "num_local_experts": header.required("expert_count"),
        "num_experts_per_tok": header.required("expert_used_count"),
        "shared_intermediate_size": header.get("{arch}.expert_shared_feed_forward_length") or 0,
    }


def _windows(header: GgufHeader, config: Config) -> Config:
    """Layers without positions are those that `rope_pattern` names; the others have one base."""
    count = config["num_hidden_layers"]
    rotated = header.get("{arch}.attention.rope_pattern")
    return {
        "sliding_window": header.required("attention.sliding_window"),
        "layer_types": gguf_families.layer_types(header, config, count),
        "layer_rope_theta": None if rotated is None else [config["rope_theta"] if each else 0 for each in rotated],
    }


def _swash(header: GgufHeader, config: Config) -> Config:
    return gguf_families.CONFIGS["granite"](header, config) | _windows(header, config)


def _swash_moe(header: GgufHeader, config: Config) -> Config:
    return _shared(header, config) | _windows(header, config)


# general.architecture, or the family -> (architectures[0], model_type, tensors).
ARCHITECTURES = {
    "granitemoeshared": ("GraniteMoeSharedForCausalLM", "granitemoeshared", _SHARED),
    "granite_swa": ("GraniteSWAForCausalLM", "granite_swa", _SWASH),
    "granitemoe_swa": ("GraniteMoeSWAForCausalLM", "granitemoe_swa", _SWASH_MOE),
}
CONFIGS: dict[str, Callable[[GgufHeader, Config], Config]] = {
    "granitemoeshared": _shared,
    "granite_swa": _swash,
    "granitemoe_swa": _swash_moe,
}
