"""PaddleOCR-VL: ERNIE 4.5 (dense), rotated by halves on three axes of positions, beside a vision model."""

from __future__ import annotations

from ipex_assist.models import ernie4_5
from ipex_assist.models.common import llama_like, rope, text_part
from ipex_assist.models.config import Config
from ipex_assist.models.glm4v import in_sections
from ipex_assist.models.names import inside, llama_weights
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "PaddleOCRVLForConditionalGeneration"
EXAMPLES = ("PaddlePaddle/PaddleOCR-VL",)
NAMES = ernie4_5.NAMES


def spec(config: Config) -> DecoderSpec:
    """That of the text part, which published configs do not set apart. `use_bias` puts a bias on all linears."""
    text = text_part(Config({"tie_word_embeddings": True, **config.values}, config.other_names))
    fields = ernie4_5.shared(text)
    head_dim = {} if "head_dim" in text.values else {"head_dim": 128}
    ropes = (in_sections(rope(text, 500000.0), [16, 24, 24]),)
    return llama_like(
        "paddleocr_vl", text, **{**fields, "ropes": ropes}, **head_dim, mlp_bias=text.flag("use_bias", False)
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names, in the place of a part."""
    return inside(llama_weights(spec))
