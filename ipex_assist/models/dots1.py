"""dots.llm1: Qwen3's attention, and DeepSeek's mixture of experts after dense first layers."""

from __future__ import annotations

from ipex_assist.models.common import deepseek_experts, dense_first, layer_count, layer_kinds, llama_like, windows
from ipex_assist.models.config import Config
from ipex_assist.models.names import HEAD_NORMS, LLAMA_NORMS, SHARED_EXPERTS, ExpertNames, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Dots1ForCausalLM"
EXAMPLES = ("rednote-hilab/dots.llm1.inst",)
NAMES = {"norm_eps": "rms_norm_eps", "num_experts": "n_routed_experts"}


def spec(config: Config) -> DecoderSpec:
    """`attention_bias` puts a bias on all four projections of attention."""
    bias, layers = config.flag("attention_bias", False), layer_count(config)
    windowed = config.optional_integer("sliding_window") is not None or "sliding_window" not in config.values
    first = config.integer("max_window_layers", 62) if windowed else layers
    kinds = layer_kinds(config, lambda layer: layer >= first)
    experts = deepseek_experts(
        config, shared=config.integer("n_shared_experts"), normalised=config.flag("norm_topk_prob", False)
    )
    return llama_like(
        "dots1",
        config,
        qk_norm="head",
        qkv_bias=bias,
        output_bias=bias,
        sliding_windows=windows(config, kinds, 4096),
        **dense_first(config, config.integer("first_k_dense_replace", 0), experts),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Qwen's names of experts, DeepSeek's of shared ones."""
    return named(spec, norms={**LLAMA_NORMS, **HEAD_NORMS}, experts=ExpertNames(shared=SHARED_EXPERTS))
