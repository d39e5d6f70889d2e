"""SmolVLM2: Llama beside a vision model, as Idefics3."""

from __future__ import annotations

from ipex_assist.models import idefics3
from ipex_assist.models.config import Config
from ipex_assist.models.idefics3 import weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "SmolVLMForConditionalGeneration"
EXAMPLES = ("HuggingFaceTB/SmolVLM2-2.2B-Instruct", "HuggingFaceTB/SmolVLM2-500M-Video-Instruct")
NAMES = idefics3.NAMES


def spec(config: Config) -> DecoderSpec:
    """The text parts of the two do not differ."""
    return idefics3.of_llama("smolvlm", config)
