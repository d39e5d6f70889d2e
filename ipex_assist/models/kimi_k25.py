"""Kimi K2.5 and K2.6: DeepSeek-V3 beside a vision model."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import deepseek_v3
from ipex_assist.models.common import text_part
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.names import inside, renamed
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Kimi_K25ForConditionalGeneration"
EXAMPLES = ("moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2.6")
NAMES = deepseek_v3.NAMES
_TEXT = ("deepseek_v3", "kimi_k2")


def spec(config: Config) -> DecoderSpec:
    """That of the text part."""
    text = text_part(Config({"tie_word_embeddings": True, **config.values}, config.other_names))
    kind = text.text("model_type", _TEXT[0])
    if kind not in _TEXT:
        raise NotComputed(f"a text model of the type {kind!r} is not supported, only {' and '.join(_TEXT)}")
    return replace(deepseek_v3.spec(text), model_type="kimi_k25")


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """The text part's names, in the place of a part; transformers 5.24 writes "blocks" for its layers."""
    sources = inside(deepseek_v3.weights(spec))
    return {ours: renamed(source, _names) for ours, source in sources.items()}


def _names(name: str) -> list[str]:
    return [name, name.replace("language_model.model.layers.", "language_model.model.blocks.")]
