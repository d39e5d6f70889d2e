"""gpt-oss where its own parts show: sinks of any size, activations beyond their limits, experts in MXFP4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from conftest import EXECUTORS, HAS_NATIVE
from mxfp4_files import change_config, load_decoded, to_mxfp4
from safetensors.torch import load_file, save_file

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import UsageError
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.executors.select_executor import stored_precision
from ipex_assist.models.config import NotComputed

native = pytest.mark.skipif(not HAS_NATIVE, reason="the native core's own precisions")
TOLERANCE = 1e-4
PROMPT = [3, 17, 150, 9, 9, 42, 77, 101, 5, 63, 12, 140, 8, 31, 90, 55, 2, 71, 118, 29]  # longer than a window


def changed(folder: Path, change: dict[str, Any]) -> Any:
    """A saved model whose parameters with these endings are multiplied or, by a function, replaced."""
    model = tiny_models.save(folder, "gpt-oss")
    tensors = load_file(folder / "model.safetensors")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            for ending, how in change.items():
                if name.endswith(ending):
                    parameter.copy_(how(parameter) if callable(how) else parameter * how)
                    tensors[name] = parameter.clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return model


def compare(model: Any, folder: Path, executor: str) -> None:
    """The prompt at once, and its second half in steps, as transformers has it."""
    with torch.no_grad():
        expected = model(torch.tensor([PROMPT])).logits[0]
    text = tiny_models.text(folder, executor, exact=False)
    tolerance = TOLERANCE * max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(text.forward(PROMPT, last=len(PROMPT)).float(), expected, atol=tolerance, rtol=0)
    text.truncate(10)
    steps = torch.cat([text.forward([token]) for token in PROMPT[10:]])
    torch.testing.assert_close(steps, expected[10:], atol=tolerance, rtol=0)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("sizes", [[-1e4, 40.0, 3.0, -40.0], [1e4, -3.0, 8.0, 0.0]])
def test_sinks_of_any_size(sizes: list[float], executor: str, tmp_path: Path) -> None:
    """One that outweighs all scores leaves nothing of the values, one far below them all of it; neither overflows."""
    compare(changed(tmp_path, {"sinks": lambda _: torch.tensor(sizes)}), tmp_path, executor)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_activations_beyond_their_limits(executor: str, tmp_path: Path) -> None:
    """Gates above 7 and ups beyond ±7: a clamp of the wrong side, of the wrong half, or of none."""
    model = changed(tmp_path, {"gate_up_proj_bias": 60.0, "down_proj": 0.1})
    seen: list[torch.Tensor] = []
    experts = model.model.layers[0].mlp.experts
    gate = experts._apply_gate if hasattr(experts, "_apply_gate") else None
    if gate is not None:
        experts._apply_gate = lambda both: seen.append(both) or gate(both)
    compare(model, tmp_path, executor)
    for both in seen[:1]:
        assert bool((both[..., ::2] > 7).any() and (both[..., ::2] < -7).any())
        assert bool((both[..., 1::2] > 7).any() and (both[..., 1::2] < -7).any())


@pytest.mark.parametrize("executor", EXECUTORS)
def test_experts_in_mxfp4(executor: str, tmp_path: Path) -> None:
    """As transformers computes it with the decoded weights: gate and up, in and out must not change places."""
    model = tiny_models.save(tmp_path, "gpt-oss")
    load_decoded(model, to_mxfp4(tmp_path))
    compare(model, tmp_path, executor)


@native
@pytest.mark.parametrize(("precision", "error"), [("bf16", 0.03), ("mxfp4", 0.05), ("int8", 0.2), ("int4", 0.7)])
def test_mxfp4_in_other_precisions(precision: str, error: float, tmp_path: Path) -> None:
    """It goes into each of them as any weight does; where it stays as it is, rows alone are rounded."""
    tiny_models.save(tmp_path, "gpt-oss")
    to_mxfp4(tmp_path)
    rows = [tiny_models.text(tmp_path, "native", each).forward(PROMPT, last=20) for each in ("fp32", precision)]
    assert float((rows[1] - rows[0]).norm() / rows[0].norm()) < error


@native
def test_mxfp4_stays_as_it_is(tmp_path: Path) -> None:
    """Default and size: a checkpoint in MXFP4 and its decoded copy in bf16 have one packed image, to the bit."""
    folders = tmp_path / "stored", tmp_path / "decoded"
    for folder in folders:
        tiny_models.save(folder, "gpt-oss")
    model = tiny_models.save(folders[1], "gpt-oss")
    load_decoded(model, to_mxfp4(folders[0]))
    model.save_pretrained(folders[1])
    checkpoint = open_checkpoint(str(folders[0]))
    assert stored_precision(checkpoint, "native") == "mxfp4"
    assert stored_precision(checkpoint, "torch") == "bf16"
    models = [tiny_models.model(folder, "native", "mxfp4") for folder in folders]
    images = [b"".join(each.packed.image()) for each in models if isinstance(each, NativeModel)]
    assert images[0] == images[1]
    assert len(images) == 2
    bf16 = tiny_models.model(folders[0], "native", "bf16")
    assert isinstance(bf16, NativeModel)
    assert len(images[0]) < 0.7 * bf16.packed.nbytes  # of rows padded to 128


@native
def test_mxfp4_is_of_experts(tmp_path: Path) -> None:
    """A model without any would be rounded to a precision nobody measured."""
    tiny_models.save(tmp_path, "llama")
    with pytest.raises(UsageError, match="has no experts, and mxfp4 is theirs"):
        tiny_models.model(tmp_path, "native", "mxfp4")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"swiglu_limit": 5.0}, "swiglu_limit 5.0"),
        ({"swiglu_alpha": 1.0}, "swiglu_alpha 1.0"),
        ({"rope_parameters": None, "rope_scaling": None}, "without rope_scaling"),
        ({"layer_types": ["chunked_attention", "full_attention"]}, "chunked_attention"),
    ],
)
def test_what_is_not_computed(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    """transformers runs these then; ours would give another model's text."""
    tiny_models.save(tmp_path, "gpt-oss")
    change_config(tmp_path, **changes)
    with pytest.raises(NotComputed, match=said):
        open_checkpoint(str(tmp_path)).decoder_spec()
