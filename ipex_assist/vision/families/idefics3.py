"""Idefics3, SmolVLM and SmolVLM2: SigLIP on tiles of an image and on the whole of it, and a connector."""

from __future__ import annotations

from typing import Any

from ipex_assist.vision.families.family import Family, Layout, VisionPart, tiles

_MARK = "<fake_token_around_image>"


def in_tiles(config: Any, given: Any, rows: int) -> Layout:
    """The layout of an image that was cut into so many tiles."""
    down, across = int(given["rows"][0][0]), int(given["cols"][0][0])
    return tiles(rows, down, across, _MARK, lambda y, x: f"<row_{y + 1}_col_{x + 1}>", "<global-img>", _MARK)


def _family(module: str, name: str) -> Family:
    return Family(
        module,
        f"{name}Model",
        {
            "vision_model": VisionPart(f"{name}VisionTransformer"),
            "connector": VisionPart(f"{name}Connector", of=()),
        },
        given=("pixel_values", "pixel_attention_mask"),
        options=lambda config: {"return_row_col_info": True},
        layout=in_tiles,
    )


FAMILIES = (_family("idefics3", "Idefics3"), _family("smolvlm", "SmolVLM"))
