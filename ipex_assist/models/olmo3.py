"""OLMo 3: OLMo 2 with a window in three layers of four; a longer context's rope is that of the others alone."""

from __future__ import annotations

from ipex_assist.models.common import FULL, SLIDING, layer_kinds, rope, windows
from ipex_assist.models.config import Config
from ipex_assist.models.olmo2 import olmo, weights
from ipex_assist.models.rope_spec import Rope
from ipex_assist.models.spec import DecoderSpec

__all__ = ["ARCHITECTURE", "EXAMPLES", "NAMES", "spec", "weights"]

ARCHITECTURE = "Olmo3ForCausalLM"
EXAMPLES = ("allenai/Olmo-3-7B-Instruct", "allenai/Olmo-3-1125-32B")
NAMES = {"norm_eps": "rms_norm_eps"}
_THETA = 500000.0


def spec(config: Config) -> DecoderSpec:
    """OLMo 2's, with windows, whose layers have a rope of their own."""
    kinds = layer_kinds(config, lambda layer: (layer + 1) % 4 != 0)
    return olmo(
        "olmo3",
        config,
        ropes=(rope(config, _THETA, kind=FULL), _windowed_rope(config)),
        layer_ropes=tuple(1 if kind == SLIDING else 0 for kind in kinds),
        sliding_windows=windows(config, kinds, 4096),
    )


def _windowed_rope(config: Config) -> Rope:
    parameters = config.part("rope_parameters").get(SLIDING)
    theta = config.number("rope_theta", _THETA)
    return rope(Config({"rope_parameters": parameters}), theta) if isinstance(parameters, dict) else Rope(theta)
