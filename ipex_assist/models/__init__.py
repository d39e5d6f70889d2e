"""The architectures we run ourselves: one file each, named by Hugging Face's `model_type`.

A model file holds `ARCHITECTURE` (what config.json's `architectures[0]` says), `spec(config)` and `weights(spec)`.
`weights` maps each of our weight names to the checkpoint's, so that a missing tensor is known before any is read.
A checkpoint tensor that holds several weights is named with a slice of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ipex_assist.models import gpt_bigcode, llama, mistral, opt, qwen2, qwen3
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

__all__ = ["ARCHITECTURES", "Architecture", "find"]


@dataclass(frozen=True)
class Architecture:
    """How one architecture's config and checkpoint names become a DecoderSpec and our weight names."""

    name: str
    spec: Callable[[Mapping[str, Any]], DecoderSpec]
    weights: Callable[[DecoderSpec], dict[str, Source]]


ARCHITECTURES: dict[str, Architecture] = {
    module.ARCHITECTURE: Architecture(module.ARCHITECTURE, module.spec, module.weights)  # type: ignore[attr-defined]
    for module in (gpt_bigcode, llama, mistral, opt, qwen2, qwen3)
}


def find(architecture: str | None) -> Architecture | None:
    """The architecture of this name, or None: then transformers runs the model (generation/transformers_model.py)."""
    return ARCHITECTURES.get(architecture or "")
