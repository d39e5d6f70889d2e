"""Gemma 4's assistants draft what transformers drafts with them, over keys and values of their target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import draft_heads
import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from native_models import tokens

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import UsageError
from ipex_assist.executors.interface import DraftInput, DraftsInOneCall, HiddenRows, Rows
from ipex_assist.executors.load_head import head_of
from ipex_assist.native.library import unavailable

transformers = pytest.importorskip("transformers")
if not hasattr(transformers, "Gemma4AssistantForCausalLM"):
    pytest.skip("this transformers has no Gemma 4", allow_module_level=True)

DRAFTED = 5


def _saved(folder: Path, variant: str, **changes: Any) -> tuple[Any, Any]:
    """A target in `folder`/target, and an assistant of two layers, narrower than it, in `folder`/head."""
    target = tiny_models.save(folder / "target", variant)
    sizes = tiny_models.VARIANTS[variant]
    names = ("head_dim", "global_head_dim", "num_global_key_value_heads", "attention_k_eq_v", "vocab_size")
    kept = {key: sizes[key] for key in (*names, "num_key_value_heads", "rope_parameters") if key in sizes}
    text = transformers.Gemma4TextConfig(
        **{**kept, "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 4, "num_hidden_layers": 2},
        **{"num_kv_shared_layers": 2, "sliding_window": 9},
        **{"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "use_double_wide_mlp": False},
        **{"layer_types": ["sliding_attention", "full_attention"], "pad_token_id": 0},
    )
    config = transformers.Gemma4AssistantConfig(text_config=text, backbone_hidden_size=sizes["hidden_size"], **changes)
    config._attn_implementation = "eager"
    torch.manual_seed(1)
    assistant = transformers.Gemma4AssistantForCausalLM(config).eval()
    tiny_models.randomise(assistant)
    if assistant.masked_embedding is not None:
        assistant.masked_embedding.token_ordering.copy_(torch.randperm(sizes["vocab_size"]))
    assistant.save_pretrained(folder / "head")
    return target, assistant


@pytest.fixture(autouse=True)
def _all_layers_share() -> Iterator[None]:
    """transformers 5.23 refuses configs whose layers all read those of another model, which its assistants are."""
    original = transformers.Gemma4TextConfig.kv_sharing_modes

    def modes(config: Any) -> Any:
        count = config.num_hidden_layers
        return ["reuse"] * count if config.num_kv_shared_layers == count else original.fget(config)

    with mock.patch.object(transformers.Gemma4TextConfig, "kv_sharing_modes", property(modes)):
        yield


@pytest.mark.parametrize("changes", [{}, {"use_ordered_embeddings": True}], ids=["plain", "clusters"])
@pytest.mark.parametrize("variant", ["gemma4", "gemma4-everything"])
def test_drafts_as_transformers_does(variant: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Drafts after prompts within the window and beyond it: a wrong layer of the target's, a window that is off by
    one, a cap of logits or hidden states before the final norm would change them.
    """
    sizes = {"num_centroids": 10, "centroid_intermediate_top_k": 3} if changes else {}
    model, assistant = _saved(tmp_path, variant, **changes, **sizes)
    target, head = draft_heads.load(tmp_path / "target", tmp_path / "head")
    for count in (2, 9, 10, 11, 30):
        prompt = tokens(count, count)
        read, drafted, logits = _drafted(model, assistant, prompt)
        sequence, hidden = target.new_sequence(64), HiddenRows(head.spec.head.taps)
        target.forward([Rows(sequence, prompt, 0)], hidden=hidden)
        assert isinstance(head, DraftsInOneCall)
        request = DraftInput(head.new_sequence(64), read[-1:], DRAFTED, 0.0, hidden.rows[-1:], sequence)
        [(found, confidences)] = head.draft_many([request])
        assert found == drafted
        assert confidences == pytest.approx(logits.softmax(1).amax(1).tolist(), rel=1e-4)


def _drafted(model: Any, assistant: Any, prompt: list[int]) -> tuple[list[int], list[int], torch.Tensor]:
    """What transformers drafts first after a prompt: all tokens known, those drafted, and their logits."""
    from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator as Generator

    assistant.generation_config.num_assistant_tokens = DRAFTED
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    with draft_heads.rounds_of(Generator) as rounds:
        model.generate(ids, attention_mask=torch.ones_like(ids), assistant_model=assistant, **options)
    return rounds[0]


@pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")
def test_on_the_native_core(tmp_path: Path) -> None:
    """Refused in a sentence, not by a check of sizes in the core."""
    _saved(tmp_path, "gemma4")
    with pytest.raises(UsageError, match="use --executor torch"):
        draft_heads.load(tmp_path / "target", tmp_path / "head", "native")


def test_another_target(tmp_path: Path) -> None:
    """An assistant for a wider target is refused with both widths, and for a target with other heads with those."""
    _saved(tmp_path, "gemma4")
    head = open_checkpoint(str(tmp_path / "head"))
    tiny_models.save(tmp_path / "wide", "gemma4", hidden_size=128)
    with pytest.raises(UsageError, match="64 values, and this one has 128"):
        head_of(open_checkpoint(str(tmp_path / "wide")), head)
    tiny_models.save(tmp_path / "llama", "llama")
    with pytest.raises(UsageError, match="no layers with a window"):
        head_of(open_checkpoint(str(tmp_path / "llama")), head)
