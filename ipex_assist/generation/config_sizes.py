"""How many tokens a model has rows for, by its config or by what transformers makes of that. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints.base import Checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def vocabulary_rows(checkpoint: Checkpoint, tokenizer: PreTrainedTokenizerBase) -> int:
    """Rows of the embedding: by config.json, else by transformers' defaults for its class, else the tokens."""
    if (rows := number_in(checkpoint.config, "vocab_size")) is not None:
        return rows
    config = auto_config(checkpoint)
    return int(getattr(config and config.get_text_config(), "vocab_size", None) or len(tokenizer))


def auto_config(checkpoint: Checkpoint) -> Any:
    """Return transformers' config of a checkpoint, None where it makes none; loading the model says what is wrong."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(checkpoint.path, trust_remote_code=False)
    except (ValueError, OSError, KeyError, ImportError):
        return None


def number_in(config: Mapping[str, Any], *keys: str) -> int | None:
    """The first of these fields that is a count, of a model of several kinds of input in its text part."""
    text = config.get("text_config")
    parts = (config, text if isinstance(text, dict) else {})
    values = (part.get(key) for part in parts for key in keys)
    return next((value for value in values if isinstance(value, int) and value > 0), None)
