"""Qwen3-Next: Gated DeltaNet in three of four layers, gated attention in the fourth, many small experts."""

from __future__ import annotations

from typing import Any

from ipex_assist.models.common import sparse_layers
from ipex_assist.models.config import Config
from ipex_assist.models.gated_delta import hybrid, hybrid_weights
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Qwen3NextForCausalLM"
EXAMPLES = ("Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3-Next-80B-A3B-Thinking")
NAMES = {"norm_eps": "rms_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """Every layer but `mlp_only_layers` has experts and a shared one that a sigmoid weights."""
    return hybrid(
        "qwen3_next",
        config,
        **sparse_layers(
            config,
            normalised=config.flag("norm_topk_prob", True),
            shared_size=config.integer("shared_expert_intermediate_size", 512),
            shared_gate=True,
        ),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """The inputs of a recurrent layer lie in two tensors, key head by key head."""
    inputs = dict.fromkeys(("q_in", "k_in", "v_in", "z_in"), "in_proj_qkvz")
    inputs |= {"b_in": "in_proj_ba", "a_in": "in_proj_ba"}
    return hybrid_weights(spec, inputs, _by_key_head(spec.recurrents[0]) if spec.recurrents else {})


def _by_key_head(mixer: RecurrentSpec) -> dict[str, dict[str, Any]]:
    """Which rows of those of a key head are whose."""
    group = mixer.heads // mixer.key_heads
    fields: dict[str, dict[str, Any]] = {}
    for parts in (
        {
            "q_in": mixer.key_dim,
            "k_in": mixer.key_dim,
            "v_in": group * mixer.value_dim,
            "z_in": group * mixer.value_dim,
        },
        {"b_in": group, "a_in": group},
    ):
        start = 0
        for leaf, size in parts.items():
            fields[leaf] = {"interleaved": (start, start + size, sum(parts.values()))}
            start += size
    return fields
