"""LFM2's mixtures: LFM2 with experts by sigmoid scores and a bias of their choice, after dense first layers."""

from __future__ import annotations

from ipex_assist.models import lfm2
from ipex_assist.models.common import dense_first, experts
from ipex_assist.models.config import Config, MissingError
from ipex_assist.models.names import ExpertNames
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Lfm2MoeForCausalLM"
EXAMPLES = ("LiquidAI/LFM2-8B-A1B",)
NAMES = lfm2.NAMES

_PLACE = "feed_forward"
_LINEARS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
_NAMES = ExpertNames(
    (f"{_PLACE}.gate",),
    {leaf: f"{_PLACE}.experts.{{}}.{name}" for leaf, name in _LINEARS.items()},
    correction_bias=(f"{_PLACE}.expert_bias",),
    together=f"{_PLACE}.experts",
)


def spec(config: Config) -> DecoderSpec:
    """`num_dense_layers` at the beginning have an MLP of `intermediate_size`."""
    kinds = config.optional_texts("layer_types")
    if kinds is None:
        raise MissingError("layer_types")
    each = experts(
        config,
        activation="silu",
        scores="sigmoid",
        correction_bias=config.flag("use_expert_bias", True),
        normalised=config.flag("norm_topk_prob", True),
        added_to_sum=1e-6,
        scaling=config.number("routed_scaling_factor", 1.0),
    )
    return lfm2.convolved("lfm2_moe", config, kinds, **dense_first(config, config.integer("num_dense_layers", 2), each))


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """LFM2's names, and experts one by one, or all in two tensors."""
    return lfm2.weights(spec, _NAMES)
