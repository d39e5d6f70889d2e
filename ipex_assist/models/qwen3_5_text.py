"""Qwen3.5, the text part: Gated DeltaNet in three of four layers, gated attention in the fourth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipex_assist.models.config import Config
from ipex_assist.models.gated_delta import hybrid, hybrid_weights
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Qwen3_5ForCausalLM"
EXAMPLES = ("Qwen/Qwen3.5-9B", "Qwen/Qwen3.5-27B")
NAMES = {"norm_eps": "rms_norm_eps"}

# The inputs of a recurrent layer.
INPUTS = {
    **dict.fromkeys(("q_in", "k_in", "v_in"), "in_proj_qkv"),
    "z_in": "in_proj_z",
    "b_in": "in_proj_b",
    "a_in": "in_proj_a",
}


def spec(config: Config) -> DecoderSpec:
    """Positions of text are the same in all sections of `mrope_section`, which changes nothing then."""
    return hybrid("qwen3_5_text", config)


def weights(
    spec: DecoderSpec, fields: Mapping[str, Mapping[str, Any]] | None = None, **others: Any
) -> dict[str, Source]:
    """Queries, keys and values of a recurrent layer lie in one tensor. fields, others: of `hybrid_weights`."""
    if not spec.recurrents:
        return hybrid_weights(spec, INPUTS, fields or {}, **others)
    keys, values = spec.recurrents[0].key_size, spec.recurrents[0].value_size
    rows = {"q_in": (0, keys), "k_in": (keys, 2 * keys), "v_in": (2 * keys, 2 * keys + values)}
    return hybrid_weights(
        spec, INPUTS, {**(fields or {}), **{leaf: {"rows": ends} for leaf, ends in rows.items()}}, **others
    )
