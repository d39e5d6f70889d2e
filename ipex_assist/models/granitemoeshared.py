"""Granite's mixtures with a shared expert: Granite 3 MoE, and an MLP that every row passes through."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ipex_assist.models import granite, granitemoe
from ipex_assist.models.common import experts, refuse
from ipex_assist.models.config import Config
from ipex_assist.models.names import merged, named, stacked_gate_up
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "GraniteMoeSharedForCausalLM"
EXAMPLES = ("ibm-research/moe-7b-1b-active-shared-experts",)
NAMES = {**granitemoe.NAMES, "shared_expert_intermediate_size": "shared_intermediate_size"}
SHARED = {
    **dict.fromkeys(("gate_proj", "up_proj"), "shared_mlp.input_linear"),
    "down_proj": "shared_mlp.output_linear",
}
EXPERT_NAMES = replace(granitemoe.EXPERT_NAMES, shared=SHARED)


def spec(config: Config) -> DecoderSpec:
    """The spec of such a mixture."""
    return shared("granitemoeshared", config)


def shared(model_type: str, config: Config, **differences: Any) -> DecoderSpec:
    """The softmax is over the chosen experts. Without rotary positions (transformers 4 has that) it is refused."""
    refuse(config, position_embedding_type="rope")
    size = config.integer("shared_expert_intermediate_size", 0)
    made = experts(config, normalised=True, shared_size=size)
    return granite.granite_like(model_type, config, experts=made, **differences)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Granite's names of experts; gate and up of the shared one lie in one tensor, too."""
    fields = merged({"final_norm": {"factor": spec.logit_multiplier}}, stacked_gate_up(spec))
    return named(spec, fields=fields, experts=EXPERT_NAMES)
