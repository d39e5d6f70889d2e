"""mixture_gguf.py: a file of a mixture's shapes that our own reader finds whole."""

from __future__ import annotations

from pathlib import Path

import mixture_gguf
import pytest

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import UsageError

pytestmark = pytest.mark.one_stack


def test_a_small_file_has_every_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name, a shape or a number that llama.cpp would miss is one that we miss, too."""
    monkeypatch.setattr(mixture_gguf, "PART", 1 << 12)
    config = mixture_gguf.published_config(mixture_gguf.MODEL)
    small = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 32}
    small |= {"num_key_value_heads": 1, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    mixture_gguf.write(config | small, tmp_path / "m.gguf")
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    spec = checkpoint.decoder_spec()
    assert spec.model_type == "qwen3_moe"
    assert spec.experts is not None
    assert (spec.experts.count, spec.experts.per_token, spec.experts.intermediate_size) == (4, 2, 32)
    shapes = dict(checkpoint.shapes())
    assert len(shapes) == 3 + 2 * (9 + 3 * 4)  # each expert by itself
    weights = [tensor for _, tensor in checkpoint.tensors()]
    assert sum(tensor.numel() for tensor in weights) == sum(
        int(mixture_gguf.np.prod(shape)) for _, shape in mixture_gguf.shapes(config | small)
    )


LATENT = {
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
}
LATENT |= {"qk_nope_head_dim": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 64}
ATTENTION = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 64}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32}
GATED = {"hc_lowrank": 32, "indexer_head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "ple_layer_ids": []}
GATED |= {"shared_expert_intermediate_size": 32}
SMALL = {
    "deepseek-ai/DeepSeek-V2-Lite": (27, LATENT),
    "zai-org/GLM-4.7-Flash": (3, LATENT | {"q_lora_rank": 32}),
    "Qwen/Qwen3.5-9B": (4, ATTENTION | DELTA),
    "Qwen/Qwen3.8-Flash-Next": (4, ATTENTION | DELTA | GATED),
}


@pytest.mark.parametrize("source", SMALL)
def test_every_family_is_what_our_reader_knows(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that are dense, recurrent or latent in another order, or with numbers of another type."""
    monkeypatch.setattr(mixture_gguf, "PART", 1 << 12)
    layers, changes = SMALL[source]
    config = mixture_gguf.first_layers(mixture_gguf.published_config(source), layers) | changes
    config |= {"vocab_size": 64, "hidden_size": 64, "moe_intermediate_size": 32}
    mixture_gguf.write(config, tmp_path / "m.gguf")
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    checkpoint.check_weights()
    expected, found = mixture_gguf.RandomCheckpoint("m", config).spec, checkpoint.decoder_spec()
    assert [layer.mixer for layer in found.layers] == [layer.mixer for layer in expected.layers]
    assert [layer.inner_size for layer in found.layers] == [layer.inner_size for layer in expected.layers]


def test_what_llama_cpp_would_not_read_is_refused(tmp_path: Path) -> None:
    """It tells DeepSeek-V2-Lite by its number of layers; a file of others ends in its message, long after."""
    config = mixture_gguf.published_config("deepseek-ai/DeepSeek-V2-Lite")
    with pytest.raises(UsageError, match="with 26 or 27 layers only"):
        mixture_gguf.write(mixture_gguf.first_layers(config, 8), tmp_path / "m.gguf")
    with pytest.raises(UsageError, match="llama has no file for llama"):
        mixture_gguf.write(mixture_gguf.published_config("meta-llama/Llama-2-7b-hf"), tmp_path / "m.gguf")
