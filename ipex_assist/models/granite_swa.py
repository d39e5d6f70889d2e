"""Granite Swash: Granite with windows in three of four layers, and a sink for each query head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_assist.models import granite
from ipex_assist.models.common import layer_kinds, rope, windows
from ipex_assist.models.config import Config
from ipex_assist.models.names import sinks
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "GraniteSWAForCausalLM"
EXAMPLES = ("ibm-granite/granite-swash-2b",)
NAMES = granite.NAMES


def spec(config: Config) -> DecoderSpec:
    """`layer_rope_theta` has the base of each layer's positions, 0 where it has none."""
    return granite.granite_like(
        "granite_swa",
        config,
        **windowed(config),
        num_key_value_heads=config.integer("num_key_value_heads", 4),
        norm_eps=config.number("norm_eps", 1e-5),
        tied_head=config.flag("tie_word_embeddings", True),
        mlp_bias=config.flag("mlp_bias", False),
    )


def windowed(config: Config) -> dict[str, Any]:
    """Windows, sinks and positions of the layers, as fields of `llama_like`."""
    kinds, plain = layer_kinds(config, lambda layer: layer % 4 != 0), rope(config)
    given = config.values.get("layer_rope_theta") is not None
    bases = config.numbers("layer_rope_theta") if given else (plain.theta,)
    known = sorted({base for base in bases if base})
    each = tuple(known.index(base) if base else None for base in bases)
    return {
        "attention_sinks": True,
        "ropes": tuple(replace(plain, theta=float(base)) for base in known),
        "layer_ropes": each if given else (),
        "sliding_windows": windows(config, kinds, 128),
    }


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Granite's names, and the sinks."""
    return granite.weights(spec) | sinks(spec)
