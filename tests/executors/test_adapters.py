"""LoRA adapters against the same model with W + s · B · A, in fp32, and against what PEFT computed once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import adapter_files
import pytest
import tiny_models
import torch
import transformers
from conftest import HAS_NATIVE

from ipex_assist.checkpoints.lora_folder import read_lora
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import UsageError
from ipex_assist.executors.adapters import AdapterChoice, TakesAdapters, adapter_matrices
from ipex_assist.executors.interface import Model, Rows
from ipex_assist.executors.load_request import LoadRequest

RECORDED = Path(__file__).parent / "recorded_adapters.json"  # by record_adapters.py
TOKENS = [5, 90, 17, 33, 71, 2, 140, 8, 64, 29, 111, 46]
EXECUTORS = ["torch", *(["native"] if HAS_NATIVE else [])]
# Plain and gated MLPs, one tensor for several weights, Conv1D, heads by turns, and experts beside attention.
VARIANTS = {
    "llama": adapter_files.LINEARS,
    "qwen2": adapter_files.LINEARS,
    "opt": adapter_files.LINEARS,
    "gpt2": adapter_files.LINEARS,
    "gpt-bigcode": adapter_files.LINEARS,
    "gpt-bigcode-mha": adapter_files.LINEARS,
    "phi3": adapter_files.LINEARS,
    "gpt-neox": adapter_files.LINEARS,
    "qwen3-moe": adapter_files.ATTENTION,
}


def with_adapter(folder: Path, adapter: Path, executor: str, precision: str = "fp32") -> Model:
    """A tiny model on an executor, with the adapter named "it"."""
    model = tiny_models.model(folder, executor, precision)
    asked = LoadRequest(open_checkpoint(str(folder)), precision, executor)
    assert isinstance(model, TakesAdapters)
    model.add_adapter("it", adapter_matrices(asked.spec, asked.sources, read_lora(str(adapter)), str(adapter)))
    return model


def logits_of(model: Model, scale: float | None, tokens: list[int] = TOKENS) -> torch.Tensor:
    """Of all tokens of a prompt; scale None: without the adapter."""
    more: dict[str, Any] = {} if scale is None else {"adapter": AdapterChoice("it", scale)}
    return model.forward([Rows(model.new_sequence(100, **more), tokens, len(tokens))])


def by_transformers(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([TOKENS])).logits[0]
    return logits


def distance(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("variant", tiny_models.known(*VARIANTS))
def test_logits_are_those_of_the_merged_model(tmp_path: Path, variant: str, executor: str) -> None:
    """Finds parts in wrong columns of a fused linear, a wrong factor, and linears that are left out."""
    reference = tiny_models.save(tmp_path, variant)
    adapter = adapter_files.save_adapter(
        tmp_path / "adapter", reference, 5, VARIANTS[variant], 1, 0.2, ranks={"layers.1.*": 20}, use_rslora=True
    )
    model, plain = with_adapter(tmp_path, adapter, executor), by_transformers(reference)
    assert distance(logits_of(model, None), plain) < 2e-5
    adapter_files.merge(reference, adapter, 0.75)
    merged = by_transformers(reference)
    assert distance(merged, plain) > 1e-2
    assert distance(logits_of(model, 0.75), merged) < 5e-5
    assert distance(logits_of(model, None), plain) < 2e-5


@pytest.mark.skipif(not HAS_NATIVE, reason="of the native core")
@pytest.mark.parametrize("precision", ["bf16", "int8", "int4", "fp8"])
def test_other_precisions_are_as_near_as_without_an_adapter(tmp_path: Path, precision: str) -> None:
    """Finds scales and sums of rows that A's kernel reads wrongly: int4's groups are shorter than int8's spans."""
    reference = tiny_models.save(tmp_path, "llama")
    adapter = adapter_files.save_adapter(tmp_path / "adapter", reference, 24, size=0.1)
    model = with_adapter(tmp_path, adapter, "native", precision)
    error = distance(logits_of(model, None), by_transformers(reference))
    adapter_files.merge(reference, adapter)
    assert distance(logits_of(model, 1.0), by_transformers(reference)) < 2 * error + 0.01


@pytest.mark.skipif(not HAS_NATIVE, reason="of the native core")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int4"])
def test_steps_and_prompts_have_the_same_bits(tmp_path: Path, precision: str) -> None:
    """40 rows at once, one by one, and beside rows of the model alone: windows of 32 rows change nothing."""
    reference = tiny_models.save(tmp_path, "llama")
    adapter = adapter_files.save_adapter(tmp_path / "adapter", reference, 16)
    model = with_adapter(tmp_path, adapter, "native", precision)
    tokens = [(7 * i) % 150 + 3 for i in range(40)]
    together = logits_of(model, 1.0, tokens)
    own, other = model.new_sequence(100, adapter=AdapterChoice("it")), model.new_sequence(100)
    steps = [model.forward([Rows(other, [9]), Rows(own, [token])])[1] for token in tokens]
    assert torch.equal(torch.stack(steps), together)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("variant", sorted(json.loads(RECORDED.read_text())) if RECORDED.exists() else [])
def test_logits_are_those_that_peft_computed(tmp_path: Path, variant: str, executor: str) -> None:
    """The reference is PEFT itself, run by record_adapters.py: finds a rule of its configuration read otherwise."""
    if variant not in tiny_models.known(*VARIANTS):
        pytest.skip(f"{variant} is none of this transformers' models")
    if variant in ("gpt-neox", "qwen3-moe") and int(transformers.__version__.partition(".")[0]) < 5:
        pytest.skip("transformers 5, which it was recorded with, has other parameters: the formula gives other weights")
    recorded = json.loads(RECORDED.read_text())[variant]
    save_by_formula(tmp_path, variant)
    found = logits_of(with_adapter(tmp_path, tmp_path / "adapter", executor), 1.0)
    assert distance(found[-1], torch.tensor(recorded)) < 5e-5


def save_by_formula(folder: Path, variant: str) -> Any:
    """A tiny model and an adapter, both of weights by formula; returns the model."""
    model = tiny_models.save(folder, variant)
    adapter_files.fill(model)
    model.save_pretrained(folder)
    first = next(iter(adapter_files.linears(model, VARIANTS[variant]))).rpartition(".")[2]
    adapter_files.save_adapter(
        *(folder / "adapter", model, 4, VARIANTS[variant], 3, 0.2), ranks={first: 8}, alpha_pattern={first: 5}
    )
    return model


@pytest.mark.parametrize("executor", EXECUTORS)
def test_modules_that_take_no_adapter_are_named(tmp_path: Path, executor: str) -> None:
    """Finds adapters of experts, heads, unknown modules and other models that are applied in part."""
    reference = tiny_models.save(tmp_path, "llama")
    heads = adapter_files.save_adapter(tmp_path / "heads", reference, 4, "lm_head")
    with pytest.raises(UsageError, match=r"for lm_head, and embeddings and heads take none"):
        with_adapter(tmp_path, heads, executor)
    wider = tiny_models.save(tmp_path / "wider", "llama", hidden_size=128)
    other = adapter_files.save_adapter(tmp_path / "other", wider, 4)
    with pytest.raises(UsageError, match=r"it is an adapter of another model"):
        with_adapter(tmp_path, other, executor)
    opt = tiny_models.save(tmp_path / "opt", "opt")
    foreign = adapter_files.save_adapter(tmp_path / "foreign", opt, 4)
    with pytest.raises(UsageError, match=r"is for model\.decoder\S+, which this llama does not have"):
        with_adapter(tmp_path, foreign, executor)


def test_experts_take_none(tmp_path: Path) -> None:
    """Finds a router's adapter that is left out silently."""
    if not tiny_models.known("qwen3-moe"):
        pytest.skip("qwen3-moe is none of this transformers' models")
    reference = tiny_models.save(tmp_path, "qwen3-moe")
    adapter = adapter_files.save_adapter(tmp_path / "adapter", reference, 4, r".*mlp\.gate")
    with pytest.raises(UsageError, match=r"mlp\.gate, and experts and their routers take none"):
        with_adapter(tmp_path, adapter, "torch")
