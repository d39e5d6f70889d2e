"""Mixtral: Mistral with eight experts in the place of each MLP, of which a row passes through two."""

from __future__ import annotations

from ipex_assist.models.common import experts, layer_count, llama_like
from ipex_assist.models.config import Config
from ipex_assist.models.names import ExpertNames, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "MixtralForCausalLM"
EXAMPLES = ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mistralai/Mixtral-8x22B-Instruct-v0.1")
NAMES = {
    "norm_eps": "rms_norm_eps",
    "num_experts": "num_local_experts",
    "moe_intermediate_size": "intermediate_size",
}
PLACE = "block_sparse_moe"
_W = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
LINEARS = {leaf: f"{PLACE}.experts.{{}}.{name}" for leaf, name in _W.items()}
_NAMES = ExpertNames((f"{PLACE}.gate", "mlp.gate"), LINEARS)


def spec(config: Config) -> DecoderSpec:
    """A config without sliding_window, or with null, has none, unlike Mistral's."""
    window = config.optional_integer("sliding_window")
    return llama_like(
        "mixtral",
        config,
        norm_eps=config.number("norm_eps", 1e-5),
        experts=experts(config, normalised=True),
        sliding_windows=() if window is None else (window,) * layer_count(config),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names but for the experts: w1 is the gate, w3 up and w2 down."""
    return named(spec, experts=_NAMES)
