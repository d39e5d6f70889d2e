"""Sizes that a config.json states, or transformers' defaults for it. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints.base import Checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def vocabulary_rows(checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase) -> int:
    """Rows of the embedding: by config.json, else by transformers' default for the class, else the tokenizer's size."""
    if (rows := number_in(checkpoint.config, "vocab_size")) is not None:
        return rows
    config = auto_config(checkpoint)
    return int(getattr(config and config.get_text_config(), "vocab_size", None) or len(tokenizer))


def auto_config(checkpoint: Checkpoint) -> Any:
    """transformers' config object of a checkpoint; None where it cannot make one (loading the model then says why)."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(checkpoint.path, trust_remote_code=False)
    except (ValueError, OSError, KeyError, ImportError):
        return None


def number_in(config: Mapping[str, Any], *keys: str) -> int | None:
    """The first of these fields that is a positive integer, in the config or in its `text_config` (multimodal)."""
    text = config.get("text_config")
    parts = (config, text if isinstance(text, dict) else {})
    values = (part.get(key) for part in parts for key in keys)
    return next((value for value in values if isinstance(value, int) and value > 0), None)
