"""Prompts with images: where these stand, and what they are to the text model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.env.errors import UsageError
from ipex_assist.executors.image_rows import PromptImages
from ipex_assist.generation.conversation import messages_of
from ipex_assist.launch.plan import MASK_AT_START
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.tokenization.tokenizer import encode
from ipex_assist.vision.families import family_of
from ipex_assist.vision.images import ImageSource
from ipex_assist.vision.messages import PART, ImageTokens, has_images, take_images, with_images
from ipex_assist.vision.reader import ImageReader
from ipex_assist.vision.wire import TowerSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MOST_THREADS = 16  # of a tower: its matrices give more of them little to do


def image_reader(
    checkpoint: Checkpoint, spec: DecoderSpec, precision: str, tokenizer: PreTrainedTokenizerBase
) -> ImageReader | None:
    """What reads images for a model of this checkpoint; None where it takes none, or its vision part is left out."""
    family = family_of(checkpoint, spec.model_type)
    if family is None:
        return None
    row = family.row_token(checkpoint.config)
    assert row is not None
    place: Any = None if family.place is None else tokenizer.convert_tokens_to_ids(family.place)
    fed = family.fed_token(checkpoint.config)
    cpus = sorted(MASK_AT_START)
    threads = min(MOST_THREADS, len(cpus))
    return ImageReader(
        TowerSettings(str(checkpoint.path), spec.model_type, precision, threads, cpus),
        ImageTokens(row if place is None else int(place), row if fed is None else fed, spec.whole_images is not None),
    )


def placed(prompt: Any, images: Sequence[ImageSource], chat: bool) -> tuple[Any, list[ImageSource]]:
    """A prompt in which its images are placeholders, and the images in their order.

    Those of messages are parts of them; before a text of a chat all `images` stand; other texts and token ids have
    the model's own placeholders. Raises UsageError as `take_images` does.
    """
    if isinstance(prompt, str):
        if not (images and chat):
            return prompt, list(images)
        parts = [PART] * len(images)
        return [{"role": "user", "content": [*parts, {"type": "text", "text": prompt}]}], list(images)
    messages = messages_of(prompt)
    if messages is None or not (images or has_images(messages)):
        return prompt, list(images)
    return take_images(messages, images)


@dataclass(frozen=True)
class PicturedPrompt:
    """A prompt as the text model gets it. images: of which the tokens have a placeholder for each row."""

    tokens: list[int]
    images: PromptImages | None


def seen(
    reader: ImageReader | None,
    model: str,
    tokens: list[int],
    images: Sequence[ImageSource],
    tokenizer: PreTrainedTokenizerBase,
) -> PicturedPrompt:
    """The prompt of tokens with a placeholder for each image. UsageError where they cannot be read."""
    if not images:
        return PicturedPrompt(tokens, None)
    if reader is None:
        raise UsageError(f"{model} takes no images here: leave them out, or use a model that sees (docs/images.md)")

    def encoded(text: str) -> list[int]:
        return encode(tokenizer, text, add_special_tokens=False)

    return PicturedPrompt(*with_images(tokens, reader.tokens, reader.see(images), encoded))
