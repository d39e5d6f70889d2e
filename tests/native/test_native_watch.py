"""What a watch of the core's operations is shown: names, layers, rows, and the numbers that a pass computes with."""

from __future__ import annotations

import numpy as np
import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from native_models import loaded, text, tokens

from ipex_assist.native.library import unavailable
from ipex_assist.native.watch import OperationOutput, watched

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]
MIXERS = ["llama", "opt-350m", "deepseek-v3-dense", "qwen3-next", "mamba", "lfm2", "gpt-oss"]
MIXERS += tiny_models.known("glm-moe-dsa", "hy-v4", "axk2-groups", "gemma3n", "recurrent-gemma", "deepseek-v4")
MIXERS += tiny_models.known("bailing-hybrid", "glm5-next")
MIXERS += tiny_models.known("mistral-large4")
MIXERS += tiny_models.known("minimax-m3", "zamba2")


def watched_pass(variant: str, count: int, precision: str = "fp32") -> tuple[list[OperationOutput], torch.Tensor]:
    """What a pass of `count` tokens shows, and its logits, on two threads."""
    seen: list[OperationOutput] = []
    model = loaded(variant, precision, 2)
    with watched(model.packed, seen.append):
        logits = text(variant, precision, 2).forward(tokens(count)).clone()
    return seen, logits


@pytest.mark.parametrize("variant", MIXERS)
@pytest.mark.parametrize("count", [3, 40])  # the decode path and the prefill path
def test_a_watch_changes_nothing_and_ends_with_the_logits(variant: str, count: int) -> None:
    """A buffer of the wrong place, width or row would not have these numbers; a lost barrier would change them."""
    seen, logits = watched_pass(variant, count)
    assert torch.equal(logits, text(variant, "fp32", 2).forward(tokens(count)))
    assert seen[0].operation in ("embed", "enter_draft_head")
    assert seen[-1].operation == "head"
    np.testing.assert_array_equal(seen[-1].values[:, : logits.shape[1]], logits.numpy())
    assert seen[-1].batch_rows == (count - 1,)
    layers = [each.layer for each in seen]
    assert layers == sorted(layers)
    assert set(layers) == {*range(-1, max(layers) + 1)}
    assert all(np.isfinite(each.values).all() for each in seen)
    assert all(len(each.batch_rows) == len(each.values) for each in seen)


@pytest.mark.parametrize("count", [3, 40])
def test_the_residual_stream_grows_by_each_delta(count: int) -> None:
    """Of a pre-norm layer in fp32: x before, plus delta, is x after, for the rows that go on."""
    seen, _ = watched_pass("llama", count)
    stream, delta = seen[0], None
    for each in seen[1:]:
        if each.buffer == "delta":
            delta = each
        elif each.buffer == "residual stream":
            places = [stream.batch_rows.index(row) for row in each.batch_rows]
            added = stream.values[places]
            if delta is not None:
                added = added + delta.values[[delta.batch_rows.index(row) for row in each.batch_rows]]
            np.testing.assert_array_equal(each.values, added)
            stream, delta = each, None


def test_inputs_are_shown_as_floats() -> None:
    """Quantized rows come back within half a step of int8 of the norm's output, in every precision's form."""
    exact = {(e.layer, e.operation): e.values for e in watched_pass("llama", 3)[0] if e.buffer == "mixer inputs"}
    for precision in ("bf16", "int8", "int4"):
        seen = watched_pass("llama", 3, precision)[0]
        found = next(e for e in seen if e.buffer == "mixer inputs")
        expected = exact[found.layer, found.operation]
        width = min(found.values.shape[1], expected.shape[1])
        assert np.abs(found.values[:, :width] - expected[:, :width]).max() < np.abs(expected).max() / 100


def test_an_error_of_the_callback_is_raised() -> None:
    """It cannot pass through the core: it must not be lost."""

    def fail(_: OperationOutput) -> None:
        raise RuntimeError("not this one")

    with pytest.raises(RuntimeError, match="not this one"), watched(loaded("llama", "fp32", 2).packed, fail):
        text("llama", "fp32", 2).forward(tokens(3))
    text("llama", "fp32", 2).forward(tokens(3))  # nobody watches any more
