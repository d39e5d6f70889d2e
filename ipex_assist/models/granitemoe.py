"""Granite 3 MoE: Granite with experts, all of a layer's in two tensors."""

from __future__ import annotations

from ipex_assist.models import granite
from ipex_assist.models.common import experts, refuse
from ipex_assist.models.config import Config
from ipex_assist.models.names import ExpertNames, merged, named, stacked_gate_up
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "GraniteMoeForCausalLM"
EXAMPLES = ("ibm-granite/granite-3.1-3b-a800m-instruct", "ibm-granite/granite-3.1-1b-a400m-instruct")
NAMES = {**granite.NAMES, "num_experts": "num_local_experts", "moe_intermediate_size": "intermediate_size"}
_PLACE = "block_sparse_moe"
_INPUT, _OUTPUT = f"{_PLACE}.input_linear", f"{_PLACE}.output_linear"
EXPERT_NAMES = ExpertNames(
    (f"{_PLACE}.router.layer", f"{_PLACE}.router"),
    {"gate_proj": _INPUT, "up_proj": _INPUT, "down_proj": _OUTPUT},
    together=f"{_PLACE}.experts",
)


def spec(config: Config) -> DecoderSpec:
    """The softmax is over the chosen experts. Without rotary positions (transformers 4 has that) it is refused."""
    refuse(config, position_embedding_type="rope")
    return granite.granite_like("granitemoe", config, experts=experts(config, normalised=True))


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Granite's names but for the experts."""
    fields = merged({"final_norm": {"factor": spec.logit_multiplier}}, stacked_gate_up(spec))
    return named(spec, fields=fields, experts=EXPERT_NAMES)
