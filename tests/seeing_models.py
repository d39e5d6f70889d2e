"""Tiny models that take images, and what transformers makes of prompts with some."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tiny_models
import torch
from PIL import Image
from tiny_tokenizers import tiny_tokenizer
from transformers import AutoImageProcessor

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.vision.families import FAMILIES
from ipex_assist.vision.messages import with_images
from ipex_assist.vision.tower import Tower

START, END, PLACE = 157, 158, 156  # around an image, and what stands for it
TOKENS = {"image_token_id": PLACE, "video_token_id": 155, "vision_start_token_id": START, "vision_end_token_id": END}
PROCESSOR = {
    **{"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "merge_size": 2, "temporal_patch_size": 2},
    **{"min_pixels": 8 * 8, "max_pixels": 40 * 40, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
}
VARIANTS = tiny_models.known(
    "qwen2-vl", "qwen2.5-vl", "qwen3-vl", "qwen3-vl-moe", "qwen3.5-seeing", "qwen3.5-moe-seeing"
)


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
        reference = tiny_models.save(folder, variant, **TOKENS)
        (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
        family = FAMILIES[tiny_models.VARIANTS[variant]["model_type"]]
        tower = Tower(open_checkpoint(str(folder)), family, "fp32")
        tower._model.config._attn_implementation = "eager"  # as the reference's: recurrent layers make much of 1e-6
        return cls(folder, reference, tower)

    def prompt(self, tokens: Sequence[int], images: Sequence[Image.Image]) -> tuple[list[int], Any]:
        """Tokens with a placeholder a row, and the rows."""
        return with_images(tokens, PLACE, [self.tower.see(image) for image in images])

    def inputs(self, tokens: Sequence[int], images: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        """What transformers' model takes of an expanded prompt."""
        ids = torch.tensor([list(tokens)])
        if not images:
            return {"input_ids": ids}
        processor = AutoImageProcessor.from_pretrained(str(self.folder), local_files_only=True, use_fast=False)
        pixels = processor(images=list(images), return_tensors="pt")
        given = {"input_ids": ids, "pixel_values": pixels["pixel_values"], "image_grid_thw": pixels["image_grid_thw"]}
        if hasattr(self.reference.model, "get_vision_position_ids"):  # transformers 5
            given["mm_token_type_ids"] = (ids == PLACE).int()
        return given

    def logits(self, tokens: Sequence[int], images: Sequence[Image.Image]) -> torch.Tensor:
        """Of all rows of an expanded prompt."""
        self.reference.model.rope_deltas = None
        with torch.no_grad():
            logits: torch.Tensor = self.reference(**self.inputs(tokens, images)).logits[0]
        return logits
