"""Granite 4: Granite with Mamba-2 in most layers, attention without positions in the others, and experts or an MLP."""

from __future__ import annotations

from typing import Any

from ipex_assist.models import granite, granitemoeshared
from ipex_assist.models.common import experts
from ipex_assist.models.config import Config
from ipex_assist.models.gated_delta import LINEAR
from ipex_assist.models.granitemoeshared import EXPERT_NAMES, SHARED
from ipex_assist.models.layers import with_mixers
from ipex_assist.models.mamba_layers import BAMBA_NAMES, bamba_mixer, mamba_fields, mamba_kinds, mamba_names
from ipex_assist.models.names import LLAMA_LINEARS, merged, named, stacked_gate_up
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "GraniteMoeHybridForCausalLM"
EXAMPLES = ("ibm-granite/granite-4.0-h-tiny", "ibm-granite/granite-4.0-h-micro", "ibm-granite/granite-4.0-micro")
NAMES = {**granitemoeshared.NAMES, **BAMBA_NAMES}


def spec(config: Config) -> DecoderSpec:
    """Without experts, the MLP is what would be the shared one. Positions are rotary where the config says so."""
    shared, differences = config.integer("shared_expert_intermediate_size", 1024), dict[str, Any]()
    if config.text("position_embedding_type", "nope") != "rope":
        differences["ropes"] = ()
    if config.integer("num_experts", 8) > 0:
        differences["experts"] = experts(config, normalised=True, shared_size=shared)
    else:
        differences["intermediate_size"] = shared
    kinds = mamba_kinds(config)
    alike = granite.granite_like("granitemoehybrid", config, **differences)
    mixer = bamba_mixer(config) if LINEAR in kinds else None
    return with_mixers(alike, [mixer if kind == LINEAR else None for kind in kinds])


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Granite's names of experts; gate and up of a shared or only MLP lie in one tensor, too."""
    fields = merged(
        {"final_norm": {"factor": spec.logit_multiplier}},
        stacked_gate_up(spec),
        mamba_fields(spec.recurrents[0] if spec.recurrents else None),
    )
    linears = {**LLAMA_LINEARS, **SHARED}
    return named(spec, fields=fields, linears=linears, experts=EXPERT_NAMES, recurrent=mamba_names("mamba"))
