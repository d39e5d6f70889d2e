"""Tiny models that take images, and what transformers makes of prompts with some."""

from __future__ import annotations

import base64
import importlib.util
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tiny_models
import torch
import transformers
from PIL import Image
from tiny_tokenizers import tiny_tokenizer

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.models import architecture_of, find
from ipex_assist.vision.families import FAMILIES
from ipex_assist.vision.messages import ImageTokens, with_images
from ipex_assist.vision.tower import Tower

START, END, PLACE = 157, 158, 156  # around an image, and what stands for it
TOKENS = {"image_token_id": PLACE, "video_token_id": 155, "vision_start_token_id": START, "vision_end_token_id": END}
PROCESSOR = {
    **{"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2},
    **{"min_pixels": 8 * 8, "max_pixels": 40 * 40, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
}
_PLAIN = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_GLM = _PLAIN | {"patch_size": 4, "merge_size": 2, "size": {"shortest_edge": 8 * 8, "longest_edge": 2 * 40 * 40}}
_TILES = _PLAIN | {"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}}
# What preprocessor_config.json says, where it is not PROCESSOR.
_PROCESSORS = {
    "glm4v": _GLM | {"image_processor_type": "Glm4vImageProcessor"},
    "glm46v": _GLM | {"image_processor_type": "Glm46VImageProcessor"},
    "idefics3": _TILES | {"image_processor_type": "Idefics3ImageProcessor"},
    "smolvlm": _TILES | {"image_processor_type": "SmolVLMImageProcessor"},
    "granite_docling": _PLAIN
    | {"image_processor_type": "GraniteDoclingImageProcessor", "size": {"height": 32, "width": 32}}
    | {"max_patches": 4, "fine_route": True},
    "internvl": _PLAIN | {"image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 16, "width": 16}},
    "paddleocr_vl": _PLAIN
    | {"image_processor_type": "PaddleOCRVLImageProcessor", "patch_size": 4, "merge_size": 2}
    | {"size": {"shortest_edge": 8 * 8, "longest_edge": 40 * 40}},
    "gemma3": _PLAIN | {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 112, "width": 112}},
    "gemma4": {"image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 70},
    "mistral3": _PLAIN | {"image_processor_type": "PixtralImageProcessor", "size": {"longest_edge": 112}},
    "llama4": _PLAIN
    | {"image_processor_type": "Llama4ImageProcessor", "size": {"height": 28, "width": 28}, "max_patches": 4},
    "kimi_k25": _PLAIN
    | {"image_processor_type": "Kimi_K25ImageProcessor", "patch_size": 14, "merge_size": 2, "max_patches": 64},
}
_SINCE_5 = (
    *("gemma3-seeing", "gemma4-vision", "gemma4-published", "gemma4-moe-published"),
    *(
        "granite-docling",
        "glm4v",
        "glm46v",
        "idefics3",
        "smolvlm",
        "internvl",
        "internvl-qwen3",
        "internvl-qwen3-moe",
        "paddleocr-vl",
    ),
    *("mistral3", "mistral3-ministral3", "mistral3-mistral4", "llama4-published", "kimi-k25"),
)
# Whose image processors are torchvision's alone.
_BY_TORCHVISION = ("llama4-published", "kimi-k25")
VARIANTS = tiny_models.known(
    *("qwen2-vl", "qwen2.5-vl", "qwen3-vl", "qwen3-vl-moe", "qwen3.5-seeing", "qwen3.5-moe-seeing"),
    *(each for each in _SINCE_5 if transformers.__version__ >= "5"),
)
if importlib.util.find_spec("torchvision") is None:
    VARIANTS = [each for each in VARIANTS if each not in _BY_TORCHVISION]


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|im_end|>")


def talking(folder: Path, variant: str = "qwen2.5-vl") -> Path:
    """A tiny model that takes images in a chat template of its own, as a checkpoint in `folder`."""
    tokenizer = tiny_tokenizer(_SPECIAL)
    tokenizer.chat_template = CHAT_TEMPLATE
    text = tiny_models.VARIANTS[variant]["text_config"] | {"vocab_size": 320, "max_position_embeddings": 512}
    start, place, end = (tokenizer.convert_tokens_to_ids(name) for name in _SPECIAL[2:5])
    ids = {"vision_start_token_id": start, "image_token_id": place, "vision_end_token_id": end, "video_token_id": 319}
    tiny_models.save(folder, variant, text_config=text, **ids)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return folder


def layout_ids(text: str) -> list[int]:
    """Tokens of a text, as if a tokenizer had one for each four letters."""
    return [10 + sum(map(ord, text[at : at + 4])) % 140 for at in range(0, len(text), 4)]


def content(image: Image.Image, form: str = "PNG") -> bytes:
    """A file of an image."""
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


def data_url(image: Image.Image) -> str:
    """An image as requests have it."""
    return f"data:image/png;base64,{base64.b64encode(content(image)).decode()}"


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """An image of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


@dataclass
class Seeing:
    """A tiny model in a folder, transformers' own of it, and its tower."""

    folder: Path
    reference: Any
    tower: Tower

    @classmethod
    def save(cls, folder: Path, variant: str) -> Seeing:
        """Write it with random weights."""
        model_type = tiny_models.VARIANTS[variant]["model_type"]
        text = tiny_models.VARIANTS[variant]["text_config"] | {"max_position_embeddings": 1024}
        ids = TOKENS | ({"boi_token_id": START, "eoi_token_id": END} if model_type.startswith("gemma") else {})
        reference = tiny_models.save(folder, variant, text_config=text, **ids)
        (folder / "preprocessor_config.json").write_text(json.dumps(_PROCESSORS.get(model_type, PROCESSOR)))
        tower = Tower(open_checkpoint(str(folder)), FAMILIES[model_type], "fp32")
        tower._model.set_attn_implementation("eager")  # as the reference's: recurrent layers make much of 1e-6
        return cls(folder, reference, tower)

    def prompt(self, tokens: Sequence[int], images: Sequence[Image.Image]) -> tuple[list[int], Any]:
        """Tokens with a placeholder a row, and the rows."""
        config = json.loads((self.folder / "config.json").read_text())
        architecture = find(architecture_of(config))
        assert architecture is not None
        ids = ImageTokens(PLACE, self.fed, architecture.spec(config).whole_images is not None)
        return with_images(tokens, ids, [self.tower.see(each) for each in self.sized(images)], layout_ids)

    @property
    def inner(self) -> Any:
        """The reference without its head, where it is set apart."""
        return getattr(self.reference, "model", self.reference)

    @property
    def fed(self) -> int:
        """The token that enters with an image's rows."""
        return PLACE if FAMILIES[self.reference.config.model_type].fed is None else 0

    def sized(self, images: Sequence[Image.Image]) -> list[Image.Image]:
        """The images as the family takes them: of one row transformers' Mistral 3 makes nothing."""
        factor = 4 if self.reference.config.model_type == "mistral3" else 1
        return [each.resize((each.width * factor, each.height * factor)) for each in images]

    def inputs(self, tokens: Sequence[int], images: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        """What transformers' model takes of an expanded prompt."""
        ids = torch.tensor([[PLACE if token == self.fed else token for token in tokens]])
        if not images:
            return {"input_ids": ids}
        tower = self.tower
        pixels = tower._processor(
            images=self.sized(images), return_tensors="pt", **tower._family.options(tower._config)
        )
        given = {"input_ids": ids, **{name: pixels[name] for name in tower._family.given if name in pixels}}
        given["pixel_values"] = given["pixel_values"].float()  # Llama 4's processor gives bf16
        if self.reference.config.model_type == "gemma3":
            given["token_type_ids"] = (ids == PLACE).int()
        elif self.fed != PLACE or hasattr(self.inner, "get_vision_position_ids"):  # transformers 5
            given["mm_token_type_ids"] = (ids == PLACE).int()
        return given

    def logits(self, tokens: Sequence[int], images: Sequence[Image.Image]) -> torch.Tensor:
        """Of all rows of an expanded prompt."""
        self.inner.rope_deltas = None
        with torch.no_grad():
            logits: torch.Tensor = self.reference(**self.inputs(tokens, images)).logits[0]
        return logits
