"""mixture_gguf.py: a file of a mixture's shapes that our own reader finds whole."""

from __future__ import annotations

from pathlib import Path

import mixture_gguf
import pytest

from ipex_assist.checkpoints.open import open_checkpoint

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
