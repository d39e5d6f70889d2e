"""What an image is in a prompt, by our pages of families and by transformers' own processors."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import seeing_models
import transformers

from ipex_assist.tokenization.chat_template import with_lines_around_images
from ipex_assist.vision.families import FAMILIES
from ipex_assist.vision.families.family import Layout

pytestmark = pytest.mark.skipif(transformers.__version__ < "5", reason="processors say it since transformers 5")
ROW = "<row>"
MARKS = {
    "fake_image_token": "<fake_token_around_image>",
    "global_image_tag": "<global-img>",
    "global_image_token": "<global-img>",
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "boi_token": "<5>",
    "eoi_token": "<6>",
}


def text_of(layout: Layout) -> str:
    """A layout with a mark for each row."""
    return "".join((f"<{before}>" if isinstance(before, int) else before) + ROW * rows for before, rows in layout)


def expected(module: str, name: str, given: Any, **fields: Any) -> str:
    """What transformers' processor of this name puts in the place of an image."""
    kind: Any = getattr(importlib.import_module(f"transformers.models.{module}.processing_{module}"), name)
    this = SimpleNamespace(**MARKS, image_token=ROW, **fields)
    if module == "llama4":
        this._prompt_split_image = lambda *of: kind._prompt_split_image(this, *of)
    return str(kind.replace_image_token(this, given, 0)).replace("<|patch|>", ROW)


@pytest.mark.parametrize(("rows", "cols"), [(0, 0), (1, 2), (3, 2), (2, 1)])
@pytest.mark.parametrize(("module", "name"), [("idefics3", "Idefics3Processor"), ("smolvlm", "SmolVLMProcessor")])
def test_tiles(module: str, name: str, rows: int, cols: int) -> None:
    """Lines of tiles, and the whole image after them."""
    given = {"rows": [[rows]], "cols": [[cols]]}
    layout = FAMILIES[module].layout(None, given, 4 * (rows * cols + 1))
    assert text_of(layout) == expected(module, name, given, image_seq_len=4)


@pytest.mark.parametrize("ratio", [(1, 1), (1, 3), (2, 2), (3, 1)])
def test_llama4(ratio: tuple[int, int]) -> None:
    """Tiles with separators, and the whole image where there are several."""
    count = ratio[0] * ratio[1] + (ratio != (1, 1))
    pixels = [SimpleNamespace(shape=(3, 28, 28))] * count
    given = {"pixel_values": pixels, "aspect_ratios": [ratio]}
    found = text_of(FAMILIES["llama4"].layout(None, given, count))
    assert found == expected("llama4", "Llama4Processor", given, patch_size=14, downsample_ratio=4)


def test_mistral3_and_internvl_and_gemma4() -> None:
    """Ends of lines; begin and end."""
    config: Any = SimpleNamespace(vision_config=SimpleNamespace(patch_size=14), spatial_merge_size=2)
    given = {"image_sizes": [(56, 84)]}
    found = text_of(FAMILIES["mistral3"].layout(config, given, 6))
    assert found == f"{ROW * 3}[IMG_BREAK]{ROW * 3}[IMG_END]"  # transformers' own needs torchvision
    found = text_of(FAMILIES["internvl"].layout(config, {}, 12))
    assert found == expected("internvl", "InternVLProcessor", {"num_patches": [3]}, image_seq_length=4)
    config = SimpleNamespace(boi_token_id=5, eoi_token_id=6)
    found = text_of(FAMILIES["gemma4"].layout(config, {}, 7))
    assert found == expected("gemma4", "Gemma4Processor", {"num_soft_tokens_per_image": [7]})


def test_gemma3_has_lines_around_its_images() -> None:
    """In the template, where they are there before tokens are made of them and of the text beside them."""
    import jinja2

    template = with_lines_around_images("{% for part in parts %}{{ '<start_of_image>' }}{{ part }}{% endfor %}")
    made = jinja2.Template(template).render(parts=["a", "b"])
    assert made == "\n\n<start_of_image>\n\na\n\n<start_of_image>\n\nb"
    layout = FAMILIES["gemma3"].layout(SimpleNamespace(boi_token_id=5, eoi_token_id=6), {}, 2)
    assert text_of(layout) == "<5><row><row><6>"


def test_all_families_are_tried() -> None:
    """A family that no tiny model is of would be one that nobody has run."""
    import tiny_models

    tried = {tiny_models.VARIANTS[each]["model_type"] for each in seeing_models.VARIANTS}
    assert set(FAMILIES) - tried <= {"llama4", "kimi_k25"}, "their image processors need torchvision"
