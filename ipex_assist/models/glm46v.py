"""GLM-4.6V-Flash: GLM-4.1V's text model beside a vision model."""

from __future__ import annotations

from ipex_assist.models import glm4v
from ipex_assist.models.config import Config
from ipex_assist.models.glm4v import weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "Glm46VForConditionalGeneration"
EXAMPLES = ("zai-org/GLM-4.6V-Flash",)
NAMES = glm4v.NAMES


def spec(config: Config) -> DecoderSpec:
    """The text parts of the two do not differ."""
    return glm4v.of_glm("glm46v", config)
