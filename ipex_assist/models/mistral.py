"""Mistral 7B and its relatives: Llama with a sliding window in every layer, where the config gives one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipex_assist.models.common import llama_like
from ipex_assist.models.common import llama_weights as weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "spec", "weights"]

ARCHITECTURE = "MistralForCausalLM"


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """A config without the key has the window of the first release, 4096; null means none."""
    window = config.get("sliding_window", 4096)
    windows = (window,) * config["num_hidden_layers"] if window else ()
    return llama_like("mistral", config, sliding_windows=windows)
