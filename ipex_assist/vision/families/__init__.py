"""Which text models see, and by what: a page for each family, data that vision/tower.py follows."""

from __future__ import annotations

from ipex_assist.vision.families import gemma, glm, idefics3, internvl, kimi_k25, llama4, mistral3, paddleocr_vl, qwen
from ipex_assist.vision.families.family import Family

__all__ = ["FAMILIES", "Family"]

_PAGES = (qwen, gemma, glm, idefics3, internvl, kimi_k25, llama4, mistral3, paddleocr_vl)
FAMILIES = {family.module: family for page in _PAGES for family in page.FAMILIES}
