"""Gemma 3 as it is published (4B to 27B): the text part beside a vision model."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import gemma3_text
from ipex_assist.models.common import text_part
from ipex_assist.models.config import Config
from ipex_assist.models.names import inside
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Gemma3ForConditionalGeneration"
EXAMPLES = ("google/gemma-3-4b-it", "google/gemma-3-12b-it", "google/gemma-3-27b-it")
NAMES = gemma3_text.NAMES
# What published text_configs leave out where it is as in the 4B.
USUAL = {
    **{"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131072},
    **{"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26},
}


def spec(config: Config) -> DecoderSpec:
    """That of the text part, whose head is the embedding unless a part says otherwise."""
    text = text_part(Config({"tie_word_embeddings": True, **config.values}, config.other_names))
    given = {name: value for name, value in text.values.items() if value is not None}
    return replace(
        gemma3_text.spec(Config({**USUAL, **given}, config.other_names)), model_type="gemma3", whole_images="all"
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """The text part's names, in the place of a part."""
    return inside(gemma3_text.weights(spec))
