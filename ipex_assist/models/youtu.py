"""Youtu-LLM: DeepSeek-V3's latent attention, and a dense MLP in every layer."""

from __future__ import annotations

from ipex_assist.models.config import Config
from ipex_assist.models.deepseek_v3 import SIZES
from ipex_assist.models.latent import latent_decoder, latent_weights
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "YoutuForCausalLM"
EXAMPLES = ("tencent/Youtu-LLM-2B",)
NAMES = {"norm_eps": "rms_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """The head is the embedding unless the config says otherwise."""
    return latent_decoder("youtu", config, SIZES, tied_head=config.flag("tie_word_embeddings", True))


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Those of latent attention."""
    return latent_weights(spec)
