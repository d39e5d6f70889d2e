"""The memory that reading images takes beside the text model. Never imports torch."""

from __future__ import annotations

import math

from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.vision.families import family_of

KEPT_BYTES = 512 << 20  # of rows of images that were read before: a conversation sends its image with every message
PROCESS_BYTES = 1 << 30  # of the process without its weights: torch and transformers, and a page on its way


def vision_bytes(checkpoint: Checkpoint, model_type: str, precision: str) -> int:
    """Bytes of the process that reads images, and of rows that are kept; 0 for a model that takes none."""
    family = family_of(checkpoint, model_type)
    if family is None:
        return 0
    shapes = checkpoint.shapes().items()
    numbers = sum(math.prod(shape) for name, shape in shapes if name.startswith(family.prefixes))
    return numbers * (4 if precision == "fp32" else 2) + PROCESS_BYTES + KEPT_BYTES
