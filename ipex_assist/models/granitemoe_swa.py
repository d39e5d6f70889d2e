"""Granite Swash's mixtures: Granite's, with windows in three of four layers, and a sink for each query head."""

from __future__ import annotations

from ipex_assist.models import granite_swa, granitemoeshared
from ipex_assist.models.config import Config
from ipex_assist.models.names import sinks
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "GraniteMoeSWAForCausalLM"
EXAMPLES = ("ibm-granite/granite-swash-3b-a600m",)
NAMES = granitemoeshared.NAMES


def spec(config: Config) -> DecoderSpec:
    """Granite Swash's attention, and Granite's experts."""
    return granitemoeshared.shared("granitemoe_swa", config, **granite_swa.windowed(config))


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """The mixture's names, and the sinks."""
    return granitemoeshared.weights(spec) | sinks(spec)
