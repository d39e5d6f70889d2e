"""nanochat: Llama with norms that have no weights, one of the embedding, too, and heads rotated backwards."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models.common import activation, llama_like, number_or_none, rope
from ipex_assist.models.config import Config
from ipex_assist.models.names import LLAMA_LINEARS, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "NanoChatForCausalLM"
EXAMPLES = ("karpathy/nanochat-d32",)
NAMES = {"norm_eps": "rms_norm_eps"}


def spec(config: Config) -> DecoderSpec:
    """Each head of query and key passes its norm after its rotation. The MLP is plain, of ReLU's square."""
    bias = config.flag("attention_bias", False)
    return llama_like(
        "nanochat",
        config,
        norm_affine=False,
        embedding_norm=True,
        qk_norm="unweighted",
        norm_after_rope=True,
        activation=activation(config.text("hidden_act", "relu2")),
        gated=False,
        ropes=(replace(rope(config), backwards=True),),
        qkv_bias=bias,
        output_bias=bias,
        logit_cap=number_or_none(config, "final_logit_softcapping", 15.0),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names but for the MLP."""
    return named(spec, linears={**LLAMA_LINEARS, "up_proj": "mlp.fc1", "down_proj": "mlp.fc2"})
