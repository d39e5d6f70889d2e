"""Qwen3-VL-MoE: Qwen3-MoE beside a vision model."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models import qwen3_moe
from ipex_assist.models.common import rope, text_part
from ipex_assist.models.config import Config
from ipex_assist.models.names import HEAD_NORMS, LLAMA_NORMS, MLP, ExpertNames, inside, named, transposed_experts
from ipex_assist.models.qwen3_vl import embedding_layers
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Qwen3VLMoeForConditionalGeneration"
EXAMPLES = ("Qwen/Qwen3-VL-30B-A3B-Instruct", "Qwen/Qwen3-VL-235B-A22B-Instruct")
NAMES = qwen3_moe.NAMES
_PLACE = "mlp.experts"
_EXPERTS = ExpertNames(
    linears={leaf: f"{_PLACE}.{'down_proj' if leaf == 'down_proj' else 'gate_up_proj'}" for leaf in MLP}
)


def spec(config: Config) -> DecoderSpec:
    """That of the text part. The weights of a row's experts always sum to one."""
    text = text_part(config)
    text = Config({**text.values, "norm_topk_prob": True}, text.other_names)
    ropes, layers = (rope(text, 5e5),), embedding_layers(config)
    return replace(qwen3_moe.spec(text), model_type="qwen3_vl_moe", ropes=ropes, embedding_layers=layers)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Qwen3's names, in the place of a part; a layer's experts lie in two tensors, (in, out), gate before up."""
    names = named(spec, norms={**LLAMA_NORMS, **HEAD_NORMS}, experts=_EXPERTS)
    return inside(transposed_experts(spec, names, by_shape=True))
