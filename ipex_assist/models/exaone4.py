"""EXAONE 4: norms after attention and MLP and of each head; beside windowed layers, others have no positions."""

from __future__ import annotations

from typing import Any

from ipex_assist.models.common import SLIDING, layer_count, layer_kinds, llama_like, windows
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.names import HEAD_NORMS, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Exaone4ForCausalLM"
EXAMPLES = ("LGAI-EXAONE/EXAONE-4.0-32B", "LGAI-EXAONE/EXAONE-4.0-1.2B")
NAMES = {"norm_eps": "rms_norm_eps"}
_NORMS = {"attention_out_norm": "post_attention_layernorm", "mlp_out_norm": "post_feedforward_layernorm", **HEAD_NORMS}


def spec(config: Config) -> DecoderSpec:
    """Where sliding_window is null, every layer has positions and sees everything."""
    return llama_like(
        "exaone4",
        config,
        norm_eps=config.number("norm_eps", 1e-5),
        norm_place="post",
        qk_norm="head",
        **positions(config),
    )


def positions(config: Config) -> dict[str, Any]:
    """Ropes and windows of the layers, as fields of `llama_like`."""
    window = config.optional_integer("sliding_window") if "sliding_window" in config.values else 4096
    layers = layer_count(config)
    every = config.values.get("sliding_window_pattern", 4) if window is not None else layers + 1
    if config.optional_texts("layer_types") is None and (not isinstance(every, int) or every < 1):
        raise NotComputed(f"sliding_window_pattern {every!r} without layer_types is not supported")
    kinds = layer_kinds(config, lambda layer: window is not None and (layer + 1) % every != 0)
    return {
        "layer_ropes": () if window is None else tuple(0 if kind == SLIDING else None for kind in kinds),
        "sliding_windows": windows(config, kinds, 4096),
    }


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names but for the norms."""
    return named(spec, norms=_NORMS)
