"""Which text models see, and by what: a page for each family, data that vision/tower.py follows."""

from __future__ import annotations

from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.vision.families import (
    gemma,
    glm,
    granite_docling,
    idefics3,
    internvl,
    kimi_k25,
    llama4,
    mistral3,
    paddleocr_vl,
    qwen,
)
from ipex_assist.vision.families.family import Family

__all__ = ["FAMILIES", "Family", "family_of"]

_PAGES = (qwen, gemma, glm, granite_docling, idefics3, internvl, kimi_k25, llama4, mistral3, paddleocr_vl)
FAMILIES = {family.module: family for page in _PAGES for family in page.FAMILIES}


def family_of(checkpoint: Checkpoint, model_type: str) -> Family | None:
    """By what a checkpoint of a text model of this type sees; None where it takes no images, or has no such part."""
    family = FAMILIES.get(model_type)
    if family is None or family.row_token(checkpoint.config) is None:
        return None
    return family if any(each.startswith(family.prefixes) for each in checkpoint.names()) else None
