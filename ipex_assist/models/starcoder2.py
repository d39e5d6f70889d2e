"""StarCoder2: rotary positions, layer norms, a plain MLP, biases everywhere."""

from __future__ import annotations

from ipex_assist.models.common import activation, layer_count, llama_like
from ipex_assist.models.config import Config
from ipex_assist.models.names import LLAMA_LINEARS, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Starcoder2ForCausalLM"
EXAMPLES = ("bigcode/starcoder2-15b", "bigcode/starcoder2-3b")
NAMES = {"norm_eps": "norm_epsilon"}


def spec(config: Config) -> DecoderSpec:
    """A sliding window, where there is one, is every layer's."""
    bias, window = config.flag("use_bias", True), config.optional_integer("sliding_window")
    return llama_like(
        "starcoder2",
        config,
        num_key_value_heads=config.integer("num_key_value_heads", 2),
        norm="layer",
        norm_eps=config.number("norm_eps", 1e-5),
        activation=activation(config.text("hidden_act", "gelu_pytorch_tanh")),
        gated=False,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        tied_head=config.flag("tie_word_embeddings", True),
        sliding_windows=() if window is None else (window,) * layer_count(config),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names but for the MLP."""
    return named(spec, linears=LLAMA_LINEARS | {"up_proj": "mlp.c_fc", "down_proj": "mlp.c_proj"})
