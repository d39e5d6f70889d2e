"""GLM-4.1V: GLM-4 0414, on three axes of positions, beside a vision model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_assist.models import glm4
from ipex_assist.models.common import even_head_dim, llama_like, refuse, rope, rotary_part, text_part
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.names import inside
from ipex_assist.models.rope_spec import Rope
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Glm4vForConditionalGeneration"
EXAMPLES = ("zai-org/GLM-4.1V-9B-Thinking",)
NAMES = glm4.NAMES


def spec(config: Config) -> DecoderSpec:
    """That of the text part."""
    return of_glm("glm4v", config)


def of_glm(model_type: str, config: Config) -> DecoderSpec:
    """The spec of a model whose text part is GLM-4's, which has biases of query, key and value in any case."""
    text = text_part(config)
    kind = text.text("model_type", "glm4v_text")
    if kind not in ("glm4v_text", "glm4v"):
        raise NotComputed(f"a text model of the type {kind!r} is not supported, only 'glm4v_text'")
    head_dim = even_head_dim(text)
    refuse(text, head_dim=head_dim, attention_bias=True)
    return llama_like(
        model_type,
        text,
        head_dim=head_dim,
        num_key_value_heads=text.integer("num_key_value_heads", 2),
        norm_eps=text.number("norm_eps", 1e-5),
        max_position_embeddings=text.integer("max_position_embeddings", 32768),
        ropes=(in_sections(rope(text, partial=True), [8, 12, 12]),),
        rotary_dim=rotary_part(text, head_dim, 1.0),
        qkv_bias=True,
        norm_place="sandwich",
    )


def in_sections(made: Rope, sections: list[int]) -> Rope:
    """Rotary positions on three axes, of these sections where a config gives none."""
    scaling: dict[str, Any] = {"mrope_section": sections, "mrope_interleaved": False, **made.scaling}
    return replace(made, scaling=scaling)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """GLM-4's names, in the place of a part."""
    return inside(glm4.weights(spec))
