"""Configs of Gemma 3n as they are published, and those that cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_models

from ipex_assist.models import ARCHITECTURES
from ipex_assist.models.config import ConfigError, NotComputed

pytestmark = pytest.mark.one_stack  # others lack this family


def config(**changes: Any) -> dict[str, Any]:
    return tiny_models.VARIANTS["gemma3n"] | changes


def test_as_it_is_published() -> None:
    """The text part of a larger model: E4B's sizes, whose config says neither sparsity nor what types layers have."""
    text = {
        **{"hidden_size": 2048, "vocab_size": 262400, "num_hidden_layers": 35, "num_attention_heads": 8},
        **{"intermediate_size": [8192] * 35, "vocab_size_per_layer_input": 262144},
    }
    found = ARCHITECTURES["Gemma3nForConditionalGeneration"].spec({"model_type": "gemma3n", "text_config": text})
    layers = found.layers
    assert [layer.each_mlp.sparsity for layer in layers] == [0.95] * 10 + [0.0] * 25
    assert abs(layers[0].each_mlp.deviations - 1.6448536) < 1e-6
    assert [i for i, layer in enumerate(layers) if layer.attention.window is None] == list(range(4, 35, 5))
    assert [layer.attention.kv_layer for layer in layers[18:26]] == [None, None, 18, 18, 18, 18, 19, 18]
    assert (found.altup.count, layers[0].laurel_rank, found.per_layer_tokens) == (4, 64, 262144)
    names = ARCHITECTURES["Gemma3nForConditionalGeneration"].weights(found)
    assert names["altup.2.altup_out_proj.weight"].name == "model.language_model.altup_unembed_projections.2.weight"


@pytest.mark.parametrize(
    ("changed", "refusal", "kind"),
    [
        ({"altup_num_inputs": 1}, "only several streams", NotComputed),
        ({"altup_active_idx": 3}, "altup_active_idx is 3 .* below 3", ConfigError),
        ({"num_kv_shared_layers": 6}, "num_kv_shared_layers is 6", ConfigError),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers is 5 .* of each type", ConfigError),
        ({"intermediate_size": [96] * 5}, 'intermediate_size is "a list of 5" .* 6 layers', ConfigError),
        ({"activation_sparsity_pattern": [0.5] * 7}, 'activation_sparsity_pattern is "a list of 7"', ConfigError),
        ({"activation_sparsity_pattern": [1.0] * 6}, "activation_sparsity_pattern is 1", ConfigError),
        ({"laurel_rank": 0}, "laurel_rank is 0", ConfigError),
        ({"hidden_size_per_layer_input": 0}, "without per-layer embeddings", NotComputed),
    ],
)
def test_configs_that_cannot_be(changed: dict[str, Any], refusal: str, kind: type[Exception]) -> None:
    """Streams that there are not, layers that share with none, lists of other lengths: by the file's names."""
    with pytest.raises(kind, match=refusal):
        ARCHITECTURES["Gemma3nForCausalLM"].spec(config(**changed))
