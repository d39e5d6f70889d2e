"""The row plan: what it promises about shapes, and that a kernel which feels its neighbours is found out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from decoding import PROMPT, run, tokens_of
from hypothesis import given
from hypothesis import strategies as st

from ipex_assist.executors.torch.exactness import ROW_BY_ROW, find_plan
from ipex_assist.executors.torch.kernels import Linear, TorchKernels
from ipex_assist.executors.torch.row_plan import RowPlan
from ipex_assist.speculative.choosing.sampling import Sampling
from ipex_assist.speculative.sources.assistant_model import AssistantModel


@given(st.sets(st.integers(1, 16), min_size=1), st.integers(1, 70), st.sampled_from([128, 512]))
def test_passes_cover_the_rows(sizes: set[int], count: int, block: int) -> None:
    """Every row is computed once, padded to an allowed size, and only the last pass has padding to spare."""
    plan = RowPlan(tuple(sorted(sizes)), block)
    passes = plan.split(count)
    assert sum(rows for rows, _ in passes) == count
    assert all(rows <= padded and padded in sizes for rows, padded in passes)
    assert all(rows == padded for rows, padded in passes[:-1])
    assert plan.key_length(count) % block == 0
    assert count <= plan.key_length(count) < count + block


class FeelsRowCount(TorchKernels):
    """Passes of 16 rows sum in another order than the rest, as matrix libraries do."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """The sum in two halves for 16 rows."""
        exact = super().linear(weight, bias)
        half = weight.shape[1] // 2

        def run(x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] != 16:
                return exact(x)
            halves = x[:, :half] @ weight[:, :half].T + x[:, half:] @ weight[:, half:].T
            return halves if bias is None else halves + bias

        return run


class FeelsPlace(TorchKernels):
    """The first row of every pass is a little off: no size agrees with itself."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Row 0 scaled by a hair, unless it is alone."""
        exact = super().linear(weight, bias)

        def run(x: torch.Tensor) -> torch.Tensor:
            y = exact(x)
            if x.shape[0] > 1:
                y[0] *= 1 + 1e-6
            return y

        return run


def model_with(kernels: TorchKernels, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("ipex_assist.executors.torch.kernels.make_torch_kernels", lambda _: kernels)
    return tiny_models.model(folder)


def test_a_row_count_with_other_sums_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan keeps 4 and 8 rows."""
    tiny_models.save(tmp_path, "llama")
    model = model_with(FeelsRowCount(torch.float32), tmp_path, monkeypatch)
    assert model.plan.sizes == (4, 8)


def test_row_by_row_is_the_last_resort_and_still_lossless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no size is exact, assisted output still equals plain output."""
    tiny_models.save(tmp_path, "llama")
    copy = tiny_models.model(tmp_path, exact=False)
    model = model_with(FeelsPlace(torch.float32), tmp_path, monkeypatch)
    assert model.plan == ROW_BY_ROW
    assert model.exact_rows == 1
    plain = tokens_of(run(model))
    draft = AssistantModel(copy, Sampling(), tiny_models.VOCAB)
    assert tokens_of(run(model, draft, k=4)) == plain


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_split_of_a_sequence_gives_the_same_logits(dtype: torch.dtype, tmp_path: Path) -> None:
    """The promise itself, end to end: 40 tokens in steps of 1, 2, … 16 rows, bit for bit."""
    tiny_models.save(tmp_path, "qwen2")
    text = tiny_models.text(tmp_path, precision="fp32" if dtype == torch.float32 else "bf16", tokens=128)
    assert text.model.exact_rows >= 8, "this machine's kernels leave nothing to test"
    following = [(7 * i) % tiny_models.VOCAB for i in range(40)]
    text.forward(PROMPT)
    reference = torch.cat([text.forward([token]) for token in following])
    for step in (2, 3, 5, 8, 9, 16, 40):
        text.truncate(len(PROMPT))
        chunks = [following[i : i + step] for i in range(0, 40, step)]
        logits = torch.cat([text.forward(chunk, last=len(chunk)) for chunk in chunks])
        assert torch.equal(logits, reference), step


def test_find_plan_repeats(tmp_path: Path) -> None:
    """Two starts on one machine must choose the same plan, or plain and assisted runs could differ."""
    tiny_models.save(tmp_path, "llama")
    model: Any = tiny_models.model(tmp_path)
    assert find_plan(model.spec, model.weights, model.kernels) == model.plan
