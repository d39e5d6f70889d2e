"""What fakes of executors say they are: a spec as real models have, of which only the sizes matter."""

from __future__ import annotations

from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.draft_head import HeadSpec
from ipex_assist.models.mlp_spec import Experts, MlpSpec
from ipex_assist.models.spec import DecoderSpec, LayerSpec


def fake_spec(
    vocab_size: int,
    *,
    layers: int = 1,
    hidden_size: int = 16,
    context: int = 4096,
    experts: Experts | None = None,
    head: HeadSpec | None = None,
) -> DecoderSpec:
    """A decoder of equal layers, each with an attention head and an MLP, or with `experts`."""
    layer = LayerSpec(AttentionSpec(1, 1, 16), experts or MlpSpec(16))
    return DecoderSpec("fake", vocab_size, hidden_size, (layer,) * layers, context, head=head)
