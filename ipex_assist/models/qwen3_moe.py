"""Qwen3-MoE: Qwen3 with many small experts."""

from __future__ import annotations

from ipex_assist.models.common import layer_count, llama_like, sparse_layers
from ipex_assist.models.config import Config
from ipex_assist.models.names import HEAD_NORMS, LLAMA_NORMS, ExpertNames, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Qwen3MoeForCausalLM"
EXAMPLES = ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-235B-A22B")
NAMES = {"norm_eps": "rms_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """A window, where the config uses one, is every layer's."""
    bias = config.flag("attention_bias", False)
    windows: tuple[int, ...] = ()
    if config.flag("use_sliding_window", False) and (window := config.optional_integer("sliding_window")) is not None:
        windows = (window,) * layer_count(config)
    return llama_like(
        "qwen3_moe",
        config,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm="head",
        sliding_windows=windows,
        **sparse_layers(config, normalised=config.flag("norm_topk_prob", False)),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Qwen3's names, and Qwen's of experts."""
    return named(spec, norms={**LLAMA_NORMS, **HEAD_NORMS}, experts=ExpertNames())
