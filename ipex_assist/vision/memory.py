"""The memory that reading images takes beside the text model. Never imports torch."""

from __future__ import annotations

import math

from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.env.memory import read_memory
from ipex_assist.vision.families import family_of

KEPT_BYTES = 512 << 20  # of rows of images that were read before: a conversation sends its image with every message
PROCESS_BYTES = 1 << 30  # of the process without its weights: torch and transformers, and a page on its way


def running_bytes() -> int:
    """Bytes of rows of images that requests may have between them until they are answered; one alone may have more."""
    return max(KEPT_BYTES, read_memory().total // 64)


def vision_bytes(checkpoint: Checkpoint, model_type: str, precision: str) -> int:
    """Bytes for the process that reads images, and for rows that are kept or in use; 0 for a model that takes none."""
    family = family_of(checkpoint, model_type)
    if family is None:
        return 0
    shapes = checkpoint.shapes().items()
    numbers = sum(math.prod(shape) for name, shape in shapes if name.startswith(family.prefixes))
    return numbers * (4 if precision == "fp32" else 2) + PROCESS_BYTES + KEPT_BYTES + running_bytes()
