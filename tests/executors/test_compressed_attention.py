"""DeepSeek-V4's parts that no other family has: entries that close anywhere, and experts that tokens name."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import tiny_models
import torch
from conftest import HAS_NATIVE
from native_models import tokens

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models import find
from ipex_assist.models.config import ConfigError, NotComputed
from ipex_assist.native.library import unavailable

VARIANTS = tiny_models.known("deepseek-v4", "deepseek-v4-other")
pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or ""),
    pytest.mark.skipif(not VARIANTS, reason="of today's transformers"),
]
PUBLISHED = {  # what V4-Flash's config says of its attention
    **{"vocab_size": 129280, "hidden_size": 4096, "moe_intermediate_size": 2048, "num_attention_heads": 64},
    **{"head_dim": 512, "qk_rope_head_dim": 64, "num_hidden_layers": 6, "n_routed_experts": 256},
    **{"num_experts_per_tok": 6, "compress_ratios": [0, 0, 4, 128, 4, 128, 0], "num_hash_layers": 2},
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_text_goes_on_from_wherever_it_is_cut(variant: str, tmp_path: Path) -> None:
    """Taken back, or forked, by as many rows as a draft has, into windows that have closed, of both rates, and over the
    edge of a block: what comes then closes them again, with other tokens, as if those had never been there.
    """
    tiny_models.save(tmp_path, variant, max_position_embeddings=600)
    model = tiny_models.model(tmp_path, "native", "fp32")
    first, second = tokens(530, 1), tokens(30, 2)
    for end, cuts in (
        (530, (528, 517, 514)),
        (523, (512, 507)),
        (300, (295, 284)),
        (258, (256, 255, 243)),
        (33, (31, 17)),
        (9, (2,)),
    ):
        for cut in cuts:
            sequence, alone = model.new_sequence(600), model.new_sequence(600)
            model.extend(sequence, first[:end])
            fork = sequence.fork(cut)
            sequence.truncate(cut)
            expected = model.extend(alone, [*first[:cut], *second], 30)
            assert torch.equal(model.extend(sequence, second, 30), expected)
            assert torch.equal(model.extend(fork, second, 30), expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_text_goes_on_from_where_it_cannot(variant: str, tmp_path: Path) -> None:
    """The window's keys, and what entries are made of, are no longer kept there: refused, and nothing is changed."""
    tiny_models.save(tmp_path, variant, max_position_embeddings=600)
    model = tiny_models.model(tmp_path, "native", "fp32")
    text, more = tokens(530, 1), tokens(9, 2)
    sequence = model.new_sequence(600)
    expected = model.extend(sequence, [*text, *more], 9)
    sequence.truncate(530)
    for cut in (1, 256, 511, 522):  # 539 were there
        for shorten in (sequence.truncate, sequence.fork):
            with pytest.raises(
                IpexAssistError, match=f"cannot be truncated to {cut} tokens: its state is .* after 523"
            ):
                shorten(cut)
    assert torch.equal(model.extend(sequence, more, 9), expected)
    sequence.truncate(0)
    assert torch.equal(model.extend(sequence, [*text, *more], 9), expected)


def test_a_token_that_names_no_expert(tmp_path: Path) -> None:
    """A table beyond the experts is refused, or gives no numbers: never another expert's."""
    tiny_models.save(tmp_path, "deepseek-v4")
    path = tmp_path / "model.safetensors"
    stored = safetensors.torch.load_file(path)
    for name, tensor in stored.items():
        if "tid2eid" in name:
            tensor[7] = 9
    safetensors.torch.save_file(stored, path, {"format": "pt"})
    with pytest.raises(IpexAssistError, match="none of the 9"):
        tiny_models.model(tmp_path, "torch", exact=False)
    model = tiny_models.model(tmp_path, "native", "fp32")
    found = [model.extend(model.new_sequence(8), [token]) for token in (6, 7)]
    assert found[0].isfinite().all()
    assert not found[1].isfinite().any()


def test_configs_as_published() -> None:
    """Kinds of layers by tokens of an entry, experts by token in the first, and yarn where there are entries alone."""
    architecture = find("DeepseekV4ForCausalLM")
    assert architecture is not None
    spec = architecture.spec(PUBLISHED)
    latents = [layer.attention.latent for layer in spec.layers]
    assert [latent.rate for latent in latents] == [0, 0, 4, 128, 4, 128]  # type: ignore[union-attr]
    assert [latent.index_dim for latent in latents if latent] == [0, 0, 128, 0, 128, 0]
    assert {latent.rope_dim for latent in latents if latent} == {64}
    assert [layer.experts is not None and layer.experts.by_token for layer in spec.layers] == [True] * 2 + [False] * 4
    assert [rope.kind for rope in spec.ropes] == ["default", "yarn"]
    assert spec.ropes[1].scaling["attention_factor"] == 1.0
    assert architecture.weights(spec)


@pytest.mark.parametrize(
    "changed",
    [
        {"compress_ratios": [8] * 6},
        {"sliding_window": 250},
        {"compress_rate_csa": 3},
        {"head_dim": 500},
        {"hc_mult": 1},
    ],
)
def test_sizes_that_are_not_computed(changed: dict[str, object]) -> None:
    """Entries that blocks do not hold evenly, and windows beside them that are too long."""
    architecture = find("DeepseekV4ForCausalLM")
    assert architecture is not None
    with pytest.raises((NotComputed, ConfigError)):
        architecture.spec(PUBLISHED | changed)
