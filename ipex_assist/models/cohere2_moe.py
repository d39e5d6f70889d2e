"""Cohere's Command A+: Command R7B's attention side by side with experts, after dense first layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_assist.models import cohere
from ipex_assist.models.common import SLIDING, experts, layer_kinds, llama_like, rope, sparse_kinds, windows
from ipex_assist.models.config import Config, ConfigError, NotComputed
from ipex_assist.models.mlp_spec import Experts
from ipex_assist.models.names import SHARED_EXPERTS, ExpertNames
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Cohere2MoeForCausalLM"
EXAMPLES = ("CohereLabs/command-a-plus-05-2026",)
NAMES = {
    **{"norm_eps": "layer_norm_eps", "logit_multiplier": "logit_scale", "moe_intermediate_size": "intermediate_size"},
}
_MEAN = 0.5  # of what the chosen experts give and what the shared one does


def spec(config: Config) -> DecoderSpec:
    """Layers with a window have positions; so have dense ones, where `prefix_dense_sliding_window_pattern` is 1."""
    sparse = sparse_kinds(config, 0)
    kinds = layer_kinds(config, _windowed(config))
    rotates_dense = config.integer("prefix_dense_sliding_window_pattern", 1) == 1
    rotates = (kind == SLIDING or (rotates_dense and not here) for kind, here in zip(kinds, sparse, strict=False))
    dense = config.optional_integer("prefix_dense_intermediate_size")
    fields: dict[str, Any] = {**cohere.shared(config), **_norm(config)}
    if any(sparse):
        fields |= {"experts": _experts(config), "sparse": sparse}
    return llama_like(
        "cohere2_moe",
        config,
        **fields,
        head_dim=config.integer("head_dim", 128),
        intermediate_size=config.integer("intermediate_size") if dense is None else dense,
        ropes=(rope(config),),
        layer_ropes=tuple(0 if each else None for each in rotates),
        sliding_windows=windows(config, kinds, 4096),
    )


def _windowed(config: Config) -> Any:
    """Which layers have a window where `layer_types` does not say it; dense first layers count by themselves."""
    dense = config.integer("first_k_dense_replace", 0)
    every = {name: config.integer(name, usual) for name, usual in _PATTERNS.items()}
    for name, value in every.items():
        if value < 1:
            raise ConfigError(name, value, "at least 1")
    first, rest = every.values()
    return lambda layer: (layer + 1) % first != 0 if layer < dense else (layer - dense + 1) % rest != 0


_PATTERNS = {"prefix_dense_sliding_window_pattern": 1, "sliding_window_pattern": 4}


def _norm(config: Config) -> dict[str, Any]:
    """RMS norms, where the config has an epsilon of them."""
    epsilon = config.optional_number("rms_norm_eps")
    return {} if epsilon is None else {"norm": "rms", "norm_eps": epsilon}


def _experts(config: Config) -> Experts:
    scores, shared = config.text("expert_selection_fn", "softmax"), config.integer("num_shared_experts", 0)
    together = config.text("shared_expert_combination_strategy", "average")
    if scores not in ("softmax", "sigmoid") or together not in ("average", "sum"):
        raise NotComputed(f"experts by {scores!r}, and a shared one by {together!r}, are not supported")
    return experts(
        config,
        scores=scores,
        normalised=scores == "softmax" or config.flag("norm_topk_prob", True),
        shared_size=shared * config.integer("moe_intermediate_size"),
        scaling=_MEAN if shared and together == "average" else 1.0,
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Cohere's names, and DeepSeek's of shared experts."""
    sources = cohere.weights(spec, ExpertNames(shared=SHARED_EXPERTS))
    if spec.experts is not None and spec.experts.scaling == _MEAN:
        for ours, source in sources.items():
            if ours.endswith("shared.down_proj.weight"):
                sources[ours] = replace(source, factor=_MEAN)
    return sources
