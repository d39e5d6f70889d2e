"""MiniMax-M2: many experts by sigmoid scores, one norm over all heads of query, and of key, and partial rotation."""

from __future__ import annotations

from ipex_assist.models.common import experts, llama_like, rope, rotary_part
from ipex_assist.models.config import Config
from ipex_assist.models.mixtral import LINEARS, PLACE
from ipex_assist.models.names import HEAD_NORMS, LLAMA_NORMS, ExpertNames, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "MiniMaxM2ForCausalLM"
EXAMPLES = ("MiniMaxAI/MiniMax-M2", "MiniMaxAI/MiniMax-M2.1")
NAMES = {
    "norm_eps": "rms_norm_eps",
    "num_experts": "num_local_experts",
    "moe_intermediate_size": "intermediate_size",
}
_BIAS = "e_score_correction_bias"
_NAMES = ExpertNames(
    (f"{PLACE}.gate", "mlp.gate"), LINEARS, correction_bias=(f"{PLACE}.{_BIAS}", f"mlp.{_BIAS}", f"mlp.gate.{_BIAS}")
)


def spec(config: Config) -> DecoderSpec:
    """How much of a head is rotated, published configs say by rotary_dim."""
    head_dim = config.integer("head_dim", 128)
    rotated = config.optional_integer("rotary_dim")
    return llama_like(
        "minimax_m2",
        config,
        head_dim=head_dim,
        ropes=(rope(config, 5000000.0, partial=True),),
        rotary_dim=rotary_part(config, head_dim, 1.0 if rotated is None else rotated / max(head_dim, 1)),
        qk_norm="all_heads",
        experts=experts(config, scores="sigmoid", correction_bias=True, normalised=True),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Mixtral's names, and a correction bias."""
    return named(spec, norms={**LLAMA_NORMS, **HEAD_NORMS}, experts=_NAMES)
