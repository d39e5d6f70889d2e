"""Mistral 7B and its relatives: Llama with a sliding window in every layer, where the config gives one."""

from __future__ import annotations

from ipex_assist.models.common import layer_count, llama_like
from ipex_assist.models.config import Config
from ipex_assist.models.names import llama_weights as weights
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "MistralForCausalLM"
EXAMPLES = ("mistralai/Mistral-7B-Instruct-v0.3",)
NAMES = {"norm_eps": "rms_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """A config without the key has the window of the first release, 4096; null means none."""
    window = config.optional_integer("sliding_window") if "sliding_window" in config.values else 4096
    windows = () if window is None else (window,) * layer_count(config)
    return llama_like("mistral", config, sliding_windows=windows)
