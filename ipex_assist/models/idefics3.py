"""Idefics3: Llama beside a vision model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ipex_assist.models import llama
from ipex_assist.models.common import text_part
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.names import inside, llama_weights, renamed
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Idefics3ForConditionalGeneration"
EXAMPLES = ("HuggingFaceM4/Idefics3-8B-Llama3", "HuggingFaceTB/SmolVLM-Instruct")
NAMES = llama.NAMES


def spec(config: Config) -> DecoderSpec:
    """That of the text part, which has Llama's names whoever trained it."""
    return of_llama("idefics3", config)


def of_llama(model_type: str, config: Config) -> DecoderSpec:
    """The spec of a model whose text part is Llama."""
    text = text_part(Config({"tie_word_embeddings": False, **config.values}, config.other_names))
    kind = text.text("model_type", "llama")
    if kind not in ("llama", "VLlama3"):
        raise NotComputed(f"a text model of the type {kind!r} is not supported, only 'llama'")
    eps = text.number("norm_eps", 1e-5)
    return replace(llama.spec(text), model_type=model_type, norm_eps=eps)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names, in the place of a part."""
    return in_text_model(llama_weights(spec))


def in_text_model(sources: Mapping[str, Source]) -> dict[str, Source]:
    """The sources of a text model that is the part `text_model` of a larger one."""
    return {ours: renamed(source, _names) for ours, source in inside(sources).items()}


def _names(name: str) -> list[str]:
    return [name.replace("model.language_model.", "model.text_model."), name]
